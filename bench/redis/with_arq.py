"""arq: 100 jobs at once (`max_jobs`), no results kept; it acknowledges after the job by its nature. Publishing: 100
callers. One worker process.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from arq import create_pool, func
from arq.connections import RedisSettings
from arq.worker import Worker

from bench.side import PREFETCH, Marks

CALLERS = 100


def publish(url: str, texts: list[str], _option: str) -> None:
    """Send all."""
    asyncio.run(_publish(url, texts))


async def _publish(url: str, texts: list[str]) -> None:
    pool = await create_pool(RedisSettings.from_dsn(url))
    waiting = iter(texts)

    async def send() -> None:
        for text in waiting:
            await pool.enqueue_job("handle", text)

    await asyncio.gather(*(send() for _ in range(CALLERS)))
    await pool.aclose()


def consume(url: str, marks: Marks, _option: str) -> None:
    """Consume until ended."""
    logging.disable(logging.CRITICAL)
    asyncio.run(_consume(url, marks))


async def _consume(url: str, marks: Marks) -> None:
    async def handle(_context: dict[str, Any], text: str) -> None:
        marks.handle_text(text)

    worker = Worker(
        [func(handle, name="handle", keep_result=0)],
        redis_settings=RedisSettings.from_dsn(url),
        max_jobs=PREFETCH,
        handle_signals=False,
    )
    await worker.async_run()
