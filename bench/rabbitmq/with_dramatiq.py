"""Dramatiq on RabbitMQ. As it comes: 8 threads, prefetch twice that, publishing without confirms, its default
middleware (retries with back-off among it). Option "safe": `confirm_delivery`. One worker process,
durable classic queue.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from bench.side import QUEUE, Marks

THREADS = 8


def _actor(url: str, marks: Marks | None, option: str) -> tuple[RabbitmqBroker, Any]:
    broker = RabbitmqBroker(url=url, confirm_delivery=option == "safe")
    dramatiq.set_broker(broker)
    lock = threading.Lock()

    @dramatiq.actor(queue_name=QUEUE)
    def handle(text: str) -> None:
        assert marks is not None
        with lock:
            marks.handle_text(text)

    return broker, handle


def publish(url: str, texts: list[str], option: str) -> None:
    """Send all, one after the other."""
    logging.disable(logging.CRITICAL)
    broker, handle = _actor(url, None, option)
    for text in texts:
        handle.send(text)
    broker.close()


def consume(url: str, marks: Marks, option: str) -> None:
    """Consume until ended."""
    logging.disable(logging.CRITICAL)
    broker, _ = _actor(url, marks, option)
    dramatiq.Worker(broker, worker_threads=THREADS).start()
    threading.Event().wait()
