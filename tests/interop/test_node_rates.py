"""A rate beside Node's workers: the same limit on both sides is one limit."""

from __future__ import annotations

import time

from redrive.brokers.bullmq.broker import BullBroker
from redrive.core.policy.flow import parse_rate
from redrive.runtime.clock import SystemClock
from redrive.testing.samples import outgoing
from tests.interop.node import Node
from tests.interop.stage import QUEUE
from tests.redis import Redis

COUNT, PER_MS = 5, 3_000
LIMITER = {"max": COUNT, "duration": PER_MS}


async def test_what_either_side_starts_counts_for_both(redis: Redis, node: Node) -> None:
    rates = {QUEUE: parse_rate(f"{COUNT} per {PER_MS} ms", field="rate")}
    broker = BullBroker(redis.url, clock=SystemClock(), rates=rates)
    await broker.open()
    try:
        await broker.publish([outgoing(f"m-{number}") for number in range(4 * COUNT)])
        began_at = time.time() * 1_000
        ours = await broker.receive(QUEUE, limit=50, lease_ms=60_000, worker="w1", wait_ms=0)
        await node.call("work", queue=QUEUE, opts={"limiter": LIMITER, "concurrency": 1})
        theirs = [await node.wait("run", queue=QUEUE) for _ in range(COUNT)]
        await node.call("rest", queue=QUEUE)
        more = await broker.receive(QUEUE, limit=50, lease_ms=60_000, worker="w1", wait_ms=60_000)
        ended_at = time.time() * 1_000
    finally:
        await broker.close()

    assert COUNT == len(ours)
    assert min(run["at"] for run in theirs) >= began_at + PER_MS
    assert more
    # Theirs began a window of their own, which ours have waited for.
    assert ended_at >= began_at + 2 * PER_MS


async def test_a_limit_of_the_whole_queue_is_left_as_it_is(redis: Redis, node: Node) -> None:
    await node.call("rateLimit", queue=QUEUE, max=2, duration=60_000)
    broker = BullBroker(redis.url, clock=SystemClock(), rates={QUEUE: parse_rate("5/s", field="rate")})
    await broker.open()
    try:
        await broker.publish([outgoing(f"m-{number}") for number in range(10)])
        taken = await broker.receive(QUEUE, limit=50, lease_ms=60_000, worker="w1", wait_ms=0)
        left_ms = redis.ask("PTTL", f"bull:{QUEUE}:limiter")
    finally:
        await broker.close()

    assert 2 == len(taken)
    assert 1_000 < left_ms <= 60_000
