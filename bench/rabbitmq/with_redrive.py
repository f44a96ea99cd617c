"""redrive, everything on: idempotency with a key for each message (in its SQLite file, fsync on), a retry policy, the
breaker, metrics; its safe default queue (quorum). Publishing is always confirmed and mandatory: a thousand messages in
a call, or (option "callers") 100 callers with one message each. One worker process, `concurrency` 500 as one would set
it for handlers this small.
"""

from __future__ import annotations

import asyncio
from typing import Any

from bench.contenders.embedded import PUBLISH, QUEUE
from bench.side import Marks, folder
from redrive import Redrive, Settings
from redrive.runtime.hosting import spare_the_collector
from redrive.runtime.metrics import Metrics

CONCURRENCY = 500


def _app(url: str, marks: Marks | None) -> Redrive:
    app = Redrive("bench", settings=Settings(broker=url, store=f"sqlite:///{folder() / 'redrive.db'}"))

    @app.consumer(QUEUE, concurrency=CONCURRENCY)
    async def handle(order: dict[str, Any]) -> None:
        assert marks is not None
        marks.handle(order)

    app.events.subscribe(Metrics())
    return app


def publish(url: str, texts: list[str], option: str) -> None:
    """Send all, each confirmed."""
    spare_the_collector()  # as `redrive work` does
    asyncio.run(_publish(_app(url, None), texts, option))


async def _publish(app: Redrive, texts: list[str], option: str) -> None:
    async with app:
        await PUBLISH[option](app, texts)


def consume(url: str, marks: Marks, _option: str) -> None:
    """Consume until ended."""
    spare_the_collector()
    asyncio.run(_consume(_app(url, marks)))


async def _consume(app: Redrive) -> None:
    async with app:
        await app.worker().run()
