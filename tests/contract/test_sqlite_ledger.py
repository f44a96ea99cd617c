"""The embedded ledger, one transaction a call, keeps the contract of every ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from redrive.brokers.sqlite import SqliteBroker
from redrive.core.ports import Clock
from redrive.sqlite import SqliteFile
from redrive.sqlite.ledger import SqliteLedger
from redrive.stores.sqlite import SqliteClaimStore, SqliteJobStore, SqliteLetterStore
from redrive.testing.contracts import ForwardContract, LedgerContract, LedgerParts


@asynccontextmanager
async def sqlite_parts(path: Path, clock: Clock) -> AsyncIterator[LedgerParts]:
    file = SqliteFile(path, clock=clock)
    ledger = SqliteLedger(file)
    await ledger.open()
    yield LedgerParts(
        ledger=ledger,
        broker=SqliteBroker(file),
        claims=SqliteClaimStore(file),
        letters=SqliteLetterStore(file),
        jobs=SqliteJobStore(file),
    )
    await ledger.close()


class TestSqliteLedger(LedgerContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[LedgerParts]:
        with TemporaryDirectory(prefix="redrive-contract-") as folder:
            self.path = Path(folder) / "contract.db"
            async with sqlite_parts(self.path, clock) as parts:
                yield parts

    async def effects(self, parts: LedgerParts) -> Sequence[Any]:
        with closing(sqlite3.connect(self.path)) as outside:
            return [name for (name,) in outside.execute("SELECT name FROM effects")]


class TestSqliteForward(ForwardContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[LedgerParts]:
        with TemporaryDirectory(prefix="redrive-contract-") as folder:
            async with sqlite_parts(Path(folder) / "contract.db", clock) as parts:
                yield parts
