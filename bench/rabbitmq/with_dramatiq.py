"""Dramatiq on RabbitMQ. As it comes: 8 threads, prefetch twice that, publishing without confirms, its default
middleware (retries with back-off among it). Option "safe": `confirm_delivery`. One worker process,
durable classic queue.
"""

from __future__ import annotations

from dramatiq.brokers.rabbitmq import RabbitmqBroker

from bench import over_dramatiq
from bench.side import Marks


def _broker(url: str, option: str) -> RabbitmqBroker:
    return RabbitmqBroker(url=url, confirm_delivery=option == "safe")


def publish(url: str, texts: list[str], option: str) -> None:
    """Send all, one after the other."""
    over_dramatiq.publish(_broker(url, option), texts)


def consume(url: str, marks: Marks, option: str) -> None:
    """Consume until ended."""
    over_dramatiq.consume(_broker(url, option), marks)
