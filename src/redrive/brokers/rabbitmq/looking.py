"""Looking at a queue without consuming from it, and taking out what is gone.

Messages are fetched on a channel of their own, which is then closed: that puts them back where they were on a classic
queue. A quorum queue puts back more than nine in another order, and counts the look (`x-delivery-count`), which matters
only where it has a delivery limit; queues of redrive's have none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from redrive.brokers.rabbitmq import frames
from redrive.brokers.rabbitmq.failures import NOT_FOUND, ChannelLost
from redrive.brokers.rabbitmq.link import Channel, Link
from redrive.brokers.rabbitmq.pushed import Pushed, Returned
from redrive.core.message import Message


class Look:
    """Fetches from one queue; close it and everything is back."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._channel: Channel | None = None
        self._waiting: deque[asyncio.Future[Pushed | None]] = deque()

    async def open(self, link: Link) -> None:
        """Open a channel. Raises `ChannelLost`, `LinkLost`."""
        self._channel = await Channel(link).open(self)
        self._channel.on_lost = self._lost

    async def close(self) -> None:
        """Put everything back that was not removed."""
        if self._channel is not None:
            await self._channel.close()

    async def fetch(self, limit: int) -> list[Pushed]:
        """At most `limit` messages from the front. Raises `ChannelLost` (404: there is no such queue), `LinkLost`."""
        fetched: list[Pushed] = []
        channel = self._channel
        assert channel is not None
        # Each get is answered in order: those of a helping are asked for in one write.
        while len(fetched) < limit:
            size = min(limit - len(fetched), _HELPING)
            answers = [self._promise() for _ in range(size)]
            channel.link.write(frames.get(channel.number, self._queue) * size)
            got = [pushed for pushed in await asyncio.gather(*answers) if pushed is not None]
            fetched += got
            if len(got) < size:
                break
        return fetched

    def remove(self, tags: list[int]) -> None:
        """These do not go back."""
        channel = self._channel
        assert channel is not None
        channel.link.write(b"".join([frames.ack(channel.number, tag) for tag in tags]))

    def _promise(self) -> asyncio.Future[Pushed | None]:
        channel = self._channel
        assert channel is not None
        if channel.lost is not None:
            raise channel.lost
        promise: asyncio.Future[Pushed | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(promise)
        return promise

    def _lost(self, lost: Exception) -> None:
        for promise in self._waiting:
            if not promise.done():
                promise.set_exception(lost)
        self._waiting.clear()

    def _answer(self, pushed: Pushed | None) -> None:
        if self._waiting:
            promise = self._waiting.popleft()
            if not promise.done():
                promise.set_result(pushed)

    def delivered(self, pushed: Pushed) -> None:
        """See `Sink`."""
        self._answer(pushed)

    def got_nothing(self) -> None:
        """See `Sink`."""
        self._answer(None)

    def returned(self, back: Returned) -> None:
        """Nothing is published on this channel."""

    def confirmed(self, tag: int, *, multiple: bool, is_taken: bool) -> None:
        """Nothing is published on this channel."""


_HELPING = 50
"""Messages asked for in one write."""


async def peek(link: Link, queue: str, limit: int) -> list[Message]:
    """The first messages of the queue; none where it is not there."""
    look = Look(queue)
    try:
        await look.open(link)
        try:
            return [pushed.read().message for pushed in await look.fetch(limit)]
        finally:
            await look.close()
    except ChannelLost as lost:
        if lost.code == NOT_FOUND:
            return []
        raise


async def discard(link: Link, queue: str, is_gone: Callable[[Message], bool], *, limit: int) -> int:
    """Remove from the first messages of the queue; how many went."""
    look = Look(queue)
    try:
        await look.open(link)
        try:
            gone = [pushed.tag for pushed in await look.fetch(limit) if is_gone(pushed.read().message)]
            look.remove(gone)
            return len(gone)
        finally:
            await look.close()
    except ChannelLost as lost:
        if lost.code == NOT_FOUND:
            return 0
        raise
