"""The embedded broker and stores keep every contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from redrive.brokers.sqlite import SqliteBroker
from redrive.core.ports import Broker, ClaimStore, Clock, LetterStore
from redrive.sqlite import SqliteFile
from redrive.stores.sqlite import SqliteClaimStore, SqliteGroupStore, SqliteJobStore, SqliteLetterStore
from redrive.testing.contracts.broker import BrokerContract
from redrive.testing.contracts.claims import ClaimStoreContract
from redrive.testing.contracts.groups import GroupParts, GroupStoreContract
from redrive.testing.contracts.jobs import JobParts, JobStoreContract
from redrive.testing.contracts.letters import LetterStoreContract


@asynccontextmanager
async def fresh_file(clock: Clock) -> AsyncIterator[SqliteFile]:
    with TemporaryDirectory(prefix="redrive-contract-") as folder:
        file = SqliteFile(Path(folder) / "contract.db", clock=clock)
        await file.open()
        yield file
        await file.close()


class TestSqliteBroker(BrokerContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[Broker]:
        async with fresh_file(clock) as self.file:
            yield SqliteBroker(self.file)

    async def restart(self, broker: Broker) -> Broker | None:
        await broker.close()
        again = SqliteBroker(self.file)
        await again.open()
        return again


class TestSqliteClaimStore(ClaimStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[ClaimStore]:
        async with fresh_file(clock) as file:
            yield SqliteClaimStore(file)


class TestSqliteLetterStore(LetterStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[LetterStore]:
        async with fresh_file(clock) as file:
            yield SqliteLetterStore(file)


class TestSqliteJobStore(JobStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[JobParts]:
        async with fresh_file(clock) as file:
            yield JobParts(jobs=SqliteJobStore(file), letters=SqliteLetterStore(file))


class TestSqliteGroupStore(GroupStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[GroupParts]:
        async with fresh_file(clock) as file:
            yield GroupParts(groups=SqliteGroupStore(file), letters=SqliteLetterStore(file))
