"""The brokers that take turns between tenants keep that contract (cases FA-01, FA-02, FA-05)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from redrive.brokers.memory import MemoryBroker
from redrive.brokers.sqlite import SqliteBroker
from redrive.core.policy.fair import Fair
from redrive.core.policy.flow import Rate
from redrive.core.ports import Broker, Clock
from redrive.sqlite import SqliteFile
from redrive.testing.contracts.fairness import FairnessContract


class TestMemoryIsFair(FairnessContract):
    @asynccontextmanager
    async def make(self, clock: Clock, *, fair: Mapping[str, Fair], rates: Mapping[str, Rate]) -> AsyncIterator[Broker]:
        yield MemoryBroker(clock, fair=fair, rates=rates)


class TestSqliteIsFair(FairnessContract):
    @asynccontextmanager
    async def make(self, clock: Clock, *, fair: Mapping[str, Fair], rates: Mapping[str, Rate]) -> AsyncIterator[Broker]:
        with TemporaryDirectory(prefix="redrive-contract-") as folder:
            yield SqliteBroker(SqliteFile(Path(folder) / "contract.db", clock=clock, fair=fair, rates=rates))
