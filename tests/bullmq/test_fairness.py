"""Turns between tenants on BullMQ's own priorities: the contract suite, other producers, and places that move back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from redrive.brokers.bullmq.broker import BullBroker
from redrive.core.policy.fair import Fair
from redrive.core.policy.flow import Rate
from redrive.core.policy.places import REBASE_AT
from redrive.core.ports import Broker, Clock, Outgoing
from redrive.core.units import Millis
from redrive.errors import UnsupportedError
from redrive.runtime.clock import SystemClock
from redrive.testing.contracts.fairness import FAIR, FairnessContract
from redrive.testing.samples import outgoing
from tests.redis import Redis


class TestBullFairness(FairnessContract):
    """In real time. What Redis refuses, and what a place decides once, is said by the tests below."""

    lease_ms: ClassVar[Millis] = 2_500

    @pytest.fixture(autouse=True)
    def server(self, redis: Redis) -> None:
        self.redis = redis

    def make_clock(self) -> Clock:
        return SystemClock()

    @asynccontextmanager
    async def make(self, clock: Clock, *, fair: Mapping[str, Fair], rates: Mapping[str, Rate]) -> AsyncIterator[Broker]:
        broker = BullBroker(self.redis.url, clock=clock, fair=fair, rates=rates)
        yield broker
        await broker.close()

    @asynccontextmanager
    async def unaware(self, **fair: Fair) -> AsyncIterator[BullBroker]:
        """Another process, opened, that takes turns in these queues only."""
        broker = BullBroker(self.redis.url, clock=SystemClock(), fair=fair)
        await broker.open()
        yield broker
        await broker.close()

    def key(self, part: str) -> str:
        return f"bull:{FAIR}:{part}"

    def one(self, name: str, tenant: str | None, *, queue: str = FAIR, priority: int | None = None) -> Outgoing:
        return outgoing(name, queue=queue, tenant=tenant, priority=priority)

    # ------------------------------------------------------------------------------------ what Redis does not have

    async def test_turns_by_measured_time_are_refused(self, broker: Broker) -> None:
        other = BullBroker(self.redis.url, clock=SystemClock(), fair={FAIR: Fair(cost="measured")})
        with pytest.raises(UnsupportedError, match="Nothing was consumed or published"):
            await other.open()
        await other.close()

    async def test_within_a_tenant_priority_and_age_order_the_hand_over(self, broker: Broker) -> None:
        await broker.publish([self.one("a-5", "a", priority=5), self.one("a-1", "a", priority=1)])
        await broker.publish([self.one("a-none", "a")])

        taken = await self.drain(broker, limit=2)

        # By age alone: the job's priority is its place. The message keeps its own.
        assert [("a-5", 5), ("a-1", 1), ("a-none", None)] == [(m.message.id, m.message.priority) for m in taken]

    # ------------------------------------------------------------------------------------ other producers and workers

    async def test_what_others_published_is_brought_into_the_same_order(self, broker: Broker) -> None:
        async with self.unaware() as other:
            await self.publish(other, [*["noisy"] * 700, "quiet"])
        await self.publish(broker, ["own"])

        first = await self.take(broker, 2)
        second = await self.take(broker, 4)

        assert {"noisy", "own"} == {each.message.tenant for each in first}
        assert "quiet" in {each.message.tenant for each in second}
        assert 0 == self.redis.ask("LLEN", self.key("wait"))

    async def test_a_priority_of_another_producer_does_not_go_first(self, broker: Broker) -> None:
        async with self.unaware() as other:
            await other.publish([self.one(f"n-{place}", "noisy", priority=1) for place in range(20)])
        await self.publish(broker, ["quiet"] * 20)

        order = [each.message.tenant for each in await self.drain(broker, limit=5, most=20)]

        assert {"noisy": 10, "quiet": 10} == pytest.approx(dict(Counter(order)), abs=2)

    async def test_whoever_takes_by_priority_takes_turns(self, broker: Broker) -> None:
        await self.publish(broker, ["noisy"] * 100)
        await self.publish(broker, ["quiet"] * 5)

        async with self.unaware() as stock:
            order = [each.message.tenant for each in await self.take(stock, 10)]

        assert {"noisy": 5, "quiet": 5} == Counter(order)

    async def test_virtual_time_follows_starts_nobody_told_of(self, broker: Broker) -> None:
        await self.publish(broker, ["busy"] * 100)
        async with self.unaware() as stock:
            await self.drain(stock, limit=10, most=60)
        await self.publish(broker, ["away"] * 20)

        order = [each.message.tenant for each in await self.drain(broker, limit=5, most=20)]

        assert {"busy": 10, "away": 10} == pytest.approx(dict(Counter(order)), abs=2)

    async def test_a_paused_queue_keeps_what_others_published(self, broker: Broker) -> None:
        async with self.unaware() as other:
            await self.publish(other, ["a", "b"])
        self.redis.ask("HSET", self.key("meta"), "paused", "1")

        none = await broker.receive(FAIR, limit=5, lease_ms=self.lease_ms, worker="w1", wait_ms=0)
        held = self.redis.ask("LLEN", self.key("wait"))
        self.redis.ask("HDEL", self.key("meta"), "paused")

        assert ([], 2) == (none, held)
        assert 2 == len(await self.take(broker, 5))

    async def test_it_is_known_who_waits_and_who_was_served(self, broker: Broker) -> None:
        assert isinstance(broker, BullBroker)
        await self.publish(broker, ["noisy"] * 1_200 + ["quiet"])
        await self.end(broker, await self.take(broker, 4))

        noisy, quiet = await broker.standings(FAIR, limit=10)

        assert ("noisy", 1_197, 3) == (noisy.name, noisy.waiting, noisy.record.total_processed)
        assert ("quiet", 0, 1) == (quiet.name, quiet.waiting, quiet.record.total_processed)
        assert (noisy.record.consecutive_batch_count, quiet.record.consecutive_batch_count) in [(2, 0), (3, 0), (1, 0)]
        assert noisy.record.last_processed_at

    # ------------------------------------------------------------------------------------ places

    async def test_places_move_back_in_steps_and_the_order_stays(self, broker: Broker) -> None:
        await self.publish(broker, ["busy"] * 3)
        in_hand = await self.take(broker, 3)
        await self.publish(broker, ["busy", *["deep"] * 1_500])
        self.move_on(REBASE_AT)
        before = await broker.peek(FAIR, limit=2_000)

        await self.publish(broker, ["deep", "new"])
        order = await self.drain(broker, limit=1, most=4)
        rest = await self.drain(broker, limit=50)

        assert "new" in {each.message.tenant for each in order}
        deep = [each.message.id for each in [*order, *rest] if each.message.tenant == "deep"]
        assert [m.id for m in before if m.tenant == "deep"] == deep[:-1]
        assert 3 == len(in_hand)
        assert self.now() < REBASE_AT // 4

    async def test_what_is_in_hand_while_places_move_back_is_next_when_it_is_lost(self, broker: Broker) -> None:
        await self.publish(broker, ["lost"])
        await self.take(broker, 1)
        await self.publish(broker, ["other"] * 50)
        self.move_on(REBASE_AT)
        self.redis.ask("HINCRBY", self.key("m-0"), "priority", REBASE_AT)
        await self.publish(broker, ["other"])
        async with asyncio.timeout(30):
            while self.redis.ask("LLEN", self.key("active")):
                await asyncio.sleep(0.05)  # sleep: until it is looked at again

        taken = await self.drain(broker, limit=1, most=4)

        assert "lost" in {each.message.tenant for each in taken}

    def move_on(self, by: int) -> None:
        """As if so much virtual time had passed: all that waits, and all that is known."""
        for part in ("prioritized", "redrive:ends"):
            scale = 2**32 if part == "prioritized" else 1
            found: list[Any] = self.redis.ask("ZRANGE", self.key(part), 0, -1, "WITHSCORES")
            for member, score in zip(found[::2], found[1::2], strict=True):
                self.redis.ask("ZADD", self.key(part), float(score) + by * scale, member)
                if scale > 1:
                    self.redis.ask("HINCRBY", f"{self.key('')}{member.decode()}", "priority", by)
        self.redis.ask("HSET", self.key("redrive:turns"), "now", self.now() + by)

    def now(self) -> int:
        return int(self.redis.ask("HGET", self.key("redrive:turns"), "now") or 1)
