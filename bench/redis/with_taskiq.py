"""Taskiq with taskiq-redis: the stream broker, the one of its brokers that acknowledges; 100 tasks at once, no result
backend. Publishing: 100 callers. One worker process.
"""

from __future__ import annotations

from taskiq import AsyncBroker
from taskiq_redis import RedisStreamBroker

from bench import over_taskiq
from bench.side import QUEUE, Marks


def _broker(url: str) -> AsyncBroker:
    return RedisStreamBroker(url, queue_name=QUEUE, max_connection_pool_size=over_taskiq.CALLERS + 10)


def publish(url: str, texts: list[str], _option: str) -> None:
    """Send all."""
    over_taskiq.publish(_broker, url, texts)


def consume(url: str, marks: Marks, _option: str) -> None:
    """Consume until ended."""
    over_taskiq.consume(_broker, url, marks)
