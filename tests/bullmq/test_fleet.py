"""What a worker had in hand that is over: put back within seconds, never while it lives (case BQ-05)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from redrive.brokers.bullmq.broker import BullBroker
from redrive.brokers.bullmq.fleet import ALIVE_MS, SUSPECT_MS
from redrive.core import settlement
from redrive.core.letters.letter import AttemptOutcome
from redrive.core.ports import Settle
from redrive.testing.samples import QUEUE, outgoing
from tests.conftest import PATIENCE
from tests.redis import Redis

LEASE_MS = 120_000
"""Far longer than the test: what is put back is put back because somebody is dead."""


async def die(broker: BullBroker) -> None:
    """As kill -9 leaves it: no more signs, no goodbye."""
    broker._fleet._closing.set()
    thread = broker._fleet._thread
    assert thread is not None
    await asyncio.to_thread(thread.join)
    broker._fleet._link.close()


async def test_work_of_a_dead_worker_runs_again_within_ten_seconds(redis: Redis, open_broker: Any) -> None:
    first, second = await open_broker(), await open_broker()
    await first.publish([outgoing("m-1"), outgoing("m-2")])
    held = await first.receive(QUEUE, limit=2, lease_ms=LEASE_MS, worker="first", wait_ms=0)
    waiting = asyncio.create_task(second.receive(QUEUE, limit=10, lease_ms=LEASE_MS, worker="second", wait_ms=60_000))
    await asyncio.sleep(0.2)  # sleep: both have given a sign

    died_at = time.monotonic()
    await die(first)
    taken = await asyncio.wait_for(waiting, PATIENCE.total_seconds())

    assert SUSPECT_MS / 1_000 < time.monotonic() - died_at < 10
    assert ["m-1", "m-2"] == [received.message.id for received in taken]
    assert [2, 2] == [received.starts for received in taken]
    assert [(1, AttemptOutcome.INTERRUPTED, "first")] == [
        (entry.attempt, entry.outcome, entry.worker) for entry in taken[0].history
    ]
    assert {"first"} == await second.gone(["first", "second", "nobody"])
    assert [False, False] == await first.settle([Settle(lease=each.lease, settlement=settlement.ACK) for each in held])
    assert [True, True] == await second.settle([Settle(lease=each.lease, settlement=settlement.ACK) for each in taken])


async def test_a_dead_worker_is_gone_though_it_had_nothing_in_hand_in_another_queue(
    redis: Redis, open_broker: Any
) -> None:
    first, second = await open_broker(), await open_broker()
    await first.publish([outgoing("m-1")])
    for queue in (QUEUE, "idle"):
        await first.receive(queue, limit=1, lease_ms=LEASE_MS, worker="first", wait_ms=0)
        await second.receive(queue, limit=1, lease_ms=LEASE_MS, worker="second", wait_ms=0)

    await die(first)
    (taken,) = await second.receive(QUEUE, limit=1, lease_ms=LEASE_MS, worker="second", wait_ms=60_000)

    assert ("m-1", 2) == (taken.message.id, taken.starts)
    assert {"first"} == await second.gone(["first", "second"])


async def test_a_worker_that_lives_keeps_its_work(redis: Redis, open_broker: Any) -> None:
    first, second = await open_broker(), await open_broker()
    await first.publish([outgoing("m-1")])
    (held,) = await first.receive(QUEUE, limit=1, lease_ms=LEASE_MS, worker="first", wait_ms=0)

    taken = await second.receive(
        QUEUE, limit=1, lease_ms=LEASE_MS, worker="second", wait_ms=ALIVE_MS + SUSPECT_MS + 3_000
    )

    assert [] == taken
    assert set() == await second.gone(["first", "second"])
    assert [True] == await first.settle([Settle(lease=held.lease, settlement=settlement.ACK)])


async def test_locks_of_others_are_respected(redis: Redis, broker: BullBroker) -> None:
    await broker.publish([outgoing("m-1"), outgoing("m-2")])
    for name in ("m-1", "m-2"):
        redis.ask("LREM", f"bull:{QUEUE}:wait", 1, name)
        redis.ask("LPUSH", f"bull:{QUEUE}:active", name)
    redis.ask("SET", f"bull:{QUEUE}:m-1:lock", "a-token-of-node", "PX", LEASE_MS)

    taken = await broker.receive(QUEUE, limit=5, lease_ms=LEASE_MS, worker="w1", wait_ms=3_000)

    assert [] == taken


async def test_an_answer_that_was_lost_leaves_nothing_in_nobodys_hands(redis: Redis, broker: BullBroker) -> None:
    await broker.publish([outgoing(f"m-{number}") for number in range(3)])
    source = broker._queue(QUEUE)
    await broker._take_now(source, 2, lease_ms=LEASE_MS, worker="w1")
    source.unheard.append(broker._token(1))

    taken = await broker.receive(QUEUE, limit=5, lease_ms=LEASE_MS, worker="w1", wait_ms=0)

    assert ["m-0", "m-1", "m-2"] == [received.message.id for received in taken]
    assert [1, 1, 1] == [received.starts for received in taken]
    assert [(), (), ()] == [received.history for received in taken]


async def test_a_cancelled_receiver_gives_back_what_it_was_given(redis: Redis, broker: BullBroker) -> None:
    for number in range(40):
        await broker.publish([outgoing(f"m-{number}")])
        waiting = asyncio.create_task(broker.receive(QUEUE, limit=5, lease_ms=LEASE_MS, worker="w1", wait_ms=60_000))
        for _ in range(number % 8):
            await asyncio.sleep(0)
        waiting.cancel()
        given = await asyncio.gather(waiting, return_exceptions=True)
        if isinstance(given[0], list):
            await broker.settle([Settle(lease=each.lease, settlement=settlement.ACK) for each in given[0]])

    (depth,) = await broker.depths()
    assert 0 == depth.leased
    left = await broker.receive(QUEUE, limit=100, lease_ms=LEASE_MS, worker="w1", wait_ms=0)
    assert {1} == {received.starts for received in left}
