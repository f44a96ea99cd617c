"""Dramatiq over any of its brokers: 8 threads, its default middleware (retries with back-off among it). One worker
process.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import dramatiq

from bench.side import QUEUE, Marks

THREADS = 8


def publish(broker: dramatiq.Broker, texts: list[str]) -> None:
    """Send all, one after the other."""
    logging.disable(logging.CRITICAL)
    handle = _actor(broker, None)
    for text in texts:
        handle.send(text)
    broker.close()


def consume(broker: dramatiq.Broker, marks: Marks) -> None:
    """Consume until ended."""
    logging.disable(logging.CRITICAL)
    _actor(broker, marks)
    dramatiq.Worker(broker, worker_threads=THREADS).start()
    threading.Event().wait()


def _actor(broker: dramatiq.Broker, marks: Marks | None) -> Any:
    dramatiq.set_broker(broker)
    lock = threading.Lock()

    @dramatiq.actor(queue_name=QUEUE)
    def handle(text: str) -> None:
        assert marks is not None
        with lock:
            marks.handle_text(text)

    return handle
