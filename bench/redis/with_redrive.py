"""redrive, everything on: idempotency with a key for each message (in the same Redis), a retry policy, the breaker,
events and metrics. Publishing: a thousand messages in a call, or (option "callers") 100 callers with one message each.
Option "plain": no idempotency and no keys. One worker process, `concurrency` 500 as one would set it for handlers this
small.
"""

from __future__ import annotations

import asyncio
from typing import Any

from bench.contenders.embedded import BATCH, PUBLISH
from bench.side import QUEUE, Marks, folder
from redrive import Redrive, Settings
from redrive.runtime.hosting import spare_the_collector
from redrive.runtime.metrics import Metrics

CONCURRENCY = 500


def _app(url: str, marks: Marks | None, option: str) -> Redrive:
    app = Redrive("bench", settings=Settings(broker=url, store=f"sqlite:///{folder() / 'redrive.db'}"))

    @app.consumer(QUEUE, concurrency=CONCURRENCY, idempotency=option != "plain")
    async def handle(order: dict[str, Any]) -> None:
        assert marks is not None
        marks.handle(order)

    app.events.subscribe(Metrics())
    return app


def publish(url: str, texts: list[str], option: str) -> None:
    """Send all."""
    spare_the_collector()  # as `redrive work` does
    asyncio.run(_publish(_app(url, None, option), texts, option))


async def _publish(app: Redrive, texts: list[str], option: str) -> None:
    async with app:
        await (_publish_plainly if option == "plain" else PUBLISH[option])(app, texts)


async def _publish_plainly(app: Redrive, texts: list[str]) -> None:
    for start in range(0, len(texts), BATCH):
        batch = [text.encode() for text in texts[start : start + BATCH]]
        await app.publish_many(QUEUE, batch, content_type="application/json")


def consume(url: str, marks: Marks, option: str) -> None:
    """Consume until ended."""
    spare_the_collector()
    asyncio.run(_consume(_app(url, marks, option)))


async def _consume(app: Redrive) -> None:
    async with app:
        await app.worker().run()
