"""BullMQ's own Python package. Publishing: addBulk, a thousand in a call. Consuming: one Worker, concurrency 100,
finished jobs removed. One worker process.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from bullmq import Queue, Worker

from bench.side import QUEUE, Marks

BATCH = 1_000
CONCURRENCY = 100


def publish(url: str, texts: list[str], _option: str) -> None:
    """Send all."""
    asyncio.run(_publish(url, texts))


async def _publish(url: str, texts: list[str]) -> None:
    queue = Queue(QUEUE, {"connection": url})
    for start in range(0, len(texts), BATCH):
        await queue.addBulk(
            [
                {"name": QUEUE, "data": json.loads(text), "opts": {"removeOnComplete": True}}
                for text in texts[start : start + BATCH]
            ]
        )
    await queue.close()


def consume(url: str, marks: Marks, _option: str) -> None:
    """Consume until ended."""
    asyncio.run(_consume(url, marks))


async def _consume(url: str, marks: Marks) -> None:
    async def handle(job: Any, _token: str) -> None:
        marks.handle(job.data)

    Worker(QUEUE, handle, {"connection": url, "concurrency": CONCURRENCY})
    await asyncio.Event().wait()
