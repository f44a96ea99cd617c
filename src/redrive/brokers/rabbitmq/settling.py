"""Settler: carries out how deliveries end.

Acks, rejects and requeues are frames that nobody confirms: lost with the connection, the message is pushed again. What
ends by a copy (most retries) is published first, confirmed, and acknowledged after that.

Killed right here, what is true?
- before the copy is confirmed: the message is pushed again, and there may be a copy, too.
- after it: as before. Both carry the same id, and the claim lets one of them be handled.

A publish that fails leaves all of its batch in hand and raises; whose copy is confirmed is remembered, so that a repeat
only acknowledges it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias, assert_never

from redrive.brokers.rabbitmq.consuming import Inbox, InHand
from redrive.brokers.rabbitmq.publishing import Outcome
from redrive.brokers.rabbitmq.routes import MAX_WAIT_MS, Copy, Held, Routes
from redrive.core import settlement
from redrive.core.ports import Clock, Settle
from redrive.core.units import UnixMs

SendCopies = Callable[[Sequence[Copy]], Awaitable[list[Outcome]]]

_ACK: Final = settlement.Ack
_Held: TypeAlias = tuple[int, Inbox, InHand]


class _Ends:
    """What becomes of the deliveries of one inbox."""

    __slots__ = ("acks", "rejects", "requeues", "rests")

    def __init__(self) -> None:
        self.acks: list[int] = []
        self.rejects: list[int] = []
        self.requeues: list[int] = []
        self.rests: list[tuple[int, UnixMs]] = []


class Settler:
    """Ends deliveries, by the wirings of their queues."""

    def __init__(self, inboxes: Mapping[str, Inbox], routes: Routes, *, clock: Clock, send: SendCopies) -> None:
        self._inboxes = inboxes
        self._routes = routes
        self._clock = clock
        self._send = send

    async def settle(self, batch: Sequence[Settle]) -> list[bool]:
        """See `Broker.settle`. Raises where a copy could not be published: nothing of the batch has ended then."""
        now = self._clock.now()
        held = self._held(batch)
        ends: dict[Inbox, _Ends] = {}
        try:
            copies = self._sorted(batch, held, ends=ends, now=now)
            if copies:
                await self._publish(copies)
        except BaseException:
            # Nothing has ended: they stay in hand.
            for _, _, in_hand in held:
                in_hand.is_ending = False
            raise
        answers = [False] * len(batch)
        for place, inbox, _ in held:
            answers[place] = inbox.in_hand.pop(batch[place].lease.ref, None) is not None
        for inbox, its in ends.items():
            _carry_out(inbox, its, now)
        return answers

    def _sorted(
        self, batch: Sequence[Settle], held: list[_Held], *, ends: dict[Inbox, _Ends], now: UnixMs
    ) -> list[tuple[InHand, Copy]]:
        """Fill `ends`; the copies that have to be published first."""
        copies: list[tuple[InHand, Copy]] = []
        for place, inbox, in_hand in held:
            settle = batch[place]
            its = ends.get(inbox)
            if its is None:
                its = ends[inbox] = _Ends()
            if type(settle.settlement) is _ACK:
                its.acks.append(settle.lease.ref)
                continue
            copy = self._end(settle, in_hand, inbox, ends=its, now=now)
            if copy is not None:
                its.acks.append(settle.lease.ref)
                if not in_hand.copied:
                    copies.append((in_hand, copy))
        return copies

    def _held(self, batch: Sequence[Settle]) -> list[_Held]:
        """Those of the batch that are in hand, and from now on nobody else's to end; with their places."""
        held: list[_Held] = []
        for place, settle in enumerate(batch):
            lease = settle.lease
            inbox = self._inboxes.get(lease.queue)
            if inbox is None or inbox.token != lease.token:
                continue
            in_hand = inbox.in_hand.get(lease.ref)
            if in_hand is not None and not in_hand.is_ending:
                in_hand.is_ending = True
                held.append((place, inbox, in_hand))
        return held

    def _end(self, settle: Settle, in_hand: InHand, inbox: Inbox, *, ends: _Ends, now: UnixMs) -> Copy | None:
        """Put it where it belongs in `ends`, or give the copy it ends by."""
        tag, end = settle.lease.ref, settle.settlement
        received = in_hand.received
        held = Held(
            message=received.message,
            history=received.history,
            deaths=in_hand.deaths,
            queue=inbox.queue,
            entry=settle.entry,
            lost=settle.lost,
        )
        match end:
            case settlement.Ack():
                ends.acks.append(tag)
            case settlement.Retry(due_at=due_at, body=body):
                copy = self._routes.retry(held, due_at=due_at, now=now, body=body)
                if copy is None:
                    ends.rejects.append(tag)
                return copy
            case settlement.Requeue(due_at=due_at):
                return self._requeue(held, inbox, ends, when=(tag, due_at, now))
            case settlement.DeadLetter():
                wiring = self._routes.wiring(inbox.queue)
                if wiring is None or not wiring.dead_letter.by_reject:
                    ends.acks.append(tag)
                    return None
                copy = self._routes.dead_letter(held)
                if copy is None:
                    ends.rejects.append(tag)
                return copy
            case _ as never:
                assert_never(never)
        return None

    def _requeue(self, held: Held, inbox: Inbox, ends: _Ends, *, when: tuple[int, UnixMs, UnixMs]) -> Copy | None:
        tag, due_at, now = when
        if held.entry is None and due_at <= now:
            ends.requeues.append(tag)
            return None
        wiring = self._routes.wiring(inbox.queue)
        waits_locally = wiring is not None and wiring.waits_locally and held.entry is None
        if waits_locally and inbox.may_rest(more=len(ends.rests)) and not self._routes.is_for_ladder(due_at - now):
            ends.rests.append((tag, due_at))
            return None
        return self._routes.requeue(held, due_at=due_at, now=now)

    async def _publish(self, copies: list[tuple[InHand, Copy]]) -> None:
        outcomes = await self._send([copy for _, copy in copies])
        for (in_hand, _), outcome in zip(copies, outcomes, strict=True):
            in_hand.copied = outcome is None
        for outcome in outcomes:
            if outcome is not None:
                raise outcome


def _carry_out(inbox: Inbox, ends: _Ends, now: UnixMs) -> None:
    if inbox.is_lost:
        return
    if ends.rejects:
        inbox.reject(ends.rejects)
    if ends.requeues:
        inbox.requeue(ends.requeues)
    for tag, due_at in ends.rests:
        inbox.rest(tag, max(0, min(due_at - now, MAX_WAIT_MS)) / 1_000, lambda tag: inbox.requeue([tag]))
    if ends.acks:
        inbox.ack(ends.acks)
