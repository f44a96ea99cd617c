"""RabbitMQ keeps the broker contract: 3.10 and 4.x, quorum queues as redrive makes them, and classic ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from redrive.brokers.rabbitmq.broker import RabbitBroker
from redrive.core.ports import Broker, Clock, Depth, Received
from redrive.core.topology.model import EMPTY, Queue, Topology
from redrive.core.units import Millis
from redrive.runtime.clock import SystemClock
from redrive.testing.contracts.broker import BrokerContract
from redrive.testing.samples import QUEUE
from tests.rabbit import Rabbit

CLASSIC = Topology(queues=(Queue(name=QUEUE, arguments={"x-queue-type": "classic"}),))


class RabbitContract(BrokerContract):
    """In real time, over a network: a message takes a moment to arrive, and the first of several arrives before the
    others.
    """

    lease_ms: ClassVar[Millis] = 500
    arrival_ms: ClassVar[Millis] = 1_000
    topology: ClassVar[Topology] = EMPTY

    @pytest.fixture(autouse=True)
    def server(self, rabbit: Rabbit) -> None:
        self.url = rabbit.url

    def make_clock(self) -> Clock:
        return SystemClock()

    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[Broker]:
        broker = RabbitBroker(self.url, clock=clock, topology=self.topology)
        self.made = [broker]
        try:
            yield broker
        finally:
            for each in self.made:
                await each.close()

    async def restart(self, broker: Broker) -> Broker | None:
        await broker.close()
        again = RabbitBroker(self.url, clock=SystemClock(), topology=self.topology)
        self.made.append(again)
        await again.open()
        return again

    async def take(self, broker: Broker, queue: str = QUEUE, *, limit: int = 10, worker: str = "w1") -> list[Received]:
        taken: list[Received] = []
        wait_ms = self.arrival_ms
        while len(taken) < limit:
            more = await broker.receive(
                queue, limit=limit - len(taken), lease_ms=self.lease_ms, worker=worker, wait_ms=wait_ms
            )
            taken += more
            if not more and not await self.is_waiting(broker, queue):
                break
            wait_ms = 100
        return taken

    async def is_waiting(self, broker: Broker, queue: str) -> bool:
        """Whether something can be handed over."""
        return any(depth.ready for depth in await broker.depths() if depth.queue == queue)

    async def depths(self, broker: Broker) -> list[Depth]:
        """Once they stand still: the broker counts what it was told a moment later, and nobody is told when."""
        last = await super().depths(broker)
        alike = 0
        while alike < 5:
            await asyncio.sleep(0.1)  # sleep: between two looks
            seen = await super().depths(broker)
            alike = alike + 1 if seen == last else 0
            last = seen
        return last


class TestQuorum(RabbitContract):
    """Queues in the safe shape."""


class TestClassic(RabbitContract):
    """Queues somebody has declared as classic ones."""

    topology: ClassVar[Topology] = CLASSIC
