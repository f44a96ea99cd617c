"""Looking at a queue without keeping anything of it, and taking out what is gone.

Messages are taken on a channel of their own, which is then closed: that puts them back in their order (how, and what a
quorum queue makes of acknowledgements before a close: see `ErrandChannel`). A quorum queue counts each look
(`x-delivery-count`), which matters only where it has a delivery limit; queues of redrive's have none. Killed in here:
what was taken is back, but for what was acknowledged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import takewhile

from redrive.brokers.rabbitmq.failures import NOT_FOUND, ChannelLost
from redrive.brokers.rabbitmq.headers import from_wire
from redrive.brokers.rabbitmq.link import Link
from redrive.brokers.rabbitmq.session import ErrandChannel, Got
from redrive.core.message import Message
from redrive.core.ports import Clock


async def peek(link: Link, queue: str, limit: int, *, clock: Clock) -> list[Message]:
    """The first messages of the queue; none where it is not there."""
    async with _taken(link, queue, limit, clock=clock) as (_, taken):
        return [_read(got) for got in taken]


async def discard(link: Link, queue: str, is_gone: Callable[[Message], bool], *, limit: int, clock: Clock) -> int:
    """Remove from the first messages of the queue; how many went."""
    async with _taken(link, queue, limit, clock=clock) as (channel, taken):
        gone = [got.tag for got in taken if is_gone(_read(got))]
        # As a rule the oldest go, and all of them: one frame, whatever their number.
        front = [tag for tag, got in takewhile(lambda pair: pair[0] == pair[1].tag, zip(gone, taken, strict=False))]
        if front:
            await channel.ack(front, is_all=True)
        if len(front) < len(gone):
            await channel.ack(gone[len(front) :], is_all=False)
        return len(gone)


@asynccontextmanager
async def _taken(link: Link, queue: str, limit: int, *, clock: Clock) -> AsyncIterator[tuple[ErrandChannel, list[Got]]]:
    """The first messages, until the block is left; none where there is no such queue."""
    channel = await ErrandChannel(link, clock=clock).start()
    try:
        yield channel, await _take(channel, queue, limit)
    finally:
        await channel.close()


async def _take(channel: ErrandChannel, queue: str, limit: int) -> list[Got]:
    try:
        return await channel.take(queue, limit)
    except ChannelLost as lost:
        if lost.code == NOT_FOUND:
            return []
        raise


def _read(got: Got) -> Message:
    return from_wire(got.header, got.body, exchange=got.exchange, routing_key=got.routing_key).message
