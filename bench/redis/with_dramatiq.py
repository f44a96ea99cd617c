"""Dramatiq on Redis: 8 threads, its default middleware (retries with back-off among it), which acknowledges after the
handler. One worker process.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.side import QUEUE, Marks

THREADS = 8


def _actor(url: str, marks: Marks | None) -> tuple[RedisBroker, Any]:
    broker = RedisBroker(url=url)
    dramatiq.set_broker(broker)
    lock = threading.Lock()

    @dramatiq.actor(queue_name=QUEUE)
    def handle(text: str) -> None:
        assert marks is not None
        with lock:
            marks.handle_text(text)

    return broker, handle


def publish(url: str, texts: list[str], _option: str) -> None:
    """Send all, one after the other."""
    logging.disable(logging.CRITICAL)
    broker, handle = _actor(url, None)
    for text in texts:
        handle.send(text)
    broker.close()


def consume(url: str, marks: Marks, _option: str) -> None:
    """Consume until ended."""
    logging.disable(logging.CRITICAL)
    broker, _ = _actor(url, marks)
    dramatiq.Worker(broker, worker_threads=THREADS).start()
    threading.Event().wait()
