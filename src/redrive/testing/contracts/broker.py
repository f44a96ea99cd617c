"""BrokerContract: hand-over, order, leases, and messages that come back exactly as they went in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest
import pytest_asyncio

from redrive.core import settlement
from redrive.core.letters.letter import AttemptOutcome
from redrive.core.ports import Broker, Clock, Depth, Lease, Outgoing, Published, Received, Settle
from redrive.core.settlement import Reason, Settlement
from redrive.core.units import Millis
from redrive.errors import InvalidMessageError, UnsupportedError
from redrive.testing.clock import FakeClock
from redrive.testing.contracts.base import Contract
from redrive.testing.samples import (
    HARD_BODIES,
    HARD_NAMES,
    QUEUE,
    attempt,
    hard_message,
    kinds,
    message,
    outgoing,
)

WHY = Reason(code="TEST", text="the suite asked for it")
LARGEST_TRIED_BYTES = 64 * 1024 * 1024
WAKE_LIMIT_S = 30.0


class BrokerContract(Contract):
    """Subclass, say how to `make` a broker, inherit the tests."""

    def make(self, clock: Clock) -> AbstractAsyncContextManager[Broker]:
        """A fresh, empty broker, not yet opened."""
        raise AssertionError(f"{type(self).__name__} has to say how to make a broker on {clock}")

    async def restart(self, broker: Broker) -> Broker | None:
        """The same broker as a new process finds it, opened; None where nothing survives the process."""
        _ = broker
        return None

    @pytest_asyncio.fixture
    async def broker(self, clock: Clock) -> AsyncIterator[Broker]:
        async with self.make(clock) as broker:
            await broker.open()
            yield broker
            await broker.close()

    async def take(self, broker: Broker, queue: str = QUEUE, *, limit: int = 10, worker: str = "w1") -> list[Received]:
        """Receive what can be handed out now."""
        return await broker.receive(queue, limit=limit, lease_ms=self.lease_ms, worker=worker, wait_ms=self.arrival_ms)

    async def take_one(self, broker: Broker, *, worker: str = "w1") -> Received:
        """Receive exactly one."""
        (received,) = await self.take(broker, limit=1, worker=worker)
        return received

    # ------------------------------------------------------------------------------------------- what comes out

    @pytest.mark.parametrize("body", HARD_BODIES.values(), ids=HARD_BODIES.keys())
    async def test_a_body_comes_back_byte_for_byte(self, broker: Broker, body: bytes) -> None:
        await broker.publish([outgoing(body=body)])

        received = await self.take_one(broker)

        assert body == received.message.body
        assert body == received.message.original_body

    async def test_every_field_header_and_property_comes_back_in_its_kind(self, broker: Broker) -> None:
        sent = hard_message()
        await broker.publish([Outgoing(queue=QUEUE, message=sent)])

        received = (await self.take_one(broker)).message

        assert sent == received
        assert kinds(sent.headers) == kinds(received.headers)

    async def test_a_message_is_unchanged_after_retries_and_requeues(self, broker: Broker, clock: Clock) -> None:
        sent = hard_message()
        await broker.publish([Outgoing(queue=QUEUE, message=sent)])

        for end in (self.retry(clock), self.requeue(clock), self.retry(clock)):
            received = await self.take_one(broker)
            assert [True] == await broker.settle([Settle(lease=received.lease, settlement=end)])
            await self.pass_time(clock, 1)
        again = (await self.take_one(broker)).message

        assert sent == again
        assert kinds(sent.headers) == kinds(again.headers)

    async def test_a_retry_may_rewrite_the_body_and_keeps_the_first_one(self, broker: Broker, clock: Clock) -> None:
        await broker.publish([outgoing(body=b"first")])

        for body in (b"second", b"third"):
            received = await self.take_one(broker)
            end = settlement.Retry(due_at=clock.now(), reason=WHY, body=body)
            await broker.settle([Settle(lease=received.lease, settlement=end)])
        last = (await self.take_one(broker)).message

        assert b"third" == last.body
        assert b"first" == last.original_body

    async def test_queues_with_hard_names_are_kept_apart(self, broker: Broker) -> None:
        await broker.publish([outgoing(f"m-{name}", queue=name) for name in HARD_NAMES])

        taken = {name: [received.message.id for received in await self.take(broker, name)] for name in HARD_NAMES}

        assert {name: [f"m-{name}"] for name in HARD_NAMES} == taken

    async def test_a_body_over_the_limit_is_refused_and_nothing_of_its_batch_is_sent(self, broker: Broker) -> None:
        limit = broker.features.max_body_bytes
        assert limit >= 1_000_000
        if limit > LARGEST_TRIED_BYTES:
            return

        with pytest.raises(InvalidMessageError):
            await broker.publish([outgoing("fits"), outgoing("large", body=bytes(limit + 1))])

        assert [] == await self.take(broker)

    async def test_two_copies_of_one_message_are_two_copies(self, broker: Broker) -> None:
        assert [Published(), Published()] == await broker.publish([outgoing("m-1"), outgoing("m-1")])

        taken = await self.take(broker)

        assert ["m-1", "m-1"] == [received.message.id for received in taken]
        assert taken[0].position != taken[1].position

    async def test_once_and_digest_are_not_the_brokers_business(self, broker: Broker) -> None:
        twice = Outgoing(queue=QUEUE, message=message(), once=True, digest="ab")

        assert [Published(), Published()] == await broker.publish([twice, twice])

        assert 2 == len(await self.take(broker))

    async def test_messages_survive_a_restart_where_the_broker_is_durable(self, broker: Broker, clock: Clock) -> None:
        await broker.publish([outgoing("m-1"), outgoing("m-2", due_at=clock.now() + 1_000)])

        restarted = await self.restart(broker)

        assert broker.features.durable == (restarted is not None)
        if restarted is not None:
            assert ["m-1"] == [received.message.id for received in await self.take(restarted)]
            await self.pass_time(clock, 1_000)
            assert ["m-2"] == [received.message.id for received in await self.take(restarted)]

    # ------------------------------------------------------------------------------------------------- order

    async def test_messages_are_handed_over_first_in_first_out(self, broker: Broker) -> None:
        names = [f"m-{number}" for number in range(25)]
        await broker.publish([outgoing(name) for name in names[:20]])
        await broker.publish([outgoing(name) for name in names[20:]])

        taken = [*await self.take(broker, limit=7), *await self.take(broker, limit=50)]

        assert names == [received.message.id for received in taken]

    async def test_at_most_limit_are_handed_over(self, broker: Broker) -> None:
        await broker.publish([outgoing(f"m-{number}") for number in range(5)])

        assert 3 == len(await self.take(broker, limit=3))
        assert 2 == len(await self.take(broker, limit=3))
        assert [] == await self.take(broker, limit=3)

    async def test_smaller_priorities_go_first_and_none_before_all(self, broker: Broker) -> None:
        priorities = {"p5": 5, "p1": 1, "none": None, "p5b": 5, "p0": 0, "p2": 2}
        await broker.publish([outgoing(name, priority=priority) for name, priority in priorities.items()])

        order = [received.message.id for received in await self.take(broker)]

        if broker.features.priorities:
            assert ["none", "p0", "p1", "p2", "p5", "p5b"] == order
        else:
            assert list(priorities) == order

    async def test_a_retried_message_keeps_its_priority(self, broker: Broker, clock: Clock) -> None:
        await broker.publish([outgoing("urgent", priority=1), outgoing("later", priority=5)])
        first = await self.take_one(broker)
        await self.pass_time(clock, 1)
        await broker.settle([Settle(lease=first.lease, settlement=self.retry(clock))])

        order = [received.message.id for received in await self.take(broker)]

        assert (["urgent", "later"] if broker.features.priorities else ["later", "urgent"]) == order

    # ------------------------------------------------------------------------------------------------- delays

    async def test_a_delayed_message_is_never_early(self, broker: Broker, clock: Clock) -> None:
        await broker.publish([outgoing(due_at=clock.now() + 1_000)])

        await self.pass_time(clock, 1_000 - (1 if isinstance(clock, FakeClock) else 300))
        early = await self.receive_at_once(broker)
        await self.pass_time(clock, 1 if isinstance(clock, FakeClock) else 300)
        in_time = await self.take(broker)

        assert [] == early
        if broker.features.exact_delays:
            assert ["m-1"] == [received.message.id for received in in_time]

    async def test_a_later_due_time_blocks_no_earlier_one(self, broker: Broker, clock: Clock) -> None:
        now = clock.now()
        await broker.publish([
            outgoing("hour", due_at=now + 3_600_000), outgoing("second", due_at=now + 1_000), outgoing("now"),
        ])  # fmt: skip

        at_once = await self.take(broker)
        await broker.settle([Settle(lease=received.lease, settlement=settlement.ACK) for received in at_once])
        await self.pass_time(clock, 1_000)
        after = await self.take(broker)

        assert ["now"] == [received.message.id for received in at_once]
        if broker.features.exact_delays:
            assert ["second"] == [received.message.id for received in after]

    async def test_delayed_messages_are_handed_over_in_the_order_they_fall_due(
        self, broker: Broker, clock: Clock
    ) -> None:
        now = clock.now()
        await broker.publish([outgoing(f"in-{ms}", due_at=now + ms) for ms in (900, 300, 600)])

        await self.pass_time(clock, 1_000)

        if broker.features.exact_delays:
            assert ["in-300", "in-600", "in-900"] == [received.message.id for received in await self.take(broker)]

    async def test_a_due_time_in_the_past_is_at_once(self, broker: Broker, clock: Clock) -> None:
        await broker.publish([outgoing(due_at=clock.now() - 60_000)])

        assert 1 == len(await self.take(broker))

    @pytest.mark.parametrize("make_end", ["retry", "requeue"])
    async def test_a_settled_message_is_not_handed_out_before_its_due_time(
        self, broker: Broker, clock: Clock, make_end: str
    ) -> None:
        await broker.publish([outgoing()])
        received = await self.take_one(broker)
        end = getattr(self, make_end)(clock, delay_ms=1_000)

        await broker.settle([Settle(lease=received.lease, settlement=end)])
        early = await self.receive_at_once(broker)
        await self.pass_time(clock, 1_000)

        assert [] == early
        assert not broker.features.exact_delays or len(await self.take(broker)) == 1

    # ------------------------------------------------------------------------------------------------- waiting

    async def test_a_waiting_receiver_wakes_on_a_publish(self, broker: Broker) -> None:
        waiting = asyncio.create_task(
            broker.receive(QUEUE, limit=5, lease_ms=self.lease_ms, worker="w1", wait_ms=60_000)
        )
        await asyncio.sleep(0.02)

        await broker.publish([outgoing()])
        taken = await asyncio.wait_for(waiting, WAKE_LIMIT_S)

        assert ["m-1"] == [received.message.id for received in taken]

    async def test_a_waiting_receiver_wakes_when_a_message_falls_due(self, broker: Broker, clock: Clock) -> None:
        due_at = clock.now() + 1_000
        await broker.publish([outgoing(due_at=due_at)])
        waiting = asyncio.create_task(
            broker.receive(QUEUE, limit=5, lease_ms=self.lease_ms, worker="w1", wait_ms=60_000)
        )

        await self.wait_for(waiting, clock, limit_ms=1_000 if broker.features.exact_delays else 60_000)

        assert 1 == len(await waiting)
        assert clock.now() >= due_at

    async def test_a_receiver_gives_up_after_its_wait(self, broker: Broker, clock: Clock) -> None:
        waiting = asyncio.create_task(broker.receive(QUEUE, limit=5, lease_ms=self.lease_ms, worker="w1", wait_ms=500))

        await self.wait_for(waiting, clock, limit_ms=500)

        assert [] == await waiting

    async def test_a_cancelled_receiver_keeps_no_message(self, broker: Broker) -> None:
        waiting = asyncio.create_task(
            broker.receive(QUEUE, limit=5, lease_ms=self.lease_ms, worker="w1", wait_ms=60_000)
        )
        await asyncio.sleep(0.02)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

        await broker.publish([outgoing()])

        assert 1 == len(await self.take(broker))

    async def test_of_many_receivers_each_message_goes_to_one(self, broker: Broker) -> None:
        await broker.publish([outgoing(f"m-{number}") for number in range(60)])

        batches = await asyncio.gather(*(self.take(broker, limit=3, worker=f"w{number}") for number in range(30)))

        names = [received.message.id for batch in batches for received in batch]
        assert 60 == len(names) == len(set(names))

    # ------------------------------------------------------------------------------------------------- leases

    async def test_a_hand_over_says_what_the_broker_knows(self, broker: Broker, clock: Clock) -> None:
        await broker.publish([outgoing()])

        received = await self.take_one(broker)

        assert QUEUE == received.lease.queue
        assert (1 if broker.features.counts_starts else None) == received.starts
        assert () == received.history
        assert not received.redelivered
        if broker.features.leases and isinstance(clock, FakeClock):
            assert clock.now() + self.lease_ms == received.lease_until
        if not broker.features.leases:
            assert received.lease_until is None

    async def test_a_message_in_hand_is_handed_to_nobody_else(self, broker: Broker, clock: Clock) -> None:
        await broker.publish([outgoing()])
        await self.take_one(broker)

        await self.pass_time(clock, self.lease_ms // 2)

        assert [] == await self.take(broker, worker="w2")

    async def test_a_lease_that_ended_counts_a_lost_start_and_the_message_comes_again(
        self, broker: Broker, clock: Clock
    ) -> None:
        if not broker.features.leases:
            return
        await broker.publish([outgoing()])
        await self.take_one(broker, worker="dead-worker")

        await self.pass_time(clock, self.lease_ms)
        again = await self.take_one(broker, worker="w2")

        assert 2 == again.starts
        assert again.redelivered
        assert [(1, AttemptOutcome.INTERRUPTED, "dead-worker")] == [
            (entry.attempt, entry.outcome, entry.worker) for entry in again.history
        ]

    async def test_a_stale_lease_settles_nothing(self, broker: Broker, clock: Clock) -> None:
        if not broker.features.leases:
            return
        await broker.publish([outgoing()])
        lost = await self.take_one(broker)
        await self.pass_time(clock, self.lease_ms)
        current = await self.take_one(broker, worker="w2")

        for end in self.ends(clock):
            assert [False] == await broker.settle([Settle(lease=lost.lease, settlement=end, entry=attempt())])

        assert [True] == await broker.settle([Settle(lease=current.lease, settlement=self.retry(clock))])
        assert 3 == (await self.take_one(broker)).starts

    async def test_renewing_keeps_a_lease_and_says_which_are_lost(self, broker: Broker, clock: Clock) -> None:
        if not broker.features.leases:
            return
        await broker.publish([outgoing("lost"), outgoing("kept")])
        lost, kept = await self.take(broker)
        await self.pass_time(clock, self.lease_ms // 2)
        assert [True] == broker.renew([kept.lease], lease_ms=self.lease_ms)
        await self.pass_time(clock, self.lease_ms // 2)
        retaken = await self.take(broker, worker="w2")

        answers = broker.renew([lost.lease, kept.lease], lease_ms=self.lease_ms)

        assert ["lost"] == [received.message.id for received in retaken]
        assert [False, True] == answers

    async def test_renew_may_be_called_from_another_thread(self, broker: Broker) -> None:
        await broker.publish([outgoing()])
        received = await self.take_one(broker)

        answers = await asyncio.to_thread(broker.renew, [received.lease], lease_ms=self.lease_ms)

        assert [True] == answers

    async def test_a_settled_delivery_can_be_neither_settled_nor_renewed(self, broker: Broker, clock: Clock) -> None:
        for end in self.ends(clock):
            await broker.publish([outgoing()])
            lease = (await self.take_one(broker)).lease
            assert [True] == await broker.settle([Settle(lease=lease, settlement=end)])

            assert [False] == await broker.settle([Settle(lease=lease, settlement=settlement.ACK)])
            assert not broker.features.leases or broker.renew([lease], lease_ms=self.lease_ms) == [False]
            await self.clear(broker)

    # ------------------------------------------------------------------------------------------------- settling

    @pytest.mark.parametrize("end", [settlement.ACK, settlement.DeadLetter(reason=WHY)], ids=["ack", "dead letter"])
    async def test_an_acked_or_dead_message_leaves_the_queue(
        self, broker: Broker, clock: Clock, end: Settlement
    ) -> None:
        await broker.publish([outgoing()])
        received = await self.take_one(broker)

        assert [True] == await broker.settle([Settle(lease=received.lease, settlement=end)])

        await self.pass_time(clock, self.lease_ms)
        assert [] == await self.take(broker)
        assert [Depth(queue=QUEUE, ready=0, scheduled=0, leased=0)] == await self.depths(broker)

    async def test_a_retry_counts_its_start_and_keeps_its_entry(self, broker: Broker, clock: Clock) -> None:
        await broker.publish([outgoing()])
        entries = [attempt(1), attempt(2)]

        for entry in entries:
            received = await self.take_one(broker)
            await broker.settle([Settle(lease=received.lease, settlement=self.retry(clock), entry=entry)])
        third = await self.take_one(broker)

        assert tuple(entries) == third.history
        assert (3 if broker.features.counts_starts else None) == third.starts

    async def test_a_requeue_gives_its_start_back(self, broker: Broker, clock: Clock) -> None:
        await broker.publish([outgoing()])
        interruption = attempt(1, outcome=AttemptOutcome.INTERRUPTED)

        for entry in (None, interruption):
            received = await self.take_one(broker)
            assert [True] == await broker.settle(
                [Settle(lease=received.lease, settlement=self.requeue(clock), entry=entry)]
            )
        again = await self.take_one(broker)

        assert (1 if broker.features.counts_starts else None) == again.starts
        assert (interruption,) == again.history

    async def test_a_batch_is_answered_element_by_element(self, broker: Broker, clock: Clock) -> None:
        await broker.publish([outgoing(name) for name in ("acked", "retried", "later")])
        acked, retried, later = await self.take(broker)
        unknown = Lease(queue=QUEUE, ref=acked.lease.ref, token=acked.lease.token + 1_000)

        answers = await broker.settle([
            Settle(lease=retried.lease, settlement=self.retry(clock)),
            Settle(lease=unknown, settlement=settlement.ACK),
            Settle(lease=acked.lease, settlement=settlement.ACK),
            Settle(lease=acked.lease, settlement=self.retry(clock)),
            Settle(lease=later.lease, settlement=self.requeue(clock, delay_ms=60_000)),
        ])  # fmt: skip

        assert [True, False, True, False, True] == answers
        assert ["retried"] == [received.message.id for received in await self.take(broker)]

    async def test_empty_batches_do_nothing(self, broker: Broker) -> None:
        assert [] == await broker.publish([])
        assert [] == await broker.settle([])
        assert [] == broker.renew([], lease_ms=self.lease_ms)

    # ------------------------------------------------------------------------------------------------- looking

    async def test_depths_count_each_message_once(self, broker: Broker, clock: Clock) -> None:
        first_at = clock.now()
        await broker.publish([outgoing(f"m-{number}") for number in range(4)])
        await broker.publish([outgoing("later", due_at=first_at + 3_600_000), outgoing("other", queue="a-queue")])
        done, *_ = await self.take(broker, limit=2)
        await broker.settle([Settle(lease=done.lease, settlement=settlement.ACK)])

        other, orders = await self.depths(broker)

        assert ("a-queue", 1, 0, 0) == (other.queue, other.ready, other.scheduled, other.leased)
        assert (QUEUE, 2, 1, 1) == (orders.queue, orders.ready, orders.scheduled, orders.leased)
        if isinstance(clock, FakeClock):
            assert first_at == orders.oldest_ready_at

    async def test_the_oldest_ready_time_is_when_it_became_ready(self, broker: Broker, clock: Clock) -> None:
        due_at = clock.now() + 1_000
        await broker.publish([outgoing(due_at=due_at)])
        (before,) = await self.depths(broker)
        await self.pass_time(clock, 1_500)

        (after,) = await self.depths(broker)

        assert before.oldest_ready_at is None
        if broker.features.exact_delays and isinstance(clock, FakeClock):
            assert due_at == after.oldest_ready_at

    async def test_peeking_shows_the_hand_over_order_and_takes_nothing(self, broker: Broker, clock: Clock) -> None:
        await broker.publish([outgoing(f"m-{number}") for number in range(5)])
        in_hand = await self.take_one(broker)

        seen = [[found.id for found in await broker.peek(QUEUE, limit=3)] for _ in range(5)]

        assert [["m-1", "m-2", "m-3"]] * 5 == seen
        await self.pass_time(clock, 1)
        await broker.settle([Settle(lease=in_hand.lease, settlement=self.retry(clock))])
        taken = await self.take(broker)
        assert ["m-1", "m-2", "m-3", "m-4", "m-0"] == [received.message.id for received in taken]
        assert not broker.features.counts_starts or [1, 1, 1, 1, 2] == [received.starts for received in taken]

    async def test_a_message_whose_lease_ended_is_ready_and_shown(self, broker: Broker, clock: Clock) -> None:
        if not broker.features.leases:
            return
        await broker.publish([outgoing("first"), outgoing("second")])
        await self.take_one(broker)
        await self.pass_time(clock, self.lease_ms)

        (depth,) = await self.depths(broker)
        seen = [found.id for found in await broker.peek(QUEUE, limit=5)]

        assert (2, 0, 0) == (depth.ready, depth.scheduled, depth.leased)
        assert ["first", "second"] == seen

    async def test_a_peeked_message_is_the_whole_message(self, broker: Broker) -> None:
        await broker.publish([Outgoing(queue=QUEUE, message=hard_message())])

        (seen,) = await broker.peek(QUEUE, limit=1)

        assert hard_message() == seen

    async def test_discarding_removes_what_is_gone_of_the_first_and_keeps_the_order(self, broker: Broker) -> None:
        await broker.publish([outgoing(f"m-{number}") for number in range(8)])
        (in_hand,) = await self.take(broker, limit=1)

        discarded = await broker.discard(QUEUE, lambda message: message.id in {"m-0", "m-2", "m-3", "m-7"}, limit=5)

        assert 2 == discarded
        left = await self.take(broker)
        assert ["m-1", "m-4", "m-5", "m-6", "m-7"] == [received.message.id for received in left]
        assert all(received.starts in (1, None) and not received.history for received in left)
        assert [True] == await broker.settle([Settle(lease=in_hand.lease, settlement=settlement.ACK)])
        assert 0 == await broker.discard("never seen", lambda _: True, limit=5)

    async def test_a_worker_that_nobody_knows_to_be_over_is_not_gone(self, broker: Broker) -> None:
        await broker.publish([outgoing("m-1")])
        await self.take_one(broker, worker="alive")

        assert "alive" not in await broker.gone(["alive"])
        assert set() == await broker.gone([])

    async def test_an_exchange_is_refused_where_there_are_none(self, broker: Broker) -> None:
        if broker.features.exchanges:
            return

        with pytest.raises(UnsupportedError):
            await broker.publish([outgoing("m-1"), Outgoing(queue=QUEUE, message=message("m-2"), exchange="events")])

        assert [] == await self.take(broker)

    async def test_an_unknown_queue_is_empty_to_look_at(self, broker: Broker) -> None:
        assert [] == await broker.peek("nowhere", limit=5)

    async def test_closing_twice_is_closing_once(self, clock: Clock) -> None:
        async with self.make(clock) as broker:
            await broker.open()
            await broker.close()
            await broker.close()

    # ------------------------------------------------------------------------------------------------- helpers

    def retry(self, clock: Clock, delay_ms: Millis = 0) -> settlement.Retry:
        """Due `delay_ms` from now."""
        return settlement.Retry(due_at=clock.now() + delay_ms, reason=WHY)

    def requeue(self, clock: Clock, delay_ms: Millis = 0) -> settlement.Requeue:
        """Due `delay_ms` from now."""
        return settlement.Requeue(due_at=clock.now() + delay_ms, reason=WHY)

    def ends(self, clock: Clock) -> tuple[Settlement, ...]:
        """One of each kind."""
        return (settlement.ACK, self.retry(clock), self.requeue(clock), settlement.DeadLetter(reason=WHY))

    async def receive_at_once(self, broker: Broker) -> list[Received]:
        """Receive without waiting for arrivals."""
        return await broker.receive(QUEUE, limit=10, lease_ms=self.lease_ms, worker="w1", wait_ms=0)

    async def depths(self, broker: Broker) -> list[Depth]:
        """The queues the suite made."""
        return [depth for depth in await broker.depths() if depth.queue in {QUEUE, "a-queue"}]

    async def clear(self, broker: Broker) -> None:
        """Empty the queue."""
        for received in await self.take(broker, limit=100):
            await broker.settle([Settle(lease=received.lease, settlement=settlement.ACK)])

    async def wait_for(self, task: asyncio.Task[list[Received]], clock: Clock, *, limit_ms: Millis) -> None:
        """Wait for the task, letting at most about `limit_ms` pass."""
        if isinstance(clock, FakeClock):
            await clock.run_until(task.done, limit_ms=limit_ms)
        else:
            await asyncio.wait_for(asyncio.shield(task), limit_ms / 1_000 + WAKE_LIMIT_S)
