"""Turns between tenants on RabbitMQ, 3.10 and 4.x: the contract suite, on classic queues and as redrive makes them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from redrive.brokers.rabbitmq.broker import RabbitBroker
from redrive.core import settlement
from redrive.core.policy.fair import Fair
from redrive.core.policy.flow import Rate
from redrive.core.ports import Broker, Clock, Received, Settle
from redrive.core.topology.bundle import bundle_of
from redrive.core.topology.model import EMPTY, Queue, Topology
from redrive.core.units import Millis
from redrive.errors import UnsupportedError
from redrive.runtime.clock import SystemClock
from redrive.testing.contracts.fairness import (
    FAIR,
    NARROW,
    ODD_TENANTS,
    RATED,
    SERVED_FAIR,
    WEIGHTED,
    WHY,
    FairnessContract,
)
from tests.rabbit import Rabbit
from tests.rabbitmq.connected import PATIENCE_S, depth

CLASSIC = Topology(
    queues=tuple(Queue(name=name, arguments={"x-queue-type": "classic"}) for name in (FAIR, WEIGHTED, RATED))
)

IN_FRONT = 12
"""So few are in the short queue, whatever lies behind it, where little is taken at a time."""


def _is_sorted(broker: Broker, queue: str) -> bool:
    """Whether its sorter has begun, if it needs one: on a busy machine that takes more than a second."""
    assert isinstance(broker, RabbitBroker)
    return broker._bundles.of(queue) is None or broker._bundles.round_of(queue) is not None


class RabbitFairness(FairnessContract):
    """In real time. A take gets what is in the short queue at that moment, so it is repeated until it is full, or
    nothing waits any more.
    """

    arrival_ms: ClassVar[Millis] = 2_000
    topology: ClassVar[Topology] = EMPTY

    @pytest.fixture(autouse=True)
    def server(self, rabbit: Rabbit) -> None:
        self.url = rabbit.url

    def make_clock(self) -> Clock:
        return SystemClock()

    @asynccontextmanager
    async def make(self, clock: Clock, *, fair: Mapping[str, Fair], rates: Mapping[str, Rate]) -> AsyncIterator[Broker]:
        kept = {queue: each for queue, each in fair.items() if not each.has_concurrency}
        broker = RabbitBroker(self.url, clock=clock, topology=self.topology, fair=kept)
        yield broker
        await broker.close()

    async def take(self, broker: Broker, limit: int, *, queue: str = FAIR) -> list[Received]:
        taken: list[Received] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(taken) < limit:
                is_sorted = _is_sorted(broker, queue)
                more = await broker.receive(
                    queue, limit=limit - len(taken), lease_ms=self.lease_ms, worker="w1", wait_ms=self.arrival_ms
                )
                taken += more
                if not more and is_sorted:
                    break
        return taken

    # ------------------------------------------------------------------------------------ what differs, and why

    async def test_one_message_comes_next_whatever_lies_before_it(self, broker: Broker) -> None:
        """Next but for the few that are in the short queue already."""
        await self.publish(broker, ["noisy"] * 300)
        in_hand = await self.take(broker, 4)
        await self.publish(broker, ["quiet"])

        taken = await self.take(broker, IN_FRONT)

        assert {"noisy"} == {each.message.tenant for each in in_hand}
        assert "quiet" in {each.message.tenant for each in taken}

    async def test_a_tenant_that_was_away_is_not_paid_for_it(self, broker: Broker) -> None:
        """As the suite's, but for what is on its way already."""
        await self.publish(broker, ["busy"] * 150)
        await self.drain(broker, limit=5, most=60)
        await self.publish(broker, ["away"] * 30)
        on_its_way = depth(self.url, bundle_of(FAIR).next)

        order = [each.message.tenant for each in await self.drain(broker, limit=5, most=on_its_way + IN_FRONT + 20)]

        begun = order.index("away")
        assert begun <= on_its_way + IN_FRONT
        assert {"busy": 10, "away": 10} == pytest.approx(dict(Counter(order[begun : begun + 20])), abs=1)

    async def test_odd_tenants_have_their_turn_and_no_tenant_is_one(self, broker: Broker) -> None:
        await self.publish(broker, [*[None] * 100, *ODD_TENANTS])

        first = await self.take(broker, 12 + IN_FRONT)
        rest = await self.drain(broker, limit=50)

        assert set(ODD_TENANTS[2:]) <= {each.message.tenant for each in first}
        assert 100 + len(ODD_TENANTS) == len(first) + len(rest)

    async def test_a_tenants_concurrency_holds_up_only_that_tenant(self, broker: Broker) -> None:
        """Nobody knows of all workers what they have in hand: refused."""
        refused = RabbitBroker(self.url, clock=SystemClock(), fair={NARROW: SERVED_FAIR[NARROW]})
        with pytest.raises(UnsupportedError, match="Nothing was consumed or published"):
            await refused.open()
        await refused.close()

    async def test_within_a_tenant_priority_and_age_order_the_hand_over(self, broker: Broker) -> None:
        """By age alone: RabbitMQ's priorities are not ours (`Features.priorities`)."""
        await broker.publish([self.one("b-1", "b", priority=1)])
        await broker.publish([self.one("a-5", "a", priority=5), self.one("a-1", "a", priority=1)])
        await broker.publish([self.one("a-none", "a"), self.one("a-5b", "a", priority=5)])

        order = [each.message.id for each in await self.drain(broker, limit=2)]

        assert ["a-5", "a-1", "a-none", "a-5b"] == [name for name in order if name.startswith("a")]

    async def test_what_comes_back_waits_for_its_tenants_turn(self, broker: Broker, clock: Clock) -> None:
        """A retry takes its tenant's next turn. What is handed back unstarted keeps the turn it had: it goes first."""
        await self.publish(broker, ["failing"] * 20 + ["good"] * 20)
        taken = await self.take(broker, 6)
        again = settlement.Retry(due_at=clock.now(), reason=WHY)
        back = settlement.Requeue(due_at=clock.now(), reason=WHY)
        ends = [again if each.message.tenant == "failing" else back for each in taken]
        await broker.settle([Settle(lease=each.lease, settlement=end) for each, end in zip(taken, ends, strict=True)])

        order = [each.message.tenant for each in await self.drain(broker, limit=5)]

        handed_back = sum(each.message.tenant == "good" for each in taken)
        assert Counter({"failing": 20, "good": 20}) == Counter(order)
        assert handed_back + 7 <= order[:20].count("good") <= handed_back + 11

    async def test_a_lease_that_ended_waits_for_its_tenants_turn(self, broker: Broker, clock: Clock) -> None:
        """There are no leases: what a connection held that is gone keeps the turn it had, and is handed out first."""
        await self.publish(broker, ["a"] * 4)
        held = await self.take(broker, 4)
        await self.publish(broker, ["b"] * 4)
        await broker.close()

        async with self.make(clock, fair=SERVED_FAIR, rates={}) as again:
            await again.open()
            taken = await self.drain(again, limit=2)

        assert 4 == len(held)
        assert Counter({"a": 4, "b": 4}) == Counter(each.message.tenant for each in taken)
        assert {True} == {each.redelivered for each in taken if each.message.tenant == "a"}

    async def test_nothing_is_idle_while_something_waits(self, broker: Broker) -> None:
        """As the suite's, without a third take that only waits."""
        await self.publish(broker, ["a"] * 9 + ["b"])

        assert [6, 4] == [len(await self.take(broker, 6)) for _ in range(2)]

    async def test_a_tenants_rate_holds_up_only_that_tenant(self, broker: Broker, clock: Clock) -> None:
        """A new sorter counts the rate as used up: there may have been another one a moment ago."""
        await self.publish(broker, ["limited"] * 10 + ["free"] * 30, queue=RATED)

        first = await self.drain(broker, limit=4, queue=RATED)
        await self.pass_time(clock, 11_000)
        second = await self.drain(broker, limit=4, queue=RATED)

        assert {"free": 30} == Counter(each.message.tenant for each in first)
        assert {"limited": 2} == Counter(each.message.tenant for each in second)

    async def test_who_waits_gets_a_held_message_when_it_may_start(self, broker: Broker, clock: Clock) -> None:
        await self.publish(broker, ["limited"] * 3, queue=RATED)
        begun = clock.now()

        taken = await broker.receive(RATED, limit=4, lease_ms=self.lease_ms, worker="w1", wait_ms=30_000)

        assert taken
        assert 9_500 <= clock.now() - begun <= 15_000


class TestFairnessOnClassicQueues(RabbitFairness):
    topology = CLASSIC


class TestFairness(RabbitFairness):
    """Quorum queues, as redrive makes them."""

    async def test_who_is_busy_has_one_spare_message_at_hand(self, broker: Broker) -> None:
        """So that no slot waits for a round trip; while it is not known to be busy, none."""
        assert isinstance(broker, RabbitBroker)
        await self.publish(broker, ["a"] * 300)
        await self.end(broker, await self.take(broker, 1))
        inbox = broker._inboxes[FAIR]
        before = inbox._prefetch

        async with asyncio.timeout(PATIENCE_S):
            while inbox._prefetch == before:
                await self.end(broker, await self.take(broker, 1))
                await self.publish(broker, ["a"])

        assert (1, 2) == (before, inbox._prefetch)
