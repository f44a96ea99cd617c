from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import Redrive
from tests.runtime.fleet import Fleet

MakeApp = Callable[..., Redrive]


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:////{tmp_path}/app.db"


@pytest.fixture
def make_app(url: str) -> MakeApp:
    def make(**settings: Any) -> Redrive:
        return Redrive("shop", broker=url, settings={"durability": "normal", **settings})

    return make


@pytest.fixture
def app(make_app: MakeApp) -> Redrive:
    return make_app()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    made.kill_all()
