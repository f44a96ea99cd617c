"""A broker opened on a test's own virtual host, and a plain client beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import quote

import pika
from pika.adapters.blocking_connection import BlockingChannel

from redrive.brokers.rabbitmq.broker import RabbitBroker
from redrive.core.ports import Received
from redrive.core.topology.model import EMPTY, Topology
from redrive.runtime.clock import SystemClock
from redrive.testing.samples import QUEUE
from tests.conftest import PATIENCE
from tests.rabbit import Rabbit

PATIENCE_S = PATIENCE.total_seconds()
MANY = 1_000


@asynccontextmanager
async def connected(url: str, topology: Topology = EMPTY) -> AsyncIterator[RabbitBroker]:
    broker = RabbitBroker(url, clock=SystemClock(), topology=topology)
    await broker.open()
    try:
        yield broker
    finally:
        await broker.close()


async def take(broker: RabbitBroker, count: int, queue: str = QUEUE, *, worker: str = "w1") -> list[Received]:
    """Exactly so many messages, however long they take."""
    taken: list[Received] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(taken) < count:
            taken += await receive(broker, count - len(taken), queue, worker=worker)
    return taken


async def take_through(broker: RabbitBroker, count: int, queue: str = QUEUE) -> list[Received]:
    """As `take`, where connections are lost on the way."""
    taken: list[Received] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(taken) < count:
            try:
                taken += await receive(broker, count - len(taken), queue)
            except Exception:
                await asyncio.sleep(0.05)  # sleep: asked again until it is so
    return taken


async def receive(
    broker: RabbitBroker, limit: int, queue: str = QUEUE, *, worker: str = "w1", wait_ms: int = 1_000
) -> list[Received]:
    return await broker.receive(queue, limit=limit, lease_ms=10_000, worker=worker, wait_ms=wait_ms)


async def until(condition: Callable[[], Any]) -> None:
    """Until the condition holds. It may block, briefly."""
    async with asyncio.timeout(PATIENCE_S):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)  # sleep: asked again until it is so


@contextmanager
def plain(url: str) -> Iterator[BlockingChannel]:
    """A channel of another client, which confirms."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    try:
        yield channel
    finally:
        connection.close()


def put(url: str, queue: str, body: bytes = b"{}", *, exchange: str = "", **properties: Any) -> None:
    """As any other client publishes."""
    with plain(url) as channel:
        channel.basic_publish(
            exchange, queue, body, pika.BasicProperties(delivery_mode=2, **properties), mandatory=True
        )


def get(url: str, queue: str) -> tuple[Any, Any, bytes]:
    """As any other client fetches: method, properties, body; taken out of the queue."""
    with plain(url) as channel:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        assert method is not None, f"{queue} is empty"
        return method, properties, body


def ids(url: str, queue: str) -> list[str]:
    """The ids of all messages of a queue, which is then empty."""
    found = []
    with plain(url) as channel:
        while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append(got[1].message_id)
            if got[0].message_count >= MANY:
                found += _streamed(channel, queue, got[0].message_count)
    return found


def _streamed(channel: BlockingChannel, queue: str, count: int) -> list[str]:
    """Many at once: asking for each takes some milliseconds."""
    found = []
    for method, properties, _ in channel.consume(queue):
        found.append(properties.message_id)
        # A quorum queue hands out two thousand at most before it hears of the first.
        if len(found) % MANY == 0 or len(found) == count:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if len(found) == count:
            break
    channel.cancel()
    return found


def depth(url: str, queue: str) -> int:
    """How many messages are ready there, as the broker says."""
    with plain(url) as channel:
        return int(channel.queue_declare(queue, passive=True).method.message_count)


def consumers(url: str, queue: str) -> int:
    """How many consumers the queue has, as the broker says."""
    with plain(url) as channel:
        return int(channel.queue_declare(queue, passive=True).method.consumer_count)


def queue_of(rabbit: Rabbit, name: str) -> dict[str, Any]:
    """What the management API says of a queue."""
    vhost = quote(rabbit.vhost.name, safe="")
    return dict(rabbit.server.api("GET", f"/api/queues/{vhost}/{quote(name, safe='')}"))


def delete_queue(url: str, name: str) -> None:
    with plain(url) as channel:
        channel.queue_delete(name)
