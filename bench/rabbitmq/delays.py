"""How exactly a delay is kept on a stock RabbitMQ: 2 000 messages fed at 300 a second, each retried twice with random
delays of 0.5 to 20 s. Run as a process of its own.

Late is the start of an attempt minus the instant that was asked for; early is what must not be.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.measure import python, scratch
from redrive import Delivery, Redrive, Retry, RetryLater, Settings
from redrive.testing.servers.rabbitmq import RabbitNode

PER_S: Final = 300
SHORTEST_S, LONGEST_S = 0.5, 20.0
ROUNDS: Final = 2
QUEUE: Final = "orders"
LADDER: Final = "ladder"
LADDER_S: Final = 5.0

FLOOR_MS: Final = 150.0
SHARE: Final = 0.05
"""The promise: at the 99th percentile no later than 150 ms, or 5 % of the delay where that is more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Milliseconds late; `excess` is how much of what is promised was used, 1.0 being all of it."""

    delays: int
    late_p50_ms: float
    late_p99_ms: float
    late_max_ms: float
    excess_p99: float
    early: int


def measure(node: RabbitNode, folder: Path, *, messages: int) -> Delays:
    """Run it on a virtual host of its own, in a process of its own."""
    with node.vhost() as vhost, scratch(folder, "delays") as place:
        return Delays(**python("bench.rabbitmq.delays", vhost.url, str(place / "redrive.db"), str(messages)))


async def run(url: str, store: str, count: int) -> dict[str, Any]:
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
            delay_s = rng.uniform(SHORTEST_S, LONGEST_S)
            asked[delivery.message.id] = (now + delay_s, delay_s)
            raise RetryLater(delay_s)

    async with app:
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        # The first delay makes the ladder's levels, once in the life of a broker.
        await app.publish(LADDER, {}, delay=SHORTEST_S)
        await asyncio.sleep(LADDER_S)
        await _feed(app, count)
        await done.wait()
        worker.stop()
        await running
    return _summed_up(late)


async def _feed(app: Redrive, count: int) -> None:
    began = time.monotonic()
    async with asyncio.TaskGroup() as publishing:
        for number in range(count):
            publishing.create_task(app.publish(QUEUE, {"number": number}, message_id=f"m-{number}"))
            await asyncio.sleep(max(0.0, began + number / PER_S - time.monotonic()))


def _summed_up(late: list[tuple[float, float]]) -> dict[str, Any]:
    by_ms = sorted(each for each, _ in late)
    used = sorted(each / max(FLOOR_MS, SHARE * delay_s * 1_000) for each, delay_s in late)
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
    print(json.dumps(asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
