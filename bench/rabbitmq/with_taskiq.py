"""Taskiq with taskiq-aio-pika. Publishing: its default, 100 callers. Consuming: 100 tasks at once (`max_async_tasks`),
prefetch 100, no result backend, its default queue (quorum). One worker process.

"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from taskiq import AsyncBroker
from taskiq.api import run_receiver_task
from taskiq_aio_pika import AioPikaBroker

from bench.side import PREFETCH, Marks

CALLERS = 100


def _task(url: str, marks: Marks | None) -> tuple[AsyncBroker, Any]:
    broker = AioPikaBroker(url, qos=PREFETCH)

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
