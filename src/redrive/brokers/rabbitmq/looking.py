"""Looking at a queue without keeping anything of it, and taking out what is gone.

Messages are taken on a channel of their own, which is then closed: that puts them back in their order (how, and what a
quorum queue makes of acknowledgements before a close: see `ErrandChannel`). A quorum queue counts each look
(`x-delivery-count`), which matters only where it has a delivery limit; queues of redrive's have none. Killed in here:
what was taken is back a moment later, but for what was acknowledged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import takewhile
from typing import Final, TypeAlias

from redrive.brokers.rabbitmq.failures import NOT_FOUND, ChannelLost
from redrive.brokers.rabbitmq.headers import from_wire
from redrive.brokers.rabbitmq.session import ErrandChannel, Got
from redrive.core.message import Message

MORE_AT_ONCE: Final = 100
MAX_RETURNED: Final = 20_000
BACK_MS: Final = 20
MAX_BACK: Final = 100

OpenChannel: TypeAlias = Callable[[], AbstractAsyncContextManager[ErrandChannel]]


async def peek(open_channel: OpenChannel, queue: str, limit: int) -> list[Message]:
    """The first messages of the queue; none where it is not there."""
    try:
        async with looked_at(open_channel, queue, limit) as taken:
            return [_read(got) for got in taken]
    except ChannelLost as lost:
        if lost.code == NOT_FOUND:
            return []
        raise


async def discard(open_channel: OpenChannel, queue: str, is_gone: Callable[[Message], bool], *, limit: int) -> int:
    """Remove from the first messages of the queue; how many went."""
    try:
        async with open_channel() as channel:
            depth, _ = await channel.declare_queue(queue, passive=True)
            taken = await channel.take(queue, limit)
            gone = [got.tag for got in taken if is_gone(_read(got))]
            # As a rule the oldest go, and all of them: one frame, whatever their number.
            front = [tag for tag, got in takewhile(lambda pair: pair[0] == pair[1].tag, zip(gone, taken, strict=False))]
            if front:
                await channel.ack(front, is_all=True)
            if len(front) < len(gone):
                await channel.ack(gone[len(front) :], is_all=False)
        if len(gone) < len(taken):
            await _all_back(open_channel, queue, depth - len(gone))
    except ChannelLost as lost:
        if lost.code == NOT_FOUND:
            return 0
        raise
    return len(gone)


@asynccontextmanager
async def looked_at(open_channel: OpenChannel, queue: str, limit: int) -> AsyncIterator[list[Got]]:
    """The first messages, in hand until the block is left; then they lie where they lay. Raises `ChannelLost` (404)
    where there is no such queue.
    """
    async with open_channel() as channel:
        depth, _ = await channel.declare_queue(queue, passive=True)
        taken = await channel.take(queue, limit)
        await _take_all_returned(channel, queue, taken)
        yield taken
    if taken:
        await _all_back(open_channel, queue, depth)


async def _take_all_returned(channel: ErrandChannel, queue: str, taken: list[Got]) -> None:
    """Keep the order of a quorum queue, which puts back what it is given behind what was given back before (measured on
    3.10.8 and 4.0.5): only where all of that was taken is it in its old order again. Other queues need nothing more.
    """
    last, count = (taken[-1] if taken else None), len(taken)
    while last is not None and last.deliveries and count < MAX_RETURNED:
        more = await channel.take(queue, MORE_AT_ONCE)
        count += len(more)
        last = more[-1] if more else None


async def _all_back(open_channel: OpenChannel, queue: str, depth: int) -> None:
    """A quorum queue puts back what a closed channel held a moment after it was closed: whoever looks before that finds
    another order, or nothing. Waits until as many are ready as were; not for ever, for somebody else may take some.
    """
    async with open_channel() as channel:
        for _ in range(MAX_BACK):
            ready, _ = await channel.declare_queue(queue, passive=True)
            if ready >= depth:
                return
            await channel.clock.sleep(BACK_MS)


def _read(got: Got) -> Message:
    return from_wire(got.header, got.body, exchange=got.exchange, routing_key=got.routing_key).message
