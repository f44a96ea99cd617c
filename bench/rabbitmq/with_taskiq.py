"""Taskiq with taskiq-aio-pika. Publishing: its default, 100 callers. Consuming: 100 tasks at once (`max_async_tasks`),
prefetch 100, no result backend, its default queue (quorum). One worker process.
"""

from __future__ import annotations

from taskiq import AsyncBroker
from taskiq_aio_pika import AioPikaBroker

from bench import over_taskiq
from bench.side import PREFETCH, Marks


def _broker(url: str) -> AsyncBroker:
    return AioPikaBroker(url, qos=PREFETCH)


def publish(url: str, texts: list[str], _option: str) -> None:
    """Send all."""
    over_taskiq.publish(_broker, url, texts)


def consume(url: str, marks: Marks, _option: str) -> None:
    """Consume until ended."""
    over_taskiq.consume(_broker, url, marks)
