"""Publisher: sends messages with confirms, many under way at once, and knows of each what became of it.

Every message is published `mandatory`: one that no queue takes comes back (before its confirm, which RabbitMQ sends for
it all the same) and is an error. A batch is written in one go and waits for one future.

Killed right here, what is true?
- before the write: nothing happened.
- after it, before the confirm: the message may be in its queue. The caller has no answer and repeats with the same id.

Connection lost with messages unconfirmed: they are sent again, in order and under the same ids, once it stands again;
each is then there once or twice. Their batch waits for that until its time is up and fails then; what is known of each
message is in the error.

Channel closed by the broker: one of the unconfirmed messages was refused, and the broker names at most its exchange.
Those for that exchange fail; where nothing is named, all go again one at a time until the one that closes the channel
is found, and only that one fails.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from redrive.brokers.rabbitmq import frames
from redrive.brokers.rabbitmq.connection import Lane
from redrive.brokers.rabbitmq.failures import (
    ACCESS_REFUSED,
    NOT_FOUND,
    ChannelLost,
    LinkLost,
    named_in,
    refused_publish,
)
from redrive.brokers.rabbitmq.link import Channel, Link
from redrive.brokers.rabbitmq.pushed import Pushed, Returned
from redrive.brokers.rabbitmq.tables import Unreadable, read_content
from redrive.core.text import cut
from redrive.core.units import Millis
from redrive.errors import BrokerUnavailableError, InvalidMessageError, QueueNotFoundError, RedriveError

MAX_UNCONFIRMED: Final = 4_000
"""Messages written and not confirmed; more wait in this process."""
MAX_UNCONFIRMED_BYTES: Final = 32 * 1024 * 1024
_MAX_METHODS: Final = 1_000
_MAX_ID_BYTES: Final = 120

Outcome = RedriveError | None
"""What became of one message: None: a queue has it."""


@dataclass(slots=True, kw_only=True, eq=False)
class Parcel:
    """One message as it is written: content header without its head, and body. `queue`: for messages."""

    exchange: str
    routing_key: str
    header: bytes
    body: bytes
    message_id: str
    batch: _Batch | None = None
    place: int = 0
    was_sent: bool = False
    returned: tuple[int, str] | None = None

    @property
    def target(self) -> str:
        """For messages."""
        if not self.exchange:
            return f'queue "{self.routing_key}"'
        return f'exchange "{self.exchange}" with routing key "{self.routing_key}"'


class _Batch:
    """What one `send` waits for."""

    __slots__ = ("done", "left", "outcomes")

    def __init__(self, size: int, done: asyncio.Future[None]) -> None:
        self.left = size
        self.outcomes: list[Outcome] = [None] * size
        self.done = done

    def ended(self, place: int, outcome: Outcome) -> None:
        self.outcomes[place] = outcome
        self.left -= 1
        if not self.left and not self.done.done():
            self.done.set_result(None)


class Publisher:
    """One confirming channel, opened when it is first needed. All methods belong to one event loop."""

    def __init__(self, lane: Lane, *, timeout_ms: Millis) -> None:
        self._lane = lane
        self._timeout_ms = timeout_ms
        self._channel: Channel | None = None
        self._opening: asyncio.Task[None] | None = None
        self._waiting: deque[Parcel] = deque()
        self._unconfirmed: dict[int, Parcel] = {}
        self._unconfirmed_bytes = 0
        self._tag = 0
        self._methods: dict[tuple[str, str], bytes] = {}
        self._goes_one_by_one = False
        self._is_closed = False
        self.on_missing: Callable[[str], None] | None = None
        """Called with the name of an exchange or (where there was none) queue that turned out not to be there."""
        lane.on_up = self._up
        lane.on_unblocked = self._pump

    async def send(self, parcels: Sequence[Parcel]) -> list[Outcome]:
        """Publish and wait for what becomes of each. Never raises for a message; one that is too large for a frame of
        this connection is refused here.
        """
        if not parcels:
            return []
        loop = asyncio.get_running_loop()
        batch = _Batch(len(parcels), loop.create_future())
        for place, parcel in enumerate(parcels):
            parcel.batch, parcel.place = batch, place
        self._waiting.extend(parcels)
        timer = loop.call_later(self._timeout_ms / 1_000, self._expire, batch, parcels)
        try:
            self._start()
            await batch.done
        finally:
            timer.cancel()
            if not batch.done.done():
                batch.done.cancel()
        return batch.outcomes

    async def close(self) -> None:
        """Let go; unconfirmed messages fail."""
        self._is_closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()
        for parcel in (*self._unconfirmed.values(), *self._waiting):
            _end(parcel, _unconfirmed(parcel, "the app has closed the connection"))
        self._unconfirmed.clear()
        self._waiting.clear()

    # ------------------------------------------------------------------------------------------- the channel

    def _start(self) -> None:
        if self._channel is not None and self._channel.is_open:
            self._pump()
        elif self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(self._opened)

    def _up(self, link: Link) -> None:
        _ = link
        if self._waiting:
            self._start()

    async def _open(self) -> None:
        try:
            link = await self._lane.get(wait_ms=self._timeout_ms)
            channel = await Channel(link).open(self)
            await channel.confirm()
        except (ChannelLost, LinkLost, RedriveError):
            # Tried again, until the time of those who wait is up.
            return
        channel.on_lost = self._channel_lost
        self._channel, self._tag = channel, 0
        self._methods.clear()

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._opening = None
        if task.cancelled() or self._is_closed:
            return
        if self._channel is not None and self._channel.is_open:
            self._pump()
        elif any(map(_is_wanted, self._waiting)):
            # The link went between; the batches' own time ends this.
            asyncio.get_running_loop().call_later(0.05, self._start)

    def _channel_lost(self, lost: Exception) -> None:
        self._channel = None
        parcels = list(self._unconfirmed.values())
        self._unconfirmed.clear()
        self._unconfirmed_bytes = 0
        if isinstance(lost, ChannelLost):
            parcels = self._without_culprits(parcels, lost)
        self._waiting.extendleft(reversed([each for each in parcels if _is_wanted(each)]))
        if self._waiting and not self._is_closed:
            self._start()

    def _without_culprits(self, parcels: list[Parcel], lost: ChannelLost) -> list[Parcel]:
        """Fail those the broker has refused; the others are left."""
        name = named_in(lost.text) if lost.code in (NOT_FOUND, ACCESS_REFUSED) else None
        guilty = [each for each in parcels if name is not None and each.exchange == name]
        if not guilty and len(parcels) == 1:
            guilty = parcels
        if not guilty:
            self._goes_one_by_one = True
            return parcels
        for parcel in guilty:
            self._missing(parcel)
            _end(parcel, refused_publish(parcel.message_id, parcel.target, lost))
        self._goes_one_by_one = False
        refused = set(map(id, guilty))
        return [each for each in parcels if id(each) not in refused]

    # ------------------------------------------------------------------------------------------- writing

    def _pump(self) -> None:
        """Write what waits, as far as the window lets it."""
        channel, waiting = self._channel, self._waiting
        if channel is None or not channel.is_open or not waiting:
            return
        number, link = channel.number, channel.link
        max_payload = link.frame_max - frames.OVERHEAD
        limit = 1 if self._goes_one_by_one else MAX_UNCONFIRMED
        pieces: list[bytes] = []
        unconfirmed, methods = self._unconfirmed, self._methods
        while waiting and len(unconfirmed) < limit and self._unconfirmed_bytes < MAX_UNCONFIRMED_BYTES:
            parcel = waiting.popleft()
            if not _is_wanted(parcel):
                continue
            if len(parcel.header) + frames.CONTENT_PREFIX > max_payload:
                _end(parcel, _too_large(parcel, max_payload))
                continue
            route = (parcel.exchange, parcel.routing_key)
            method = methods.get(route)
            if method is None:
                if len(methods) >= _MAX_METHODS:
                    methods.clear()
                method = methods[route] = frames.publish_method(number, *route)
            self._tag += 1
            unconfirmed[self._tag] = parcel
            parcel.was_sent, parcel.returned = True, None
            self._unconfirmed_bytes += len(parcel.body) + len(parcel.header)
            pieces += (method, frames.content(number, parcel.header, parcel.body, max_body=max_payload))
        if pieces:
            link.write(b"".join(pieces))

    def _expire(self, batch: _Batch, parcels: Sequence[Parcel]) -> None:
        """The batch's time is up: what is not confirmed fails."""
        blocked = self._lane.blocked
        if blocked is not None:
            why = f"the broker takes nothing from publishers at the moment: {blocked}"
        elif self._lane.link is None:
            why = "the connection is down"
        else:
            why = f"no confirm came within {self._timeout_ms} ms"
        for parcel in parcels:
            if parcel.batch is batch:
                _end(parcel, _unconfirmed(parcel, why))
        self._waiting = deque(filter(_is_wanted, self._waiting))

    # ------------------------------------------------------------------------------------------- what comes back

    def confirmed(self, tag: int, *, multiple: bool, is_taken: bool) -> None:
        """See `Sink`."""
        unconfirmed = self._unconfirmed
        if multiple:
            tags = []
            for known in unconfirmed:
                if known > tag:
                    break
                tags.append(known)
        else:
            tags = [tag]
        for each in tags:
            parcel = unconfirmed.pop(each, None)
            if parcel is not None:
                self._unconfirmed_bytes -= len(parcel.body) + len(parcel.header)
                self._end_confirmed(parcel, is_taken=is_taken)
        if not unconfirmed and not self._waiting:
            self._goes_one_by_one = False
        if self._waiting and len(unconfirmed) <= (0 if self._goes_one_by_one else MAX_UNCONFIRMED // 2):
            self._pump()

    def _end_confirmed(self, parcel: Parcel, *, is_taken: bool) -> None:
        if parcel.returned is not None:
            self._missing(parcel)
            _end(parcel, _unroutable(parcel))
        elif not is_taken:
            _end(parcel, _not_taken(parcel))
        else:
            _end(parcel, None)

    def _missing(self, parcel: Parcel) -> None:
        if self.on_missing is not None:
            self.on_missing(parcel.exchange or parcel.routing_key)

    def returned(self, back: Returned) -> None:
        """See `Sink`. The broker does not say which one: the first that looks the same and has not come back yet."""
        try:
            message_id = read_content(back.header).message_id
        except Unreadable:
            message_id = None
        alike = [
            each
            for each in self._unconfirmed.values()
            if each.returned is None and each.exchange == back.route[0] and each.routing_key == back.route[1]
        ]
        named = [each for each in alike if each.message_id == message_id]
        for parcel in (named or alike)[:1]:
            parcel.returned = (back.code, back.text)

    def delivered(self, pushed: Pushed) -> None:
        """Nothing is consumed on this channel."""


def _is_wanted(parcel: Parcel) -> bool:
    """Whether somebody still waits for it."""
    return parcel.batch is not None and not parcel.batch.done.done()


def _end(parcel: Parcel, outcome: Outcome) -> None:
    batch, parcel.batch = parcel.batch, None
    if batch is not None:
        batch.ended(parcel.place, outcome)


def _name(parcel: Parcel) -> str:
    return cut(parcel.message_id, _MAX_ID_BYTES)


def _unroutable(parcel: Parcel) -> RedriveError:
    assert parcel.returned is not None
    code, text = parcel.returned
    return QueueNotFoundError(
        f'Message "{_name(parcel)}" came back: no queue takes it from {parcel.target} ({code} {text}). It is in no '
        "queue; nothing is lost, its sender still has it.",
        hint="Is the queue there and bound? redrive topology plan",
    )


def _not_taken(parcel: Parcel) -> RedriveError:
    return BrokerUnavailableError(
        f'Message "{_name(parcel)}" was refused by a queue behind {parcel.target}: it is full, or cannot store it now. '
        "Of several queues bound there some may have it.",
        hint="Repeat it with the same id once there is room.",
    )


def _unconfirmed(parcel: Parcel, why: str) -> RedriveError:
    fate = "It may be there all the same" if parcel.was_sent else "It was not sent"
    return BrokerUnavailableError(
        f'Message "{_name(parcel)}" for {parcel.target} was not confirmed: {why}. {fate}.',
        hint="Repeat it with the same id: a second copy is taken for the same message.",
    )


def _too_large(parcel: Parcel, limit: int) -> RedriveError:
    size = len(parcel.header) + frames.CONTENT_PREFIX
    return InvalidMessageError(
        f'Message "{_name(parcel)}" for {parcel.target} has {size} bytes of headers and properties, the connection '
        f"takes {limit}. It was not sent.",
        hint="Put what is large into the body, or raise the broker's frame_max.",
    )
