"""pika's asyncio connection, bare: callbacks, one task a message, acks in groups. The ground redrive stands on.

Publishing: persistent, confirmed, 500 outstanding. Consuming: prefetch 100, one `multiple` ack for each 50.
Quorum queue.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection

from bench.side import PREFETCH, QUEUE, Marks

OUTSTANDING = 500
GROUP = 50


def publish(url: str, texts: list[str], _option: str) -> None:
    """Send all, each confirmed."""
    asyncio.run(_publish(url, texts))


async def _open(url: str) -> tuple[Any, Any]:
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[Any] = loop.create_future()
    connection = AsyncioConnection(
        pika.URLParameters(url),
        on_open_callback=lambda it: it.channel(on_open_callback=opened.set_result),
        on_open_error_callback=lambda _, error: opened.set_exception(error),
        custom_ioloop=loop,
    )
    return connection, await opened


async def _publish(url: str, texts: list[str]) -> None:
    loop = asyncio.get_running_loop()
    connection, channel = await _open(url)
    ready: asyncio.Future[Any] = loop.create_future()
    channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"}, callback=ready.set_result)
    await ready
    confirmed, may_go = 0, asyncio.Event()

    def on_confirm(frame: Any) -> None:
        nonlocal confirmed
        assert isinstance(frame.method, pika.spec.Basic.Ack)
        confirmed = frame.method.delivery_tag if frame.method.multiple else confirmed + 1
        may_go.set()

    selected: asyncio.Future[Any] = loop.create_future()
    channel.confirm_delivery(on_confirm, callback=selected.set_result)
    await selected
    properties = pika.BasicProperties(delivery_mode=2, content_type="application/json")
    for sent, text in enumerate(texts):
        while sent - confirmed >= OUTSTANDING:
            may_go.clear()
            await may_go.wait()
        channel.basic_publish("", QUEUE, text.encode(), properties)
    while confirmed < len(texts):
        may_go.clear()
        await may_go.wait()
    connection.close()


def consume(url: str, marks: Marks, _option: str) -> None:
    """Consume until ended."""
    asyncio.run(_consume(url, marks))


async def _consume(url: str, marks: Marks) -> None:
    loop = asyncio.get_running_loop()
    _, channel = await _open(url)
    ready: asyncio.Future[Any] = loop.create_future()
    channel.basic_qos(prefetch_count=PREFETCH, callback=ready.set_result)
    await ready
    tasks: set[asyncio.Task[None]] = set()
    handled, acked, last = 0, 0, 0

    async def handle(tag: int, body: bytes) -> None:
        nonlocal handled
        marks.handle_text(body)
        handled += 1
        if handled - acked >= GROUP:
            ack(tag)

    def ack(tag: int) -> None:
        nonlocal acked
        acked = handled
        channel.basic_ack(tag, multiple=True)

    def on_message(*delivered: Any) -> None:
        nonlocal last
        _, method, _, body = delivered
        last = method.delivery_tag
        task = loop.create_task(handle(last, body))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    channel.basic_consume(QUEUE, on_message)
    while True:
        await asyncio.sleep(0.05)  # what is left of a group
        if handled > acked and not tasks:
            ack(last)
