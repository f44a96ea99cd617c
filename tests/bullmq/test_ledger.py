"""The stepwise ledger over Redis keeps the contract of every ledger: broker and claims there, letters in a file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from redrive.brokers.bullmq.broker import BullBroker
from redrive.core.ports import Clock
from redrive.runtime.ledger import OrderedLedger
from redrive.sqlite import SqliteFile
from redrive.stores.redis.claims import RedisClaimStore
from redrive.stores.sqlite import SqliteJobStore, SqliteLetterStore
from redrive.testing.contracts import ForwardContract, LedgerContract, LedgerParts
from tests.redis import OnRedis


class LedgerOnRedis(OnRedis):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[LedgerParts]:
        with TemporaryDirectory(prefix="redrive-contract-") as folder:
            file = SqliteFile(Path(folder) / "store.db", clock=clock, durability="normal")
            broker, claims = BullBroker(self.url, clock=clock), RedisClaimStore(self.url, clock=clock)
            letters, jobs = SqliteLetterStore(file), SqliteJobStore(file)
            ledger = OrderedLedger(broker=broker, claims=claims, letters=letters, jobs=jobs, clock=clock)
            await jobs.open()
            await ledger.open()
            yield LedgerParts(ledger=ledger, broker=broker, claims=claims, letters=letters, jobs=jobs)
            await ledger.close()
            await jobs.close()


class TestLedger(LedgerOnRedis, LedgerContract):
    pass


class TestLedgerForward(LedgerOnRedis, ForwardContract):
    pass
