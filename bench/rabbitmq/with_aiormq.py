"""aiormq, the client beneath aio-pika, FastStream and Taskiq: no framework, no policy, a callback that acks each.

Publishing: persistent, confirmed, 100 outstanding. Consuming: prefetch 100, one ack a message. Quorum queue.
"""

from __future__ import annotations

import asyncio

import aiormq
from aiormq.abc import DeliveredMessage

from bench.side import PREFETCH, QUEUE, Marks

OUTSTANDING = 100


def publish(url: str, texts: list[str], _option: str) -> None:
    """Send all, each confirmed."""
    asyncio.run(_publish(url, texts))


async def _publish(url: str, texts: list[str]) -> None:
    connection = await aiormq.connect(url)
    channel = await connection.channel(publisher_confirms=True)
    await channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
    waiting = iter(texts)
    properties = aiormq.spec.Basic.Properties(delivery_mode=2, content_type="application/json")

    async def send() -> None:
        for text in waiting:
            await channel.basic_publish(text.encode(), routing_key=QUEUE, properties=properties)

    await asyncio.gather(*(send() for _ in range(OUTSTANDING)))
    await connection.close()


def consume(url: str, marks: Marks, _option: str) -> None:
    """Consume until ended."""
    asyncio.run(_consume(url, marks))


async def _consume(url: str, marks: Marks) -> None:
    connection = await aiormq.connect(url)
    channel = await connection.channel()
    await channel.basic_qos(prefetch_count=PREFETCH)

    async def handle(message: DeliveredMessage) -> None:
        marks.handle_text(message.body)
        assert message.delivery_tag is not None
        await channel.basic_ack(message.delivery_tag)

    await channel.basic_consume(QUEUE, handle)
    await asyncio.Event().wait()
