"""A rate that all workers share: never more starts in any sliding period, and nearly as many where there is work."""

from __future__ import annotations

import asyncio

from redrive.brokers.bullmq.broker import BullBroker
from redrive.core import settlement
from redrive.core.policy.flow import parse_rate
from redrive.core.ports import Settle
from redrive.runtime.clock import SystemClock
from redrive.testing.samples import QUEUE, outgoing
from tests.conftest import PATIENCE
from tests.redis import Redis

COUNT, PER_MS = 20, 2_000


async def test_four_workers_together_keep_a_rate_and_use_it(redis: Redis) -> None:
    clock = SystemClock()
    rates = {QUEUE: parse_rate(f"{COUNT} per {PER_MS // 1_000} s", field="rate")}
    brokers = [BullBroker(redis.url, clock=clock, rates=rates) for _ in range(4)]
    for broker in brokers:
        await broker.open()
    starts: list[int] = []

    async def work(broker: BullBroker, name: str) -> None:
        while len(starts) < 3 * COUNT:
            taken = await broker.receive(QUEUE, limit=7, lease_ms=60_000, worker=name, wait_ms=200)
            # The lease says when the server was asked: before the jobs were started.
            starts.extend([clock.now()] * len(taken))
            await broker.settle([Settle(lease=each.lease, settlement=settlement.ACK) for each in taken])

    try:
        await brokers[0].publish([outgoing(f"m-{number}") for number in range(4 * COUNT)])
        async with asyncio.timeout(PATIENCE.total_seconds()):
            await asyncio.gather(*(work(broker, f"w{number}") for number, broker in enumerate(brokers)))
        kept = await started(redis)
    finally:
        for broker in brokers:
            await broker.close()

    assert 3 * COUNT == len(starts)
    assert sum(kept.values()) <= COUNT
    assert starts[-1] - starts[0] >= 2 * PER_MS


async def started(redis: Redis) -> dict[bytes, int]:
    """What the window counts now, without its length."""
    found = redis.ask("HGETALL", f"bull:{QUEUE}:redrive:rate")
    return {name: int(count) for name, count in zip(found[::2], found[1::2], strict=True) if name != b"ms"}


async def test_another_rate_forgets_no_start(redis: Redis) -> None:
    clock = SystemClock()
    first = BullBroker(redis.url, clock=clock, rates={QUEUE: parse_rate("5/min", field="rate")})
    second = BullBroker(redis.url, clock=clock, rates={QUEUE: parse_rate("6/h", field="rate")})
    await first.open()
    await second.open()
    try:
        await first.publish([outgoing(f"m-{number}") for number in range(20)])
        taken = [
            len(await broker.receive(QUEUE, limit=50, lease_ms=60_000, worker="w", wait_ms=0))
            for broker in (first, first, second, second, first)
        ]
    finally:
        await first.close()
        await second.close()

    assert [5, 0, 1, 0, 0] == taken
