"""Taskiq over any of its brokers: 100 callers publish, 100 tasks at once consume, no result backend, one process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from taskiq import AsyncBroker
from taskiq.api import run_receiver_task

from bench.side import PREFETCH, Marks

CALLERS = 100

Make = Callable[[str], AsyncBroker]
"""A broker at this URL."""


def publish(make: Make, url: str, texts: list[str]) -> None:
    """Send all."""
    asyncio.run(_publish(make, url, texts))


def consume(make: Make, url: str, marks: Marks) -> None:
    """Consume until ended."""
    logging.disable(logging.CRITICAL)
    asyncio.run(_consume(make, url, marks))


def _task(make: Make, url: str, marks: Marks | None) -> tuple[AsyncBroker, Any]:
    broker = make(url)

    @broker.task(task_name="handle")
    async def handle(text: str) -> None:
        assert marks is not None
        marks.handle_text(text)

    return broker, handle


async def _publish(make: Make, url: str, texts: list[str]) -> None:
    broker, handle = _task(make, url, None)
    await broker.startup()
    waiting = iter(texts)

    async def send() -> None:
        for text in waiting:
            await handle.kiq(text)

    await asyncio.gather(*(send() for _ in range(CALLERS)))
    await broker.shutdown()


async def _consume(make: Make, url: str, marks: Marks) -> None:
    broker, _ = _task(make, url, marks)
    await run_receiver_task(broker, max_async_tasks=PREFETCH, run_startup=True)
