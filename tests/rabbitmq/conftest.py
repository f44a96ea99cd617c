"""Fixtures of the tests that work on a broker by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rabbit import Rabbit
from tests.rabbitmq.by_hand import Hands, Shell, hands_on


@pytest.fixture
def hands(rabbit: Rabbit) -> Iterator[Hands]:
    """A plain client of the test's virtual host."""
    with hands_on(rabbit) as found:
        yield found


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The command line, in a folder of its own."""
    return Shell(tmp_path, monkeypatch)
