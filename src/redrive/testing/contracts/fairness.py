"""FairnessContract: turns between tenants, their own limits, and rates that all receivers of a queue share.

For brokers with `Features.fair`; the tests of a shared rate are for those with `Features.shared_rates`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final

import pytest
import pytest_asyncio

from redrive.core import settlement
from redrive.core.policy.fair import Fair
from redrive.core.policy.flow import Rate
from redrive.core.ports import Broker, Clock, Outgoing, Received, Settle
from redrive.core.settlement import Reason
from redrive.core.units import Millis
from redrive.testing.clock import FakeClock
from redrive.testing.contracts.base import Contract
from redrive.testing.samples import outgoing

WHY: Final = Reason(code="TEST", text="the suite asked for it")

FAIR: Final = "fair"
WEIGHTED: Final = "weighted"
RATED: Final = "rated"
NARROW: Final = "narrow"
PACED: Final = "paced"
PLAIN: Final = "plain"

SERVED_FAIR: Final[Mapping[str, Fair]] = {
    FAIR: Fair(),
    WEIGHTED: Fair(weights={"one": 1, "two": 2, "four": 4}),
    RATED: Fair(rate={"limited": "2 per 10 s"}),
    NARROW: Fair(concurrency={"limited": 2}),
}
RATES: Final[Mapping[str, Rate]] = {PACED: Rate(count=5, per_ms=2_000)}

ODD_TENANTS: Final = ("", "  ", "42", "Acme", "acme", "A", "x" * 10_240, "a/b:c*", "nul\x00in", "\ud800", "😀")


class FairnessContract(Contract):
    """Subclass, say how to `make` a broker that serves these queues so, inherit the tests."""

    def make(
        self, clock: Clock, *, fair: Mapping[str, Fair], rates: Mapping[str, Rate]
    ) -> AbstractAsyncContextManager[Broker]:
        """A fresh, empty broker, not yet opened."""
        raise AssertionError(f"{type(self).__name__} has to say how to make a broker on {clock} with {fair}, {rates}")

    @pytest_asyncio.fixture
    async def broker(self, clock: Clock) -> AsyncIterator[Broker]:
        async with self.make(clock, fair=SERVED_FAIR, rates=RATES) as broker:
            await broker.open()
            yield broker
            await broker.close()

    async def publish(self, broker: Broker, tenants: Iterable[str | None], *, queue: str = FAIR) -> None:
        """One message for each, named after its tenant and its place."""
        await broker.publish([self.one(f"m-{place}", tenant, queue=queue) for place, tenant in enumerate(tenants)])

    def one(self, name: str, tenant: str | None, *, queue: str = FAIR, priority: int | None = None) -> Outgoing:
        return outgoing(name, queue=queue, tenant=tenant, priority=priority)

    async def take(self, broker: Broker, limit: int, *, queue: str = FAIR) -> list[Received]:
        """Receive what can be handed out now."""
        return await broker.receive(queue, limit=limit, lease_ms=self.lease_ms, worker="w1", wait_ms=self.arrival_ms)

    async def end(self, broker: Broker, taken: Iterable[Received]) -> None:
        await broker.settle([Settle(lease=each.lease, settlement=settlement.ACK) for each in taken])

    async def drain(self, broker: Broker, *, limit: int, queue: str = FAIR, most: int = 10_000) -> list[Received]:
        """Take and end so many at once until there is nothing left, or `most` were taken."""
        order: list[Received] = []
        while len(order) < most and (taken := await self.take(broker, limit, queue=queue)):
            order += taken
            await self.end(broker, taken)
        return order

    # ------------------------------------------------------------------------------------------------- turns

    async def test_the_broker_says_that_it_takes_turns(self, broker: Broker) -> None:
        assert broker.features.fair

    async def test_one_message_comes_next_whatever_lies_before_it(self, broker: Broker) -> None:
        await self.publish(broker, ["noisy"] * 300)
        in_hand = await self.take(broker, 4)
        await self.publish(broker, ["quiet"])

        taken = await self.take(broker, 2)

        assert {"noisy"} == {each.message.tenant for each in in_hand}
        assert "quiet" in {each.message.tenant for each in taken}

    @pytest.mark.parametrize("limit", [1, 3, 50])
    async def test_tenants_that_wait_take_turns(self, broker: Broker, limit: int) -> None:
        tenants = ["a"] * 40 + ["b"] * 40 + ["c"] * 40
        await self.publish(broker, tenants)

        order = [each.message.tenant for each in await self.drain(broker, limit=limit)]

        assert Counter(tenants) == Counter(order)
        for start in range(0, 120, 3):
            assert {"a", "b", "c"} == set(order[start : start + 3])

    async def test_a_tenant_that_was_away_is_not_paid_for_it(self, broker: Broker) -> None:
        await self.publish(broker, ["busy"] * 100)
        await self.drain(broker, limit=5, most=60)
        await self.publish(broker, ["away"] * 30)

        order = [each.message.tenant for each in await self.drain(broker, limit=5, most=20)]

        assert {"busy": 10, "away": 10} == pytest.approx(dict(Counter(order)), abs=1)

    @pytest.mark.parametrize("limit", [1, 7, 50])
    async def test_never_more_in_a_row_than_the_batch_while_another_waits(self, broker: Broker, limit: int) -> None:
        await self.publish(broker, ["four"] * 80 + ["one"] * 20, queue=WEIGHTED)

        order = [each.message.tenant for each in await self.drain(broker, limit=limit, queue=WEIGHTED)]

        left = Counter(order)
        for place, tenant in enumerate(order):
            others = sum(left.values()) - left[tenant]
            row = order[max(0, place - 3) : place + 1]
            assert others == 0 or len(row) < 4 or set(row) != {tenant}
            left[tenant] -= 1

    @pytest.mark.parametrize("limit", [1, 10])
    async def test_weights_one_two_four_give_such_shares(self, broker: Broker, limit: int) -> None:
        await self.publish(broker, ["one"] * 150 + ["two"] * 150 + ["four"] * 150, queue=WEIGHTED)

        taken = (await self.drain(broker, limit=limit, queue=WEIGHTED, most=210))[:210]

        shares = Counter(each.message.tenant for each in taken)
        assert {"one": 30, "two": 60, "four": 120} == pytest.approx(dict(shares), rel=0.1)

    async def test_within_a_tenant_priority_and_age_order_the_hand_over(self, broker: Broker) -> None:
        await broker.publish([self.one("b-1", "b", priority=1)])
        await broker.publish([self.one("a-5", "a", priority=5), self.one("a-1", "a", priority=1)])
        await broker.publish([self.one("a-none", "a"), self.one("a-5b", "a", priority=5)])

        order = [each.message.id for each in await self.drain(broker, limit=2)]

        assert ["a-none", "a-1", "a-5", "a-5b"] == [name for name in order if name.startswith("a")]

    async def test_nothing_is_idle_while_something_waits(self, broker: Broker) -> None:
        await self.publish(broker, ["a"] * 9 + ["b"])

        assert [6, 4, 0] == [len(await self.take(broker, 6)) for _ in range(3)]

    async def test_odd_tenants_have_their_turn_and_no_tenant_is_one(self, broker: Broker) -> None:
        await self.publish(broker, [*[None] * 100, *ODD_TENANTS])

        first = await self.take(broker, 12)
        rest = await self.drain(broker, limit=50)

        assert set(ODD_TENANTS[2:]) <= {each.message.tenant for each in first}
        assert 100 + len(ODD_TENANTS) == len(first) + len(rest)

    async def test_a_queue_that_is_not_fair_is_first_in_first_out(self, broker: Broker) -> None:
        tenants = ["a", "a", "a", "b", "a", "c"]
        await self.publish(broker, tenants, queue=PLAIN)

        assert tenants == [each.message.tenant for each in await self.take(broker, 10, queue=PLAIN)]

    # ------------------------------------------------------------------------------------------------- coming back

    async def test_what_comes_back_waits_for_its_tenants_turn(self, broker: Broker, clock: Clock) -> None:
        await self.publish(broker, ["failing"] * 20 + ["good"] * 20)
        taken = await self.take(broker, 6)
        again = settlement.Retry(due_at=clock.now(), reason=WHY)
        back = settlement.Requeue(due_at=clock.now(), reason=WHY)
        ends = [again if each.message.tenant == "failing" else back for each in taken]
        await broker.settle([Settle(lease=each.lease, settlement=end) for each, end in zip(taken, ends, strict=True)])

        order = [each.message.tenant for each in await self.drain(broker, limit=5)]

        assert Counter({"failing": 20, "good": 20}) == Counter(order)
        assert {10} == {order[start : start + 20].count("good") for start in (0, 20)}

    async def test_what_falls_due_waits_for_its_tenants_turn(self, broker: Broker, clock: Clock) -> None:
        later = [outgoing(f"l-{place}", queue=FAIR, tenant="later", due_at=clock.now() + 1_000) for place in range(10)]
        await broker.publish(later)
        await self.publish(broker, ["now"] * 20)
        await self.pass_time(clock, 1_500)

        order = [each.message.tenant for each in await self.take(broker, 10)]

        assert {"now": 5, "later": 5} == pytest.approx(dict(Counter(order)), abs=1)

    async def test_a_lease_that_ended_waits_for_its_tenants_turn(self, broker: Broker, clock: Clock) -> None:
        await self.publish(broker, ["a"] * 4)
        await self.take(broker, 4)
        await self.publish(broker, ["b"] * 4)
        await self.pass_time(clock, self.lease_ms + 1)

        taken = await self.drain(broker, limit=2)

        assert Counter({"a": 4, "b": 4}) == Counter(each.message.tenant for each in taken)
        assert {"a": {2}, "b": {1}} == {
            tenant: {each.starts for each in taken if each.message.tenant == tenant} for tenant in ("a", "b")
        }

    async def test_peeking_shows_the_order_in_which_turns_would_be_taken(self, broker: Broker) -> None:
        await self.publish(broker, ["a"] * 9 + ["b"] * 3 + ["c"])
        await self.end(broker, await self.take(broker, 2))

        shown = [message.id for message in await broker.peek(FAIR, limit=8)]

        assert shown == [each.message.id for each in await self.take(broker, 8)]

    async def test_a_discarded_message_takes_no_turn(self, broker: Broker) -> None:
        await self.publish(broker, ["gone"] * 5 + ["stays"] * 5)

        assert 5 == await broker.discard(FAIR, lambda message: message.tenant == "gone", limit=100)

        assert ["stays"] * 5 == [each.message.tenant for each in await self.take(broker, 10)]

    # ------------------------------------------------------------------------------------------------- limits

    async def test_a_tenants_rate_holds_up_only_that_tenant(self, broker: Broker, clock: Clock) -> None:
        await self.publish(broker, ["limited"] * 10 + ["free"] * 30, queue=RATED)

        first = await self.drain(broker, limit=4, queue=RATED)
        await self.pass_time(clock, 11_000)
        second = await self.drain(broker, limit=4, queue=RATED)

        assert {"limited": 2, "free": 30} == Counter(each.message.tenant for each in first)
        assert {"limited": 2} == Counter(each.message.tenant for each in second)

    async def test_a_tenants_concurrency_holds_up_only_that_tenant(self, broker: Broker) -> None:
        await self.publish(broker, ["limited"] * 10 + ["free"] * 5, queue=NARROW)

        taken = [*await self.take(broker, 4, queue=NARROW), *await self.take(broker, 20, queue=NARROW)]
        none = await self.take(broker, 20, queue=NARROW)
        await self.end(broker, [next(each for each in taken if each.message.tenant == "limited")])
        one = await self.take(broker, 20, queue=NARROW)

        assert {"limited": 2, "free": 5} == Counter(each.message.tenant for each in taken)
        assert [] == none
        assert ["limited"] == [each.message.tenant for each in one]

    async def test_who_waits_gets_a_held_message_when_it_may_start(self, broker: Broker, clock: Clock) -> None:
        await self.publish(broker, ["limited"] * 3, queue=RATED)
        await self.drain(broker, limit=4, queue=RATED)
        begun = clock.now()
        waiting = asyncio.create_task(
            broker.receive(RATED, limit=4, lease_ms=self.lease_ms, worker="w1", wait_ms=30_000)
        )

        await self.until(waiting, clock, limit_ms=30_000)

        assert 1 == len(waiting.result())
        assert 9_500 <= clock.now() - begun <= 15_000

    async def test_a_shared_rate_is_never_exceeded_and_nearly_used(self, broker: Broker, clock: Clock) -> None:
        if not broker.features.shared_rates or not isinstance(clock, FakeClock):
            return
        await self.publish(broker, ["a"] * 200, queue=PACED)
        starts: list[Millis] = []

        for turn in range(1_000):
            taken = await self.take(broker, 1 + turn % 7, queue=PACED)
            starts += [clock.now()] * len(taken)
            await self.end(broker, taken)
            await self.pass_time(clock, 20)

        assert max(sum(at <= other < at + 2_000 for other in starts) for at in starts) <= 5
        assert len(starts) >= 0.9 * 50

    async def until(self, task: asyncio.Task[list[Received]], clock: Clock, *, limit_ms: Millis) -> None:
        """Wait for the task, letting at most about `limit_ms` pass."""
        if isinstance(clock, FakeClock):
            await clock.run_until(task.done, limit_ms=limit_ms)
        else:
            await asyncio.wait_for(asyncio.shield(task), limit_ms / 1_000 + 30)
