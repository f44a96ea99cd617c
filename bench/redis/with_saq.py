"""saq: 50 jobs at once (with 100 its own timers find no connection), no results kept (`ttl` -1). Publishing: 50
callers. One worker process.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from saq import Queue, Worker

from bench.side import QUEUE, Marks

CONCURRENCY = 50


def publish(url: str, texts: list[str], _option: str) -> None:
    """Send all."""
    asyncio.run(_publish(url, texts))


async def _publish(url: str, texts: list[str]) -> None:
    queue = Queue.from_url(url, name=QUEUE)
    await queue.connect()
    waiting = iter(texts)

    async def send() -> None:
        for text in waiting:
            await queue.enqueue("handle", text=text, ttl=-1)

    await asyncio.gather(*(send() for _ in range(CONCURRENCY)))
    await queue.disconnect()


def consume(url: str, marks: Marks, _option: str) -> None:
    """Consume until ended."""
    logging.disable(logging.CRITICAL)
    asyncio.run(_consume(url, marks))


async def _consume(url: str, marks: Marks) -> None:
    async def handle(_context: Any, *, text: str) -> None:
        marks.handle_text(text)

    queue = Queue.from_url(url, name=QUEUE)
    await queue.connect()
    await Worker(queue, [("handle", handle)], concurrency=CONCURRENCY).start()
