"""Taskiq with taskiq-redis: the stream broker, the one of its brokers that acknowledges; 100 tasks at once, no result
backend. Publishing: 100 callers. One worker process.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from taskiq import AsyncBroker
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from bench.side import PREFETCH, QUEUE, Marks

CALLERS = 100


def _task(url: str, marks: Marks | None) -> tuple[AsyncBroker, Any]:
    broker = RedisStreamBroker(url, queue_name=QUEUE, max_connection_pool_size=CALLERS + 10)

    @broker.task(task_name="handle")
    async def handle(text: str) -> None:
        assert marks is not None
        marks.handle_text(text)

    return broker, handle


def publish(url: str, texts: list[str], _option: str) -> None:
    """Send all."""
    asyncio.run(_publish(url, texts))


async def _publish(url: str, texts: list[str]) -> None:
    broker, handle = _task(url, None)
    await broker.startup()
    waiting = iter(texts)

    async def send() -> None:
        for text in waiting:
            await handle.kiq(text)

    await asyncio.gather(*(send() for _ in range(CALLERS)))
    await broker.shutdown()


def consume(url: str, marks: Marks, _option: str) -> None:
    """Consume until ended."""
    logging.disable(logging.CRITICAL)
    asyncio.run(_consume(url, marks))


async def _consume(url: str, marks: Marks) -> None:
    broker, _ = _task(url, marks)
    await run_receiver_task(broker, max_async_tasks=PREFETCH, run_startup=True)
