"""Routes: the ways copies take, from a settlement to parcels, and what may be rejected."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from redrive.brokers.rabbitmq.headers import FIRST, MAX_HEADER_BYTES, Extra, keeps_original, to_wire
from redrive.brokers.rabbitmq.publishing import Parcel
from redrive.core.attempts import HEADER_ATTEMPT, failed_by_headers
from redrive.core.letters.letter import Attempt
from redrive.core.message import HeaderValue, Message, whole_number
from redrive.core.origin import origin_of
from redrive.core.policy.fairness import group_of
from redrive.core.ports import Outgoing
from redrive.core.topology.bundle import bundle_of
from redrive.core.topology.ladder import Level, has_ladder, level_for
from redrive.core.topology.model import Topology
from redrive.core.topology.ways import ByLadder, ByReject, ByTier, Way, way_back
from redrive.core.topology.wiring import TierRetry, Wiring
from redrive.core.units import Millis, UnixMs

MAX_WAIT_MS: Final[Millis] = 5_000
"""How long a requeue may be held in hand, where the wiring says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A copy to publish in place of a delivery. `level`: of the ladder, which has to be there first."""

    parcel: Parcel
    level: Level | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One delivery that ends, with what is kept of it."""

    message: Message
    history: tuple[Attempt, ...]
    deaths: Any
    queue: str
    entry: Attempt | None = None
    lost: Attempt | None = None

    @property
    def story(self) -> tuple[Attempt, ...]:
        """The history with what this delivery adds to it."""
        return self.history + tuple(each for each in (self.lost, self.entry) if each is not None)


class Routes:
    """Where copies go, by the topology. `fair`: which of its queues are bundles."""

    def __init__(self, topology: Topology, fair: Collection[str] = ()) -> None:
        self._fair = fair
        self.max_header_bytes = MAX_HEADER_BYTES
        """What the connection takes in one frame."""
        self._wirings = {wiring.queue: wiring for wiring in topology.wirings}
        self._with_ladder = has_ladder(topology)
        self._dead_letter_ways = {
            queue.name: (str(found), queue.arguments.get("x-dead-letter-routing-key"))
            for queue in topology.queues
            if (found := queue.arguments.get("x-dead-letter-exchange")) is not None
        }

    def wiring(self, queue: str) -> Wiring | None:
        """How this queue retries and dead-letters; None: by the ladder."""
        return self._wirings.get(queue)

    def is_for_ladder(self, delay_ms: Millis) -> bool:
        """Whether a requeue is to wait on the ladder: it is declared, and the wait is longer than one in hand."""
        return self._with_ladder and delay_ms > MAX_WAIT_MS

    # ------------------------------------------------------------------------------------------- publishing

    def first(self, outgoing: Outgoing, now: UnixMs) -> Copy:
        """A message that is published for the first time, at once or later."""
        message, queue = outgoing.message, outgoing.queue
        delay_ms = 0 if outgoing.due_at is None else outgoing.due_at - now
        if outgoing.exchange or delay_ms <= 0:
            if queue in self._fair and not outgoing.exchange:
                shard = bundle_of(queue).shard_of(group_of(message.tenant))
                return Copy(parcel=self._parcel(message, FIRST, to=("", shard), arrives=("", queue)))
            return Copy(parcel=self._parcel(message, FIRST, to=(outgoing.exchange, queue)))
        assert outgoing.due_at is not None
        return self._delayed(message, queue, due_at=outgoing.due_at, delay_ms=delay_ms)

    def round_again(
        self, message: Message, queue: str, history: tuple[Attempt, ...], *, due_at: UnixMs, now: UnixMs
    ) -> Copy:
        """One that came before its time."""
        return self._delayed(message, queue, due_at=due_at, delay_ms=due_at - now, extra=Extra(history=history))

    # ------------------------------------------------------------------------------------------- settling

    def retry(self, held: Held, *, due_at: UnixMs, now: UnixMs, body: bytes | None) -> Copy | None:
        """The copy of a failed delivery; None: reject it, the broker brings it back."""
        delay_ms = max(0, due_at - now)
        way = self._way(held.queue, delay_ms)
        message = _rewritten(held.message, body)
        failed = held.entry.attempt if held.entry is not None else None
        if isinstance(way, ByReject):
            # What can be kept on the message only by a copy, and what a reject would do harm with. What is rejected in
            # a fair queue the broker would count for the short queue it lay in last.
            needs_copy = message is not held.message or HEADER_ATTEMPT in message.headers or held.queue in self._fair
            if not needs_copy and is_sound(held.deaths) and not looks_like_a_cycle(held.deaths, held.queue):
                return None
            if failed is None:
                failed = failed_by_headers(message.headers, queue=held.queue).failed + 1
        attempt = None if failed is None else failed + 1
        return self._copy(held, message, way, due_at=due_at, now=now, attempt=attempt)

    def requeue(self, held: Held, *, due_at: UnixMs, now: UnixMs) -> Copy:
        """The copy of a delivery that is to come again at `due_at` at no cost."""
        way = self._way(held.queue, max(0, due_at - now)) if due_at > now else ByLadder(delay_ms=0)
        # The copy loses what the broker counted.
        failed = failed_by_headers(held.message.headers, queue=held.queue).failed
        attempt = failed + 1 if failed and HEADER_ATTEMPT not in held.message.headers else None
        return self._copy(held, held.message, way, due_at=due_at, now=now, attempt=attempt, is_retry=False)

    def dead_letter(self, held: Held) -> Copy | None:
        """The copy of a delivery that is given up where the wiring rejects; None: it may be rejected."""
        may_reject = is_sound(held.deaths) and held.queue not in self._fair
        if may_reject or held.queue not in self._dead_letter_ways:
            return None
        return Copy(parcel=self._as_rejected(held, held.message, Extra()))

    def _way(self, queue: str, delay_ms: Millis) -> Way:
        wiring = self._wirings.get(queue)
        way = (
            ByLadder(delay_ms=delay_ms)
            if wiring is None
            else way_back(wiring.retry, delay_ms, with_ladder=self._with_ladder)
        )
        if isinstance(way, ByReject) and queue not in self._dead_letter_ways:
            return ByLadder(delay_ms=delay_ms)
        return way

    def _copy(
        self,
        held: Held,
        message: Message,
        way: Way,
        *,
        due_at: UnixMs,
        now: UnixMs,
        attempt: int | None,
        is_retry: bool = True,
    ) -> Copy:
        extra = Extra(history=held.story, attempt=attempt)
        match way:
            case ByLadder() if due_at <= now:
                return Copy(parcel=self._parcel(message, extra, to=("", held.queue)))
            case ByLadder():
                return self._delayed(message, held.queue, due_at=due_at, delay_ms=due_at - now, extra=extra)
            case ByTier(tier=tier):
                wiring = self._wirings[held.queue]
                assert isinstance(wiring.retry, TierRetry)
                named = _tier_headers(held, wiring, wiring.retry, is_retry=is_retry)
                exchange, key = wiring.retry.exchange, tier.routing_key
                return Copy(parcel=self._parcel(message, replace(extra, headers=named), to=(exchange, key)))
            case ByReject():
                return Copy(parcel=self._as_rejected(held, message, extra))

    def _as_rejected(self, held: Held, message: Message, extra: Extra) -> Parcel:
        """Published to where a reject would have taken it."""
        exchange, key = self._dead_letter_ways[held.queue]
        routing_key = key if isinstance(key, str) else (message.properties.routing_key or held.queue)
        return self._parcel(message, extra, to=(exchange, routing_key), arrives=("", held.queue))

    def _delayed(
        self, message: Message, queue: str, *, due_at: UnixMs, delay_ms: Millis, extra: Extra | None = None
    ) -> Copy:
        level = level_for(delay_ms)
        extra = replace(extra or Extra(), due_at=due_at)
        return Copy(parcel=self._parcel(message, extra, to=(level.name, queue), arrives=("", queue)), level=level)

    def _parcel(
        self, message: Message, extra: Extra, *, to: tuple[str, str], arrives: tuple[str, str] | None = None
    ) -> Parcel:
        """`to`: exchange and routing key. `arrives`: those under which it comes to its queue, where they are others."""
        exchange, routing_key = to
        by, key = arrives or to
        header = to_wire(message, exchange=by, routing_key=key, extra=extra, limit=self.max_header_bytes)
        return Parcel(
            exchange=exchange, routing_key=routing_key, header=header, body=message.body, message_id=message.id
        )


def _rewritten(message: Message, body: bytes | None) -> Message:
    if body is None or body == message.body:
        return message
    rewritten = replace(message, body=body, original=message.original_body)
    # Without the first body at hand the message stays as it is: a letter must show what was sent.
    return rewritten if keeps_original(rewritten) else message


def _tier_headers(held: Held, wiring: Wiring, retry: TierRetry, *, is_retry: bool) -> dict[str, HeaderValue]:
    exchange, routing_key = origin_of(held.message, queue=held.queue, wiring=wiring)
    named: dict[str, HeaderValue] = {}
    if retry.count_header is not None and is_retry:
        before = whole_number(held.message.headers.get(retry.count_header)) or 0
        named[retry.count_header] = before + 1 if held.entry is None else held.entry.attempt
    if retry.routing_key_header is not None and routing_key is not None:
        named[retry.routing_key_header] = routing_key
    if retry.exchange_header is not None and exchange is not None:
        named[retry.exchange_header] = exchange
    return named


_DEATH: Final[dict[str, type | tuple[type, ...]]] = {
    "count": int,
    "reason": str,
    "queue": str,
    "exchange": str,
    "routing-keys": list,
    "time": datetime,
}


def is_sound(deaths: Any) -> bool:
    """Whether the broker can go on counting from this `x-death`. From some that were forged it cannot: before 4.0 its
    queue crashes, and such a message is never rejected into a dead-letter exchange.
    """
    return deaths is None or (isinstance(deaths, list) and all(map(_is_sound_entry, deaths)))


def looks_like_a_cycle(deaths: Any, queue: str) -> bool:
    """Whether the broker would drop the message on its way back to this queue. Before 4.0 it believes an `x-death` that
    a publisher sent, and takes a message that died here of anything but a rejection for one that goes round for ever,
    whatever else stands in the list (measured on 3.10).
    """
    return isinstance(deaths, list) and any(
        isinstance(entry, dict) and entry.get("queue") == queue and entry.get("reason") != "rejected"
        for entry in deaths
    )


def _is_sound_entry(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    return all(
        type(entry[name]) is kind if kind is int else isinstance(entry[name], kind)
        for name, kind in _DEATH.items()
        if name in entry
    ) and _are_texts(entry.get("routing-keys", []))


def _are_texts(keys: Iterable[Any]) -> bool:
    return all(isinstance(key, str) for key in keys)
