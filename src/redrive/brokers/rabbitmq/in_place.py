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
harmless, for either stands for the other. After it a row speaks only for a message that the broker must have had out
exactly once since: on a quorum queue by its count of deliveries; on a classic one, where what was in hand comes back at
the head, in its order, by being the next there, if nobody had looked at it before. Whatever is not certain is sent,
with a new id: nothing is lost by that, and it runs twice at most. Looks are noted in the journal; those of other
programs, between the kill and the next run, are not known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from redrive.brokers.rabbitmq.journal import Batch, Item, ItemState, Journal
from redrive.brokers.rabbitmq.looking import looked_at
from redrive.brokers.rabbitmq.publishing import Parcel
from redrive.brokers.rabbitmq.session import ErrandChannel, Got, Session
from redrive.brokers.rabbitmq.tables import Content, Unwritable, write_content
from redrive.core.in_place import (
    Redriven,
    Route,
    attempts_of,
    dead_since,
    message_digest,
    moved_headers,
    reason_of,
    redriven_count,
    redriven_headers,
)
from redrive.core.live import SendBack, SentBack, Stayed, Waiting
from redrive.core.message import HEADER_REDRIVEN_BATCH, Headers
from redrive.core.ports import Clock
from redrive.core.redrive import MAX_REDRIVES
from redrive.core.topology.model import Topology
from redrive.errors import QueueNotFoundError

WINDOW: Final = 100
"""Messages in hand at a time: at most so many are sent twice around a kill."""
MAX_STAYED: Final = 1_000
"""Messages that stay are held until the end; when there are more, the run ends."""
COMES_BACK_MS: Final = 1_000
"""How long what a killed run had in hand may take to lie in its queue again, once its connection has ended."""
PSEUDO_REPLY: Final = "amq.rabbitmq.reply-to"

Resolve = Callable[[Headers], Route | str]
"""Where a message goes back to, or why that is not known."""


def properties_of(got: Got) -> dict[str, Any]:
    """Those that are set, without the headers."""
    if got.content is None:
        return {}
    found = {each.name: getattr(got.content, each.name) for each in fields(Content) if each.name != "headers"}
    return {name: value for name, value in found.items() if value is not None}


async def look(session: Session, queue: str, *, limit: int, resolve: Resolve) -> tuple[Waiting, ...]:
    """The first `limit` messages. They lie where they lay when this returns; killed in here, too, a moment later."""
    async with looked_at(session.channel, queue, limit) as taken:
        return tuple(_waiting(got, position, resolve) for position, got in enumerate(taken, 1))


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
        dead_since=dead_since(headers, None if got.content is None else got.content.timestamp),
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
        self._at_head = [item for item in self._confirmed if not item.was_looked_at]

    def match(self, digest: str, *, is_redelivered: bool, deliveries: int = 0) -> Item | None:
        """The row of this message, which is used up; None: it is new."""
        found = self._returned(digest, is_redelivered=is_redelivered, deliveries=deliveries)
        if found is None:
            certain = [*self._intended, *(item for item in self._confirmed if item.has_id)]
            found = next((item for item in certain if item.digest == digest), None)
        if found is None:
            self._at_head.clear()
            return None
        for rows in (self._intended, self._confirmed, self._at_head):
            if found in rows:
                rows.remove(found)
        return found

    def _returned(self, digest: str, *, is_redelivered: bool, deliveries: int) -> Item | None:
        """Of the rows after whose confirm an ack may have gone out."""
        alike = [item for item in self._confirmed if item.digest == digest and not item.was_looked_at]
        if deliveries:
            return next((item for item in alike if item.deliveries + 1 == deliveries), None)
        for place, item in enumerate(self._at_head if is_redelivered else ()):
            if item.digest == digest:
                # Acknowledgements went out in this order: what comes before it and is not back is gone.
                del self._at_head[:place]
                return item
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
    header: bytes


@dataclass(slots=True)
class _Tally:
    """What became of the messages so far."""

    handled: int = 0
    moved: int = 0
    found: int = 0
    came_back: int = 0
    leftovers: int = 0
    targets: dict[str, int] = field(default_factory=dict)
    stayed: list[Stayed] = field(default_factory=list)
    error: str | None = None

    def stays(self, got: Got, why: str) -> None:
        """It is held in hand until the end, and lies in its queue then."""
        self.handled += 1
        message_id = None if got.content is None else got.content.message_id
        self.stayed.append(Stayed(position=self.handled, message_id=message_id, why=why))


class Return:
    """One run of sending back. `resolve` says where each message goes; wirings come from `topology`."""

    def __init__(
        self,
        session: Session,
        journal: Journal,
        *,
        clock: Clock,
        topology: Topology,
        resolve: Resolve,
        moved: str | None = None,
    ) -> None:
        """`moved`: nobody sends them back, they only change their queue, and count on as messages of this one."""
        self._session, self._journal, self._clock = session, journal, clock
        self._topology, self._resolve = topology, resolve
        self._moved = moved
        self._tally = _Tally()
        self._next = 1
        self._started_ms = clock.monotonic_ms()

    async def run(self, queue: str, what: SendBack, *, on_count: Callable[[int], None]) -> SentBack:
        """Send them back. Stops early where a target is gone. Raises `ChannelLost`, `LinkLost`: run it again then."""
        batch = await asyncio.to_thread(self._journal.begin, actor=what.actor, now=self._clock.now())
        self._next = batch.next_item
        recovery = Recovery(batch.items)
        if batch.items:
            await self._clock.sleep(COMES_BACK_MS)
        async with self._session.channel() as source:
            depth, _ = await source.declare_queue(queue, passive=True)
            wanted = depth if what.limit is None else min(depth, max(what.limit - batch.moved, len(batch.items)))
            hand = _Hand(source=source, queue=queue, batch=batch, what=what, wanted=wanted, recovery=recovery)
            while await self._window(hand):
                on_count(self._tally.moved)
            await self._end(hand)
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

    # ------------------------------------------------------------------------------------------- one window

    async def _window(self, hand: _Hand) -> bool:
        """Take, send and acknowledge some messages. False: that was all."""
        tally = self._tally
        wanted = min(WINDOW, hand.wanted - tally.handled)
        if wanted <= 0 or len(tally.stayed) + tally.came_back > MAX_STAYED:
            return False
        taken = await hand.source.take(hand.queue, wanted)
        to_send: list[_Taken] = []
        already: list[tuple[Got, Item]] = []
        for got in taken:
            self._sort(hand, got, to_send=to_send, already=already)
        await self._acknowledge(hand, already, in_hand=len(to_send))
        tally.found += len(already)
        if not await self._targets_are_there(to_send):
            return False
        await self._send(hand, to_send)
        return len(taken) == wanted and tally.error is None

    def _sort(self, hand: _Hand, got: Got, *, to_send: list[_Taken], already: list[tuple[Got, Item]]) -> None:
        if got.headers.get(HEADER_REDRIVEN_BATCH) == hand.batch.id:
            # It failed again while we are at it: it is not sent in circles.
            self._tally.came_back += 1
            return
        digest = message_digest(properties_of(got), got.headers, got.body)
        known = hand.recovery.match(digest, is_redelivered=got.is_redelivered, deliveries=got.deliveries)
        if known is not None and known.state is ItemState.CONFIRMED:
            already.append((got, known))
            return
        route = self._why_not(hand, got) or self._resolve(got.headers)
        if isinstance(route, str):
            self._tally.stays(got, route)
            return
        item = (
            self._new_item(got, digest, len(to_send) + len(already))
            if known is None
            else replace(known, deliveries=got.deliveries)
        )
        header = self._header(hand, got, item=item, route=route)
        if isinstance(header, str):
            self._tally.stays(got, header)
        else:
            to_send.append(_Taken(got=got, item=item, route=route, header=header))

    def _why_not(self, hand: _Hand, got: Got) -> str | None:
        if got.content is None:
            return "its properties cannot be read"
        count = redriven_count(got.headers)
        if count >= MAX_REDRIVES and not hand.what.is_forced:
            return f"it was sent back {count} times already (--force sends it all the same)"
        return None

    def _new_item(self, got: Got, digest: str, in_hand: int) -> Item:
        item = Item(
            number=self._next,
            position=self._tally.handled + in_hand + 1,
            digest=digest,
            has_id=got.content is not None and bool(got.content.message_id),
            deliveries=got.deliveries,
            was_looked_at=got.is_redelivered and not got.deliveries,
        )
        self._next += 1
        return item

    def _header(self, hand: _Hand, got: Got, *, item: Item, route: Route) -> bytes | str:
        """The copy's properties and headers as bytes, or why there is no copy."""
        assert got.content is not None, "one that cannot be read stays"
        item_id, user = hand.batch.item_id(item.number), self._session.address.user
        if self._moved is not None:
            moved = moved_headers(got.headers, queue=self._moved, item=item_id)
            return written(got.content, moved, item_id=item_id, user=user)
        redriven = Redriven(
            by=hand.what.actor,
            at=self._clock.now(),
            batch=hand.batch.id,
            item=item_id,
            keeps_attempts=hand.what.keeps_attempts,
            keeps_ttl=hand.what.keeps_ttl,
        )
        wiring = self._topology.wiring(route.queue)
        headers = redriven_headers(got.headers, redriven, queue=route.queue, wiring=wiring)
        return written(
            got.content,
            headers,
            item_id=item_id,
            user=user,
            ttl=old_ttl(got) if hand.what.keeps_ttl else None,
        )

    # ------------------------------------------------------------------------------------------- sending

    async def _targets_are_there(self, to_send: list[_Taken]) -> bool:
        """A copy may pass an exchange and a queue before it gets to its consumers: their queue is looked for, too."""
        for queue in dict.fromkeys(each.route.queue for each in to_send):
            if await self._session.counts(queue) is None:
                self._tally.error = f'Queue "{queue}" not found. What was not sent stays where it is.'
                return False
        return True

    async def _send(self, hand: _Hand, to_send: list[_Taken]) -> None:
        if not to_send:
            return
        await self._pace(hand.what, len(to_send))
        await asyncio.to_thread(self._journal.intend, hand.batch, [each.item for each in to_send])
        outcomes = await self._session.publish([_parcel(hand.batch, each) for each in to_send])
        sent = [each for each, outcome in zip(to_send, outcomes, strict=True) if outcome is None]
        await asyncio.to_thread(self._journal.confirm, hand.batch, [each.item.number for each in sent])
        await self._acknowledge(hand, [(each.got, each.item) for each in sent], in_hand=len(to_send) - len(sent))
        for each in sent:
            self._tally.targets[each.route.queue] = self._tally.targets.get(each.route.queue, 0) + 1
        for each, outcome in zip(to_send, outcomes, strict=True):
            if outcome is not None:
                self._tally.leftovers += 1
                self._tally.stays(each.got, outcome.text)
                if isinstance(outcome, QueueNotFoundError):
                    self._tally.error = f"{outcome.text} What was not sent stays where it is."

    async def _acknowledge(self, hand: _Hand, done: list[tuple[Got, Item]], *, in_hand: int = 0) -> None:
        """Remove the originals of copies that are confirmed, in the order in which they were taken. `in_hand`: others
        of this window, which are not to be removed now.
        """
        if not done:
            return
        is_all = not in_hand and not self._tally.stayed and not self._tally.came_back
        await hand.source.ack([got.tag for got, _ in done], is_all=is_all)
        await asyncio.to_thread(self._journal.finish, hand.batch, [item.number for _, item in done])
        self._tally.moved += len(done)
        self._tally.handled += len(done)

    async def _pace(self, what: SendBack, count: int) -> None:
        if what.rate_per_s is not None:
            due_ms = 1_000 * (self._tally.moved + count) / what.rate_per_s
            await self._clock.sleep(max(0.0, self._started_ms + due_ms - self._clock.monotonic_ms()))

    async def _end(self, hand: _Hand) -> None:
        """Drop the rows nothing answered to. The batch is over unless it stopped early or a copy was refused."""
        gone = hand.recovery.unanswered
        if gone:
            await asyncio.to_thread(self._journal.finish, hand.batch, [item.number for item in gone])
        if self._tally.error is None and not self._tally.leftovers:
            await asyncio.to_thread(self._journal.end, hand.batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hand:
    """What one run works with."""

    source: ErrandChannel
    queue: str
    batch: Batch
    what: SendBack
    wanted: int
    recovery: Recovery


def _parcel(batch: Batch, each: _Taken) -> Parcel:
    return Parcel(
        exchange=each.route.exchange,
        routing_key=each.route.routing_key,
        header=each.header,
        body=each.got.body,
        message_id=batch.item_id(each.item.number),
    )


def written(content: Content, headers: Headers, *, item_id: str, user: str, ttl: str | None = None) -> bytes | str:
    """A copy's properties and headers as a broker takes them from us, or why it would not: another's user id and a
    reply address that died with its connection are left out, and an `expiration` is only what `ttl` says.

    One without an id is named `item_id`: two copies of it must be one message for whoever consumes them.
    """
    copy = replace(
        content,
        headers=dict(headers),
        user_id=content.user_id if content.user_id == user else None,
        reply_to=None if content.reply_to == PSEUDO_REPLY else content.reply_to,
        message_id=content.message_id or item_id,
        expiration=ttl,
    )
    try:
        return write_content(copy)
    except Unwritable:
        return "its headers hold what cannot be written again"


def old_ttl(got: Got) -> str | None:
    """How long a message of another program was given to live; a broker takes that away when it moves the message."""
    if got.content is not None and got.content.expiration is not None:
        return got.content.expiration
    deaths = got.headers.get("x-death")
    for entry in deaths if isinstance(deaths, list) else ():
        told = entry.get("original-expiration") if isinstance(entry, Mapping) else None
        if isinstance(told, str) and told.isascii() and told.isdigit():
            return told
    return None
