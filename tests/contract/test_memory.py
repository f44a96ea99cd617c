"""The in-memory broker and stores keep every contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redrive.brokers.memory import MemoryBroker
from redrive.core.ports import Broker, Clock
from redrive.testing.contracts.broker import BrokerContract


class TestMemoryBroker(BrokerContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[Broker]:
        yield MemoryBroker(clock)
