"""Tap: deliveries of several queues on one channel, and their acknowledgements in as few frames as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from redrive.brokers.rabbitmq import frames
from redrive.brokers.rabbitmq.failures import ChannelLost, LinkLost
from redrive.brokers.rabbitmq.link import Channel, Link
from redrive.brokers.rabbitmq.pushed import Pushed, Returned

TAG: Final = "redrive-turns-"


def ack_frames(number: int, unsettled: dict[int, None], tags: Iterable[int]) -> bytes:
    """Acknowledge these of what is `unsettled` (oldest first), which they then are no more. Where all up to one of them
    are done, one frame says so.
    """
    done = sorted(tag for tag in tags if unsettled.pop(tag, 0) is None)
    if not done:
        return b""
    first_left = next(iter(unsettled), done[-1] + 1)
    through = [tag for tag in done if tag < first_left]
    pieces = [frames.ack(number, through[-1], multiple=True)] if through else []
    pieces += [frames.ack(number, tag) for tag in done[len(through) :]]
    return b"".join(pieces)


class Tap:
    """One channel. `on_delivery` is called for each message, `on_lost` once, when no more will come."""

    def __init__(self, on_delivery: Callable[[Pushed], None], on_lost: Callable[[], None]) -> None:
        self._on_delivery = on_delivery
        self._on_lost = on_lost
        self._unsettled: dict[int, None] = {}
        self._channel: Channel | None = None
        self._numbered = 0

    async def open(self, link: Link) -> None:
        """Open the channel; nothing is pushed yet. Raises `ChannelLost`, `LinkLost`."""
        channel = self._channel = await Channel(link).open(self)
        channel.on_lost = lambda _: self._on_lost()
        channel.on_cancel = self._on_lost

    async def consume(self, queue: str, *, window: int) -> None:
        """Have so many of this queue pushed at a time."""
        assert self._channel is not None
        # Of names that begin alike the numbers tell the consumers apart.
        self._numbered += 1
        await self._channel.qos(window)
        await self._channel.consume(queue, f"{TAG}{self._numbered}-{queue}"[:_MAX_TAG])

    def ack(self, tags: Iterable[int]) -> None:
        """These are done."""
        channel = self._channel
        if channel is not None and channel.is_open:
            channel.link.write(ack_frames(channel.number, self._unsettled, tags))

    async def close(self) -> None:
        """What was pushed and not acknowledged goes back to where it lay."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.on_lost = channel.on_cancel = None
            with suppress(ChannelLost, LinkLost):
                # Answered once it has taken what was acknowledged before.
                await channel.qos(0)
            await channel.close()

    # ------------------------------------------------------------------------------------------- from the channel

    def delivered(self, pushed: Pushed) -> None:
        """See `Sink`."""
        self._unsettled[pushed.tag] = None
        self._on_delivery(pushed)

    def returned(self, back: Returned) -> None:
        """Nothing is published on this channel."""

    def confirmed(self, tag: int, *, multiple: bool, is_taken: bool) -> None:
        """Nothing is published on this channel."""


_MAX_TAG: Final = 60
