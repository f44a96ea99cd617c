"""BullMQ's queues in Redis keep the broker contract: on Redis 7 and on Valkey 8."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redrive.brokers.bullmq.broker import BullBroker
from redrive.core.ports import Broker, Clock
from redrive.runtime.clock import SystemClock
from redrive.testing.contracts.broker import BrokerContract
from tests.redis import OnRedis


class TestBullBroker(OnRedis, BrokerContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[Broker]:
        broker = BullBroker(self.url, clock=clock)
        self.made = [broker]
        try:
            yield broker
        finally:
            for each in self.made:
                await each.close()

    async def restart(self, broker: Broker) -> Broker | None:
        await broker.close()
        again = BullBroker(self.url, clock=SystemClock())
        self.made.append(again)
        await again.open()
        return again
