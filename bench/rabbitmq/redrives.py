"""Dead letters sent back: every message fails for good, then one job redrives them all, then all are processed.

Run as a process of its own. The job sends each letter's original message, confirmed, before it counts it as sent.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.measure import Stopwatch, python, scratch
from bench.work import Tally, texts
from redrive import DeadLetter, Redrive, Settings
from redrive.core.letters.selection import Selection
from redrive.runtime.hosting import spare_the_collector
from redrive.service import Service
from redrive.testing.servers.rabbitmq import RabbitNode

QUEUE: Final = "orders"
CONCURRENCY: Final = 500
BATCH: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrives:
    """Letters a second: while they die (each becomes a letter and an entry of the dead-letter queue), while the job
    sends them back, and CPU milliseconds for each of both.
    """

    letters: int
    died_per_s: float
    sent_per_s: float
    died_cpu_ms: float
    sent_cpu_ms: float


def measure(node: RabbitNode, folder: Path, *, letters: int) -> Redrives:
    """Run it on a virtual host of its own, in a process of its own."""
    with node.vhost() as vhost, scratch(folder, "redrives") as place:
        return Redrives(**python("bench.rabbitmq.redrives", vhost.url, str(place / "redrive.db"), str(letters)))


async def run(url: str, store: str, count: int) -> dict[str, Any]:
    """Let all die, send all back, process all."""
    app = Redrive("bench", settings=Settings(broker=url, store=f"sqlite:///{store}"))
    is_fixed, died, tally, done = False, 0, Tally(), asyncio.Event()

    @app.consumer(QUEUE, concurrency=CONCURRENCY)
    async def handle(order: dict[str, Any]) -> None:
        if not is_fixed:
            raise DeadLetter("not yet")
        if tally.add(order) == count:
            done.set()

    def note(event: Any) -> None:
        nonlocal died
        died += event.name == "delivery.dead_lettered"

    app.events.subscribe(note)
    async with app:
        await _publish(app, count)
        dying = Stopwatch()
        first = app.worker()
        running = asyncio.create_task(first.run())
        while died < count:
            await asyncio.sleep(0.01)
        first.stop()
        await running
        died_s, died_cpu_s = dying.wall_s, dying.cpu_s

        is_fixed = True
        sending = Stopwatch()
        await Service(app).redrive(Selection(queue=QUEUE), actor="bench")
        sent_s, sent_cpu_s = sending.wall_s, sending.cpu_s
        second = app.worker()
        running = asyncio.create_task(second.run())
        await done.wait()
        second.stop()
        await running
    tally.check(count)
    return {
        "letters": count,
        "died_per_s": count / died_s,
        "sent_per_s": count / sent_s,
        "died_cpu_ms": died_cpu_s * 1_000 / count,
        "sent_cpu_ms": sent_cpu_s * 1_000 / count,
    }


async def _publish(app: Redrive, count: int) -> None:
    bodies = [text.encode() for text in texts(count)]
    for start in range(0, count, BATCH):
        await app.publish_many(QUEUE, bodies[start : start + BATCH], content_type="application/json")


if __name__ == "__main__":
    spare_the_collector()
    print(json.dumps(asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
