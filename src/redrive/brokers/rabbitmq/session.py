"""Session: one connection for one errand of a person: look, declare, move, and close.

What it holds is lost with its connection: an errand that breaks ends with an error, and each is made so that it can be
run again. A channel the broker closes (404, 406) takes nothing else with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from redrive.brokers.rabbitmq import frames
from redrive.brokers.rabbitmq.address import Address, parse
from redrive.brokers.rabbitmq.connection import Lane
from redrive.brokers.rabbitmq.failures import (
    NOT_FOUND,
    ChannelLost,
    LinkLost,
    refused_queue,
    unavailable,
)
from redrive.brokers.rabbitmq.link import Channel, Link
from redrive.brokers.rabbitmq.publishing import Outcome, Parcel, Publisher
from redrive.brokers.rabbitmq.pushed import Pushed, Returned
from redrive.brokers.rabbitmq.tables import Content, Unreadable, read_content
from redrive.core.message import whole_number
from redrive.core.ports import Clock
from redrive.core.topology.model import Binding, Exchange, Queue

ACKS_AT_ONCE: Final = 16
ACK_PAUSE_MS: Final = 20
QUIET_S: Final = 0.5
"""How long nothing comes until it is asked whether there is still something."""
MAX_QUIET: Final = 20
"""So often; then what is ready goes to somebody else (another consumer, the only active one)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Got:
    """A message taken and not acknowledged, as it is on the wire. `tag` is good on its channel only. `content` None:
    its properties cannot be read; `header`: their bytes.
    """

    tag: int
    exchange: str
    routing_key: str
    is_redelivered: bool
    content: Content | None
    body: bytes
    header: bytes = b""

    @property
    def headers(self) -> dict[str, Any]:
        """Empty where there are none."""
        return {} if self.content is None or self.content.headers is None else self.content.headers

    @property
    def deliveries(self) -> int:
        """How often a quorum queue had it out before; 0 where the queue does not count."""
        return whole_number(self.headers.get("x-delivery-count")) or 0


class ErrandChannel(Channel):
    """A channel that takes a counted number of messages, and does what only people do. Everything raises `ChannelLost`
    or `LinkLost` where the answer will not come.

    Messages are taken by a consumer that is pushed no more than is wanted, and that is gone before any of them is
    acknowledged. (A get would do, but a quorum queue puts back what was got one by one in another order: by the number
    of the get, as text. Measured on 3.10.8 and 4.0.5, from the tenth on.)
    """

    def __init__(self, link: Link, *, clock: Clock) -> None:
        super().__init__(link)
        self.clock = clock
        self._takes = 0
        self._pushed: list[Got] = []
        self._wakes = asyncio.Event()

    async def start(self) -> ErrandChannel:
        """Open it."""
        await self.open(self)
        self.on_lost = lambda _: self._wakes.set()
        return self

    async def take(self, queue: str, limit: int) -> list[Got]:
        """At most `limit` messages from the front, fewer where there are no more."""
        ready, _ = await self.declare_queue(queue, passive=True)
        wanted = min(limit, ready)
        if not wanted:
            return []
        self._takes += 1
        # Put back in the order of these names, should the channel close.
        tag = f"redrive-{self._takes:08}"
        await self.qos(wanted)
        await self.consume(queue, tag)
        await self._wait_for(queue, wanted)
        await self.cancel(tag)
        taken, self._pushed = self._pushed, []
        return taken

    async def _wait_for(self, queue: str, wanted: int) -> None:
        quiet = 0
        while len(self._pushed) < wanted and quiet < MAX_QUIET:
            self._wakes.clear()
            try:
                await asyncio.wait_for(self._wakes.wait(), QUIET_S)
                quiet = 0
            except TimeoutError:
                quiet += 1
                ready, _ = await self.declare_queue(queue, passive=True)
                if not ready:
                    return
            if self.lost is not None:
                raise self.lost

    async def ack(self, tags: Sequence[int], *, is_all: bool) -> None:
        """Acknowledge, in this order. Returns when the broker has taken it, so that the channel may be closed.
        `is_all`: nothing else that was taken is still in hand, so one frame is enough.

        A quorum queue passes on some 30 acknowledgements at a time and forgets the rest with the channel (measured on
        4.0.5: 67 of 100 were handed out again after a close). So where many frames are needed they go in helpings.
        """
        if is_all:
            await self._acked(frames.ack(self.number, max(tags), multiple=True))
            return
        for start in range(0, len(tags), ACKS_AT_ONCE):
            helping = tags[start : start + ACKS_AT_ONCE]
            await self._acked(b"".join([frames.ack(self.number, tag) for tag in helping]))
            await self.clock.sleep(ACK_PAUSE_MS)

    async def _acked(self, data: bytes) -> None:
        if self.lost is not None:
            raise self.lost
        self.link.write(data)
        # Answered only after what was sent before it.
        await self.qos(0)

    async def has_exchange(self, name: str) -> None:
        """Raises `ChannelLost` (404) where there is none."""
        await self._call(self._raw.exchange_declare, exchange=name, passive=True)

    async def declare_exchange(self, exchange: Exchange) -> None:
        """Raises `ChannelLost` (406) where another one has the name. An unknown type ends the connection (503)."""
        await self._call(
            self._raw.exchange_declare,
            exchange=exchange.name,
            exchange_type=exchange.type,
            durable=exchange.durable,
            auto_delete=exchange.auto_delete,
            internal=exchange.internal,
            arguments=dict(exchange.arguments),
        )

    async def bind(self, binding: Binding) -> None:
        """A binding that is there already stays."""
        rest = {"routing_key": binding.routing_key, "arguments": dict(binding.arguments)}
        if binding.destination_type == "exchange":
            await self._call(self._raw.exchange_bind, destination=binding.destination, source=binding.source, **rest)
        else:
            await self._call(self._raw.queue_bind, queue=binding.destination, exchange=binding.source, **rest)

    async def unbind(self, binding: Binding) -> None:
        """One that is gone already is no error."""
        rest = {"routing_key": binding.routing_key, "arguments": dict(binding.arguments)}
        if binding.destination_type == "exchange":
            await self._call(self._raw.exchange_unbind, destination=binding.destination, source=binding.source, **rest)
        else:
            await self._call(self._raw.queue_unbind, queue=binding.destination, exchange=binding.source, **rest)

    async def delete_queue(self, name: str, *, if_empty: bool) -> None:
        """`if_empty`: only without messages and consumers, else `ChannelLost`; a quorum queue ends the connection."""
        await self._call(self._raw.queue_delete, queue=name, if_unused=if_empty, if_empty=if_empty)

    # ------------------------------------------------------------------------------------------ what comes

    def delivered(self, pushed: Pushed) -> None:
        """See `Sink`."""
        try:
            content = read_content(pushed.header)
        except Unreadable:
            content = None
        exchange, routing_key = pushed.route
        self._pushed.append(
            Got(
                tag=pushed.tag,
                exchange=exchange,
                routing_key=routing_key,
                is_redelivered=pushed.redelivered,
                content=content,
                body=pushed.body,
                header=pushed.header,
            )
        )
        self._wakes.set()

    def returned(self, back: Returned) -> None:
        """Nothing is published on this channel."""

    def confirmed(self, tag: int, *, multiple: bool, is_taken: bool) -> None:
        """Nothing is published on this channel."""


@asynccontextmanager
async def errand(link: Link, *, clock: Clock) -> AsyncIterator[ErrandChannel]:
    """A channel of its own, closed at the end of the block: the broker puts back what was taken and not acknowledged, a
    quorum queue a moment later.
    """
    channel = await ErrandChannel(link, clock=clock).start()
    try:
        yield channel
    finally:
        await channel.close()


class Session:
    """See the module. `open` before anything else, `close` at the end."""

    def __init__(self, url: str, *, clock: Clock) -> None:
        """Raises `ConfigurationError` for what is no AMQP URL; its text holds no password."""
        self.clock = clock
        self._address = parse(url)
        self._lane = Lane(self._address, clock=clock, purpose="errand")
        self._publisher = Publisher(self._lane, timeout_ms=self._address.publish_timeout_ms)

    @property
    def address(self) -> Address:
        """Where it is."""
        return self._address

    @property
    def version(self) -> str | None:
        """The broker's, as it says at the start of a connection."""
        return None if self._lane.link is None else self._lane.link.version

    async def open(self) -> None:
        """Raises `ConfigurationError` where trying again would change nothing, else `BrokerUnavailableError`."""
        await self._lane.start()

    async def close(self) -> None:
        """Say goodbye. What was taken and not acknowledged lies in its queue again. Twice is fine."""
        await self._publisher.close()
        await self._lane.close()

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[ErrandChannel]:
        """See `errand`."""
        async with errand(await self._lane.get(wait_ms=self._address.connect_timeout_ms), clock=self.clock) as channel:
            yield channel

    async def publish(self, parcels: Sequence[Parcel]) -> list[Outcome]:
        """Mandatory and confirmed; of each message whether a queue has it (None), else why not."""
        return await self._publisher.send(parcels)

    async def counts(self, queue: str) -> tuple[int, int] | None:
        """Messages ready and consumers; None where there is no such queue."""
        try:
            async with self.channel() as channel:
                return await channel.declare_queue(queue, passive=True)
        except ChannelLost as lost:
            if lost.code == NOT_FOUND:
                return None
            raise refused_queue(queue, lost, doing="looked at") from lost
        except LinkLost as lost:
            raise self.broken(lost) from lost

    async def has_exchange(self, exchange: str) -> bool:
        """Whether it is there; makes none."""
        try:
            async with self.channel() as channel:
                await channel.has_exchange(exchange)
        except ChannelLost as lost:
            if lost.code == NOT_FOUND:
                return False
            raise refused_queue(exchange, lost, doing="looked at") from lost
        except LinkLost as lost:
            raise self.broken(lost) from lost
        return True

    def broken(self, lost: LinkLost) -> Exception:
        """The error of an errand whose connection broke."""
        return unavailable(self._address.where, lost.text, fate="The command stopped there; it can be run again.")


def as_declared(queue: Queue) -> dict[str, Any]:
    """A queue as `declare_queue` takes it."""
    return {
        "queue": queue.name,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "arguments": dict(queue.arguments),
    }
