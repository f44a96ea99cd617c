"""FastStream on RabbitMQ. Publishing: its default (confirms), persistent, 100 callers. Consuming: prefetch 100 (its own
default is without a bound), default ack policy, a durable classic queue as it makes one. One worker process.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from faststream.rabbit import Channel, RabbitBroker, RabbitQueue

from bench.side import PREFETCH, QUEUE, Marks

OUTSTANDING = 100


def publish(url: str, texts: list[str], _option: str) -> None:
    """Send all."""
    asyncio.run(_publish(url, texts))


async def _publish(url: str, texts: list[str]) -> None:
    broker = RabbitBroker(url, logger=None)
    await broker.connect()
    await broker.declare_queue(RabbitQueue(QUEUE, durable=True))
    waiting = iter(texts)

    async def send() -> None:
        for text in waiting:
            await broker.publish(text.encode(), QUEUE, persist=True, content_type="application/json")

    await asyncio.gather(*(send() for _ in range(OUTSTANDING)))
    await broker.stop()


def consume(url: str, marks: Marks, _option: str) -> None:
    """Consume until ended."""
    logging.disable(logging.CRITICAL)
    asyncio.run(_consume(url, marks))


async def _consume(url: str, marks: Marks) -> None:
    broker = RabbitBroker(url, logger=None, default_channel=Channel(prefetch_count=PREFETCH))

    @broker.subscriber(RabbitQueue(QUEUE, durable=True))
    async def handle(order: dict[str, Any]) -> None:
        marks.handle(order)

    await broker.start()
    await asyncio.Event().wait()
