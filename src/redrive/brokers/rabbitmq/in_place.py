"""Dead letters looked at, and sent back, where they lie.

A look takes messages on a channel of its own and closes it: the broker puts everything back, in order, as it does when
the process is killed.

Sending back goes in windows. For each: messages are taken, the journal is written, the copies are published and
confirmed, the journal is written again, the originals are acknowledged, and when the broker has carried that out the
rows go. Killed right here, what is true?

    before the first row       the originals lie in their queue
    row, no confirm            the original lies in its queue; a copy may be on its way. It is sent again with the id of
                               the first copy, so a consumer with idempotency runs it once
    confirmed, no ack          original and copy both lie; the next run knows the original by its row and removes it
    ack sent, row still there  the original may be gone; then nothing answers to the row, and it is dropped

Twins (equal bytes, properties and headers, no id) could be taken for one another. Before the first ack that is
harmless, for either stands for the other. After it a row speaks only for a message that comes back at the head of the
queue, before anything new, which is where a broker puts what was in hand: a twin further back is sent, not removed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from redrive.brokers.rabbitmq.journal import Batch, Item, ItemState, Journal
from redrive.brokers.rabbitmq.session import NOT_FOUND, Channel, ChannelClosed, Got, Sending, Session
from redrive.core.in_place import (
    HEADER_USER,
    Redriven,
    Route,
    attempts_of,
    dead_since,
    message_digest,
    reason_of,
    redriven_count,
    redriven_headers,
)
from redrive.core.live import SendBack, SentBack, Stayed, Waiting
from redrive.core.message import HEADER_REDRIVEN_BATCH, Headers
from redrive.core.redrive import MAX_REDRIVES
from redrive.core.topology.model import Topology
from redrive.errors import BrokerUnavailableError, QueueNotFoundError, RedriveError

WINDOW: Final = 100
"""Messages in hand at a time: at most so many are sent twice around a kill."""
MAX_STAYED: Final = 1_000
"""Messages that stay are held until the end; when there are more, the run ends."""
FRAME_OVERHEAD: Final = 64
PSEUDO_REPLY: Final = "amq.rabbitmq.reply-to"

PROPERTIES: Final = (
    "content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration",
    "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
)  # fmt: skip

Resolve = Callable[[Headers], Route | str]
"""Where a message goes back to, or why that is not known."""


def properties_of(got: Got) -> dict[str, Any]:
    """Those that are set, without the headers."""
    return {name: value for name in PROPERTIES if (value := getattr(got.properties, name)) is not None}


async def look(session: Session, queue: str, *, limit: int, resolve: Resolve) -> tuple[Waiting, ...]:
    """The first `limit` messages. They lie where they lay when this returns; killed in here, too."""
    async with await session.channel() as channel:
        found: list[Waiting] = []
        while len(found) < limit:
            got = await channel.get(queue)
            if got is None:
                break
            found.append(_waiting(got, len(found) + 1, resolve))
    return tuple(found)


def _waiting(got: Got, position: int, resolve: Resolve) -> Waiting:
    headers = got.headers
    route = resolve(headers)
    queue = route.queue if isinstance(route, Route) else None
    code, text = reason_of(headers)
    return Waiting(
        position=position,
        body=got.body,
        headers=headers,
        properties=properties_of(got),
        exchange=got.exchange,
        routing_key=got.routing_key,
        is_redelivered=got.is_redelivered,
        dead_since=dead_since(headers, got.properties.timestamp),
        reason_code=code,
        reason_text=text,
        attempts=attempts_of(headers, queue=queue or ""),
        redriven=redriven_count(headers),
        queue=queue,
    )


# ---------------------------------------------------------------------------------------------------- recovery


class Recovery:
    """Which messages a killed run had in hand. See the module for when a row speaks for a message."""

    def __init__(self, items: tuple[Item, ...]) -> None:
        self._intended = [item for item in items if item.state is ItemState.INTENDED]
        self._confirmed = [item for item in items if item.state is ItemState.CONFIRMED]
        self._at_head = list(self._confirmed)

    def match(self, digest: str, *, is_redelivered: bool) -> Item | None:
        """The row of this message, which is used up; None: it is new."""
        if is_redelivered:
            for place, item in enumerate(self._at_head):
                if item.digest == digest:
                    # Acknowledgements went out in this order: what comes before it and is not back is gone.
                    del self._at_head[: place + 1]
                    self._confirmed.remove(item)
                    return item
        for rows in (self._intended, [item for item in self._confirmed if item.has_id]):
            for item in rows:
                if item.digest == digest:
                    (self._intended if item.state is ItemState.INTENDED else self._confirmed).remove(item)
                    return item
        self._at_head.clear()
        return None

    @property
    def unanswered(self) -> tuple[Item, ...]:
        """Rows of copies that were confirmed, whose originals did not come back: they are gone."""
        return tuple(self._confirmed)


# ---------------------------------------------------------------------------------------------------- sending back


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """A message in hand that is to be sent."""

    got: Got
    item: Item
    route: Route
    properties: Any


@dataclass(slots=True)
class _Tally:
    """What became of the messages so far."""

    handled: int = 0
    moved: int = 0
    found: int = 0
    came_back: int = 0
    targets: dict[str, int] = field(default_factory=dict)
    stayed: list[Stayed] = field(default_factory=list)
    error: str | None = None

    def stays(self, got: Got, why: str) -> None:
        """It is held in hand until the end, and lies in its queue then."""
        self.handled += 1
        message_id = got.properties.message_id
        self.stayed.append(Stayed(position=self.handled, message_id=message_id, why=why))


class Return:
    """One run of sending back. `wirings` come from `topology`; `resolve` says where each message goes."""

    def __init__(
        self, session: Session, journal: Journal, *, topology: Topology, resolve: Resolve, window: int = WINDOW
    ) -> None:
        self._session, self._journal = session, journal
        self._topology, self._resolve = topology, resolve
        self._window = window
        self._tally = _Tally()

    async def run(self, queue: str, what: SendBack, *, on_count: Callable[[int], None]) -> SentBack:
        """Send them back. Stops early where a target is gone; raises `BrokerUnavailableError` where the broker is."""
        batch = await asyncio.to_thread(self._journal.begin, actor=what.actor, now=_now())
        async with await self._session.channel() as source, await self._session.channel(confirms=True) as out:
            depth = (await source.counts(queue)).ready
            wanted = depth if what.limit is None else min(depth, max(what.limit - batch.moved, len(batch.items)))
            run = _Run(self, batch, what, source=source, out=out, queue=queue, wanted=wanted)
            while await run.window():
                on_count(self._tally.moved)
            await run.close()
        tally = self._tally
        return SentBack(
            queue=queue,
            batch=batch.id,
            requested=wanted,
            moved=tally.moved,
            found=tally.found,
            stayed=tuple(tally.stayed),
            targets=dict(tally.targets),
            is_resumed=batch.moved > 0 or bool(batch.items),
            error=tally.error,
        )


class _Run:
    """The windows of one run."""

    def __init__(
        self, owner: Return, batch: Batch, what: SendBack, *, source: Channel, out: Channel, queue: str, wanted: int
    ) -> None:
        self._session, self._journal = owner._session, owner._journal  # noqa: SLF001 - two halves of one thing
        self._topology, self._resolve = owner._topology, owner._resolve  # noqa: SLF001
        self._tally, self._size = owner._tally, owner._window  # noqa: SLF001
        self._batch, self._what = batch, what
        self._source, self._out = source, out
        self._queue, self._wanted = queue, wanted
        self._recovery = Recovery(batch.items)
        self._next = batch.next_item
        self._started = time.monotonic()

    async def window(self) -> bool:
        """Take, send, acknowledge some messages. False: that was all."""
        taken: list[_Taken] = []
        already: list[tuple[Got, Item]] = []
        room = min(self._size, self._wanted - self._tally.handled)
        is_last = room <= 0
        while not is_last and len(taken) + len(already) < room:
            got = await self._source.get(self._queue)
            if got is None or len(self._tally.stayed) + self._tally.came_back > MAX_STAYED:
                is_last = True
            else:
                self._sort(got, taken, already)
                room = min(self._size, self._wanted - self._tally.handled)
        await self._acknowledge(already)
        self._tally.found += len(already)
        if not await self._targets_are_there(taken):
            return False
        await self._send(taken)
        return not is_last and self._tally.error is None

    def _sort(self, got: Got, taken: list[_Taken], already: list[tuple[Got, Item]]) -> None:
        if got.headers.get(HEADER_REDRIVEN_BATCH) == self._batch.id:
            # It failed again while we are at it: it is not sent in circles.
            self._tally.came_back += 1
            return
        digest = message_digest(properties_of(got), got.headers, got.body)
        known = self._recovery.match(digest, is_redelivered=got.is_redelivered)
        if known is not None and known.state is ItemState.CONFIRMED:
            already.append((got, known))
            return
        why = self._why_not(got)
        route = self._resolve(got.headers)
        if why is None and isinstance(route, str):
            why = route
        if why is not None or isinstance(route, str):
            self._tally.stays(got, why or str(route))
            return
        item = known or self._new_item(got, digest, len(taken) + len(already))
        properties = self._copy(got, item, route)
        if _header_bytes(properties) > self._session.frame_max - FRAME_OVERHEAD:
            self._tally.stays(got, "its headers are larger than the broker takes in one frame")
            return
        taken.append(_Taken(got=got, item=item, route=route, properties=properties))

    def _why_not(self, got: Got) -> str | None:
        count = redriven_count(got.headers)
        if count >= MAX_REDRIVES and not self._what.is_forced:
            return f"it was sent back {count} times already (--force sends it all the same)"
        return None

    def _new_item(self, got: Got, digest: str, in_hand: int) -> Item:
        item = Item(
            number=self._next,
            position=self._tally.handled + in_hand + 1,
            digest=digest,
            has_id=bool(got.properties.message_id),
        )
        self._next += 1
        return item

    def _copy(self, got: Got, item: Item, route: Route) -> Any:
        """The properties of the copy: all of them but those a broker would refuse or act upon."""
        redriven = Redriven(
            by=self._what.actor,
            at=_now(),
            batch=self._batch.id,
            item=self._batch.item_id(item.number),
            keeps_attempts=self._what.keeps_attempts,
        )
        wiring = self._topology.wiring(route.queue)
        headers = dict(redriven_headers(got.headers, redriven, queue=route.queue, wiring=wiring))
        copy = clean_properties(got, headers, user=self._session.user)
        if self._what.keeps_ttl:
            copy.expiration = _old_ttl(got)
        if not copy.message_id:
            # Two copies of it must be one message for whoever consumes them.
            copy.message_id = redriven.item
        return copy

    async def _targets_are_there(self, taken: list[_Taken]) -> bool:
        """A copy may go through an exchange and a queue before it gets to its consumers: that queue is asked for, too."""
        for queue in dict.fromkeys(each.route.queue for each in taken):
            if not await exists(self._session, queue):
                self._tally.error = f'Queue "{queue}" is not on the broker. What was not sent stays where it is.'
                return False
        return True

    async def _send(self, taken: list[_Taken]) -> None:
        if not taken:
            return
        await self._pace(len(taken))
        await asyncio.to_thread(self._journal.intend, self._batch, [each.item for each in taken])
        answers = await self._out.publish(
            [
                Sending(
                    item=self._batch.item_id(each.item.number),
                    exchange=each.route.exchange,
                    routing_key=each.route.routing_key,
                    properties=each.properties,
                    body=each.got.body,
                )
                for each in taken
            ]
        )
        sent = [each for each, why in zip(taken, answers, strict=True) if why is None]
        numbers = [each.item.number for each in sent]
        await asyncio.to_thread(self._journal.confirm, self._batch, numbers)
        await self._acknowledge([(each.got, each.item) for each in sent])
        for each in sent:
            self._tally.targets[each.route.queue] = self._tally.targets.get(each.route.queue, 0) + 1
        for each, why in zip(taken, answers, strict=True):
            if why is not None:
                self._tally.stays(each.got, f'queue "{each.route.queue}": {why}')
                if why.startswith("no queue"):
                    self._tally.error = f'A copy for queue "{each.route.queue}" came back: {why}.'

    async def _acknowledge(self, done: list[tuple[Got, Item]]) -> None:
        """Remove the originals of copies that are confirmed, in the order in which they were taken."""
        if not done:
            return
        self._source.ack([got.tag for got, _ in done])
        await self._source.sync()
        await asyncio.to_thread(self._journal.finish, self._batch, [item.number for _, item in done])
        self._tally.moved += len(done)
        self._tally.handled += len(done)

    async def _pace(self, count: int) -> None:
        if self._what.rate_per_s is None:
            return
        due_s = (self._tally.moved + count) / self._what.rate_per_s
        wait_s = self._started + due_s - time.monotonic()
        if wait_s > 0:
            await asyncio.sleep(wait_s)  # sleep: the rate a person asked for

    async def close(self) -> None:
        """Drop the rows nothing answered to; the batch is over unless it stopped early."""
        gone = self._recovery.unanswered
        if gone:
            await asyncio.to_thread(self._journal.finish, self._batch, [item.number for item in gone])
        if self._tally.error is None:
            await asyncio.to_thread(self._journal.end, self._batch)


def clean_properties(got: Got, headers: Headers, *, user: str) -> Any:
    """A copy of the properties that a broker takes from us: another's user id goes into a header, a reply address that
    died with its connection goes, and so does an `expiration`.
    """
    made = replace_properties(got.properties)
    told = dict(headers)
    if made.user_id and made.user_id != user:
        told[HEADER_USER] = made.user_id
        made.user_id = None
    if made.reply_to == PSEUDO_REPLY:
        made.reply_to = None
    made.expiration = None
    made.headers = told
    return made


def replace_properties(properties: Any) -> Any:
    """A copy, field by field."""
    made = type(properties)()
    for name in PROPERTIES:
        setattr(made, name, getattr(properties, name))
    return made


def _header_bytes(properties: Any) -> int:
    return sum(map(len, properties.encode()))


def _old_ttl(got: Got) -> str | None:
    """How long it was given to live first; a broker takes that away when it moves the message."""
    if got.properties.expiration is not None:
        return str(got.properties.expiration)
    deaths = got.headers.get("x-death")
    for entry in deaths if isinstance(deaths, list) else ():
        told = entry.get("original-expiration") if isinstance(entry, Mapping) else None
        if isinstance(told, str) and told.isascii() and told.isdigit():
            return told
    return None


async def exists(session: Session, queue: str) -> bool:
    """Whether the queue is there. Makes none."""
    try:
        async with await session.channel() as channel:
            await channel.counts(queue)
    except ChannelClosed as error:
        if error.reply_code != NOT_FOUND:
            raise
        return False
    return True


async def exchange_exists(session: Session, exchange: str) -> bool:
    """Whether the exchange is there. Makes none."""
    try:
        async with await session.channel() as channel:
            await channel.has_exchange(exchange)
    except ChannelClosed as error:
        if error.reply_code != NOT_FOUND:
            raise
        return False
    return True


def not_found(queue: str, vhost: str) -> QueueNotFoundError:
    """The error for a queue that is not there."""
    return QueueNotFoundError(f'Queue "{queue}" is not on the broker (vhost "{vhost}"). Nothing was changed.')


def interrupted(error: RedriveError) -> BrokerUnavailableError:
    """The error of a run that broke in the middle."""
    return BrokerUnavailableError(
        f"The redrive was interrupted: {error.text}",
        hint="Nothing is lost. Run it again: it goes on where it stopped, and sends nothing twice.",
    )


def _now() -> int:
    return time.time_ns() // 1_000_000
