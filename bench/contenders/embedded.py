"""redrive on its embedded broker, everything on: idempotency, retry policy, leases, events; fully durable.

Two ways to publish: a thousand in a call with `publish_many`, as a job does; or from 100 callers at once, each
awaiting its own `publish`, as a web app does. A peer has no batches: it commits every message by itself. Idempotency
keys are random, as those of webhooks are, which is the hard case for the index over them. Metrics count along.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from bench.measure import Run, Stopwatch, peak_rss_mb
from bench.work import Tally
from redrive import Redrive, Settings
from redrive.core.idempotency import ClaimState
from redrive.runtime.hosting import spare_the_collector
from redrive.runtime.metrics import Metrics

CONCURRENCY: Final = 500
"""Handlers at once in the one worker process, as one would set it for handlers this small; a take is at most so big."""

BATCH: Final = 1_000
CALLERS: Final = 100
Publish = Callable[[Redrive, list[str]], Awaitable[None]]
QUEUE: Final = "orders"


def run(place: Path, texts: list[str], option: str) -> Run:
    """Publish every text under its own key, then let one worker consume them. `option` "callers": see above."""
    spare_the_collector()  # as `redrive work` does
    return asyncio.run(run_in(place / "orders.db", texts, publish=PUBLISH[option]))


async def run_in(
    file: Path, texts: list[str], *, publish: Publish, on_published: Callable[[], None] = lambda: None
) -> Run:
    """The same in a running loop; `on_published` is called between the two halves."""
    app = Redrive("bench", settings=Settings(broker=f"sqlite:///{file}", durability="full"))
    tally, done = Tally(), asyncio.Event()

    @app.consumer(QUEUE, concurrency=CONCURRENCY)
    async def handle(order: dict[str, Any]) -> None:
        if tally.add(order) == len(texts):
            done.set()

    app.events.subscribe(Metrics())
    async with app:
        publishing = Stopwatch()
        await publish(app, texts)
        publish_s, publish_cpu_s = publishing.wall_s, publishing.cpu_s
        on_published()

        worker = app.worker()
        consuming = Stopwatch()
        running = asyncio.create_task(worker.run())
        await done.wait()
        worker.stop()
        await running
        # Stopping waits until the last batch is settled: that is part of the work.
        consume_s, consume_cpu_s = consuming.wall_s, consuming.cpu_s
        await _check_settled(app, len(texts))
    tally.check(len(texts))
    return Run(
        messages=len(texts),
        publish_s=publish_s,
        consume_s=consume_s,
        cpu_s=publish_cpu_s + consume_cpu_s,
        synchronous=app.settings.durability,
        rss_mb=peak_rss_mb(),
    )


def key(number: int) -> str:
    """The idempotency key of message `number`: 32 hex digits that follow no order, the same in every run."""
    return f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128):032x}"


async def make_file(file: Path) -> None:
    """An empty file with redrive's schema and the queue."""
    async with Redrive("bench", settings=Settings(broker=f"sqlite:///{file}")):
        pass


async def publish_in_batches(app: Redrive, texts: list[str]) -> None:
    """Send all texts as JSON, each with an idempotency key of its own, `BATCH` in a call."""
    for start in range(0, len(texts), BATCH):
        batch = [
            (text.encode(), {"idempotency_key": key(number)})
            for number, text in enumerate(texts[start : start + BATCH], start)
        ]
        await app.publish_many(QUEUE, batch, content_type="application/json")


async def publish_from_callers(app: Redrive, texts: list[str]) -> None:
    """The same from `CALLERS` tasks, one message in a call."""
    numbered = iter(enumerate(texts))

    async def call() -> None:
        for number, text in numbered:
            await app.publish(QUEUE, text.encode(), idempotency_key=key(number), content_type="application/json")

    await asyncio.gather(*(call() for _ in range(CALLERS)))


PUBLISH: Final[dict[str, Publish]] = {"": publish_in_batches, "callers": publish_from_callers}


async def _check_settled(app: Redrive, count: int) -> None:
    """Nothing may be left behind, and the keys must be on record as processed: that is what is being paid for."""
    left = sum(depth.ready + depth.scheduled + depth.leased for depth in await app.backend.broker.depths())
    for number in (0, count - 1):
        record = await app.backend.claims.get(QUEUE, key(number))
        if left or record is None or record.state is not ClaimState.PROCESSED:
            raise RuntimeError(f"{left} messages left, key {number} is {record}")
