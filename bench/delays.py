"""How exactly a delay is kept on a server: messages fed at a steady pace, each retried twice with random delays. Run as
a process of its own.

Late is the start of an attempt minus the instant that was asked for; early is what must not be.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.measure import python, scratch
from redrive import Delivery, Redrive, Retry, RetryLater, Settings

ROUNDS: Final = 2
QUEUE: Final = "orders"
LADDER: Final = "ladder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """How many messages a second, how long each is delayed, and what is promised at the 99th percentile: no later than
    `floor_ms`, or this share of the delay where that is more. `settling_s`: waited after the very first delay, for
    whom it has something to build.
    """

    per_s: int
    shortest_s: float
    longest_s: float
    floor_ms: float
    share: float
    settling_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Milliseconds late; `excess` is how much of what is promised was used, 1.0 being all of it."""

    delays: int
    late_p50_ms: float
    late_p99_ms: float
    late_max_ms: float
    excess_p99: float
    early: int


def measure(url: str, folder: Path, *, messages: int, feed: Feed) -> Delays:
    """Run it on this broker, empty, in a process of its own."""
    with scratch(folder, "delays") as place:
        told = json.dumps(asdict(feed))
        return Delays(**python("bench.delays", url, str(place / "redrive.db"), str(messages), told))


async def run(url: str, store: str, *, count: int, feed: Feed) -> dict[str, Any]:
    """Feed, fail twice with a delay, and see when each comes back."""
    app = Redrive("bench", settings=Settings(broker=url, store=f"sqlite:///{store}"))
    asked: dict[str, tuple[float, float]] = {}
    late: list[tuple[float, float]] = []
    done = asyncio.Event()
    rng = random.Random(1)

    @app.consumer(QUEUE, retry=Retry(max_attempts=ROUNDS + 1), breaker=None, concurrency=200)
    async def handle(_payload: dict[str, int], delivery: Delivery) -> None:
        now = time.time()
        if delivery.attempt > 1:
            due, delay_s = asked[delivery.message.id]
            late.append(((now - due) * 1_000, delay_s))
            if len(late) == ROUNDS * count:
                done.set()
        if delivery.attempt <= ROUNDS:
            delay_s = rng.uniform(feed.shortest_s, feed.longest_s)
            asked[delivery.message.id] = (now + delay_s, delay_s)
            raise RetryLater(delay_s)

    async with app:
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        # The first delay makes the ladder's levels on RabbitMQ, once in the life of a broker.
        await app.publish(LADDER, {}, delay=feed.shortest_s)
        await asyncio.sleep(feed.settling_s)
        await _send(app, count, per_s=feed.per_s)
        await done.wait()
        worker.stop()
        await running
    return _summed_up(late, feed)


async def _send(app: Redrive, count: int, *, per_s: int) -> None:
    began = time.monotonic()
    async with asyncio.TaskGroup() as publishing:
        for number in range(count):
            publishing.create_task(app.publish(QUEUE, {"number": number}, message_id=f"m-{number}"))
            await asyncio.sleep(max(0.0, began + number / per_s - time.monotonic()))


def _summed_up(late: list[tuple[float, float]], feed: Feed) -> dict[str, Any]:
    by_ms = sorted(each for each, _ in late)
    used = sorted(each / max(feed.floor_ms, feed.share * delay_s * 1_000) for each, delay_s in late)
    at_99 = int(len(late) * 0.99)
    return {
        "delays": len(late),
        "late_p50_ms": median(by_ms),
        "late_p99_ms": by_ms[at_99],
        "late_max_ms": by_ms[-1],
        "excess_p99": used[at_99],
        # Due times are whole milliseconds: less than one below is the clock's own rounding.
        "early": sum(each <= -1.0 for each in by_ms),
    }


if __name__ == "__main__":
    given = Feed(**json.loads(sys.argv[4]))
    print(json.dumps(asyncio.run(run(sys.argv[1], sys.argv[2], count=int(sys.argv[3]), feed=given))))
