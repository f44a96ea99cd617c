"""Dramatiq on Redis: 8 threads, its default middleware (retries with back-off among it), which acknowledges after the
handler. One worker process.
"""

from __future__ import annotations

from dramatiq.brokers.redis import RedisBroker

from bench import over_dramatiq
from bench.side import Marks


def publish(url: str, texts: list[str], _option: str) -> None:
    """Send all, one after the other."""
    over_dramatiq.publish(RedisBroker(url=url), texts)


def consume(url: str, marks: Marks, _option: str) -> None:
    """Consume until ended."""
    over_dramatiq.consume(RedisBroker(url=url), marks)
