"""aio-pika, bare: a robust connection, as its documentation shows it.

Publishing: persistent, confirmed, 100 outstanding. Consuming: prefetch 100, `async with message.process()`.
Quorum queue.
"""

from __future__ import annotations

import asyncio

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from bench.side import PREFETCH, QUEUE, Marks

OUTSTANDING = 100


def publish(url: str, texts: list[str], _option: str) -> None:
    """Send all, each confirmed."""
    asyncio.run(_publish(url, texts))


async def _publish(url: str, texts: list[str]) -> None:
    connection = await aio_pika.connect_robust(url)
    channel = await connection.channel(publisher_confirms=True)
    await channel.declare_queue(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
    waiting = iter(texts)

    async def send() -> None:
        for text in waiting:
            message = aio_pika.Message(
                text.encode(), content_type="application/json", delivery_mode=aio_pika.DeliveryMode.PERSISTENT
            )
            await channel.default_exchange.publish(message, routing_key=QUEUE)

    await asyncio.gather(*(send() for _ in range(OUTSTANDING)))
    await connection.close()


def consume(url: str, marks: Marks, _option: str) -> None:
    """Consume until ended."""
    asyncio.run(_consume(url, marks))


async def _consume(url: str, marks: Marks) -> None:
    connection = await aio_pika.connect_robust(url)
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=PREFETCH)
    queue = await channel.get_queue(QUEUE)

    async def handle(message: AbstractIncomingMessage) -> None:
        async with message.process():
            marks.handle_text(message.body)

    await queue.consume(handle)
    await asyncio.Event().wait()
