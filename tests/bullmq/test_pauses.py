"""Workers and servers that stand still, and clocks that are wrong: nobody alive loses work, nothing is done twice."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from redrive.brokers.bullmq.broker import BullBroker
from redrive.brokers.bullmq.fleet import ALIVE_MS, SUSPECT_MS
from redrive.core import settlement
from redrive.core.ports import Settle
from redrive.core.settlement import Reason
from redrive.runtime.clock import SystemClock
from redrive.testing.samples import QUEUE, outgoing
from redrive.testing.servers.redis import RedisNode
from tests.bullmq.test_outages import opened, take
from tests.bullmq.test_workers import Crew
from tests.conftest import PATIENCE
from tests.redis import Redis

HOUR_MS = 3_600_000
DEAD_MS = ALIVE_MS + SUSPECT_MS
WHY = Reason(code="TIMEOUT", text="too slow")


@pytest.fixture
def crew(redis: Redis, tmp_path: Path) -> object:
    made = Crew(redis.url, tmp_path)
    yield made
    made.kill()


async def test_a_worker_that_stood_still_too_long_ends_nothing_and_works_on(crew: Crew) -> None:
    async with crew.app as app:
        first = crew.start()
        await app.publish(QUEUE, {"n": 0, "s": 600})
        await crew.until(lambda: crew.lines("start"), alive=first, what="started")
        first.send_signal(signal.SIGSTOP)
        second = crew.start()
        await crew.until(lambda: crew.lines("end"), alive=second, what="the other one runs it")

        first.send_signal(signal.SIGCONT)
        second.send_signal(signal.SIGTERM)
        await asyncio.to_thread(second.wait)
        await app.publish(QUEUE, {"n": 1})
        await crew.until(lambda: any(line["end"] == 1 for line in crew.lines("end")), alive=first, what="it works on")

        assert [(0, 2, second.pid), (1, 1, first.pid)] == [
            (line["end"], line["attempt"], line["pid"]) for line in crew.lines("end")
        ]
        assert 3 == len(crew.lines("start"))


async def test_a_short_pause_of_a_worker_costs_it_nothing(crew: Crew) -> None:
    async with crew.app as app:
        first = crew.start()
        await app.publish(QUEUE, {"n": 0, "s": 8})
        await crew.until(lambda: crew.lines("start"), alive=first, what="started")
        second = crew.start()
        first.send_signal(signal.SIGSTOP)
        await asyncio.sleep(2)  # sleep: as long as a large collection, and less than it takes to be given up
        first.send_signal(signal.SIGCONT)
        await crew.until(lambda: crew.lines("end"), alive=first, what="ended")

        assert second.poll() is None
        assert [(0, 1, first.pid)] == [(line["end"], line["attempt"], line["pid"]) for line in crew.lines("end")]
        assert 1 == len(crew.lines("start"))


async def test_a_server_that_stood_still_longer_than_any_sign_holds_takes_nobody_for_dead(
    redis_alone: RedisNode,
) -> None:
    async with opened(redis_alone.url) as first, opened(redis_alone.url) as second:
        await first.publish([outgoing("m-1")])
        (held,) = await take(first)
        redis_alone.pause()
        await asyncio.sleep((DEAD_MS + 1_000) / 1_000)  # sleep: every sign of life has run out by the server's clock
        redis_alone.resume()

        taken = await second.receive(QUEUE, limit=1, lease_ms=60_000, worker="w2", wait_ms=DEAD_MS)

        assert [] == taken
        assert [True] == await first.settle([Settle(lease=held.lease, settlement=settlement.ACK)])


class SkewedClock(SystemClock):
    """Another host's idea of the time. `ahead_ms` may jump."""

    def __init__(self, ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms

    def now(self) -> int:
        return super().now() + self.ahead_ms


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, HOUR_MS])
async def test_a_hosts_clock_that_is_wrong_or_jumps_changes_no_lease_and_no_due_time(
    redis: Redis, ahead_ms: int
) -> None:
    clock = SkewedClock(ahead_ms)
    first, second = BullBroker(redis.url, clock=clock), BullBroker(redis.url, clock=SystemClock())
    await first.open()
    await second.open()
    try:
        began_at = time.monotonic()
        await first.publish([outgoing("m-1")])
        (held,) = await first.receive(QUEUE, limit=1, lease_ms=60_000, worker="w1", wait_ms=0)
        assert [] == await second.receive(QUEUE, limit=1, lease_ms=60_000, worker="w2", wait_ms=500)
        assert set() == await second.gone(["w1"])

        clock.ahead_ms = -ahead_ms
        assert [True] == await asyncio.to_thread(first.renew, [held.lease], lease_ms=60_000)
        end = settlement.Retry(due_at=clock.now() + 2_000, reason=WHY)
        assert [True] == await first.settle([Settle(lease=held.lease, settlement=end)])
        patience_ms = int(PATIENCE.total_seconds() * 1_000)
        (again,) = await second.receive(QUEUE, limit=1, lease_ms=60_000, worker="w2", wait_ms=patience_ms)
        took_s = time.monotonic() - began_at
    finally:
        await first.close()
        await second.close()

    assert 2 == again.starts
    assert 2.5 <= took_s < PATIENCE.total_seconds()
