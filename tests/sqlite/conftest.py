"""A file to work on, with the host's clock or one that moves when told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from redrive.runtime.clock import SystemClock
from redrive.sqlite import SqliteFile, SqliteLedger
from redrive.testing import FakeClock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.db"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest_asyncio.fixture
async def file(path: Path, clock: FakeClock) -> AsyncIterator[SqliteFile]:
    file = SqliteFile(path, clock=clock)
    await file.open()
    yield file
    await file.close()


@pytest.fixture
def ledger(file: SqliteFile) -> SqliteLedger:
    return SqliteLedger(file)


@pytest_asyncio.fixture
async def live_file(path: Path) -> AsyncIterator[SqliteFile]:
    file = SqliteFile(path, clock=SystemClock())
    await file.open()
    yield file
    await file.close()


@pytest.fixture
def live_ledger(live_file: SqliteFile) -> SqliteLedger:
    return SqliteLedger(live_file)
