"""Looking at a queue on the broker, and sending its messages back from there: what may be done, and what is sent.

Nothing here touches a broker: it reads headers as any program may have left them, and decides. A message that redrive
gave up tells where it came from in redrive's own headers; others through the broker's `x-death`, or not at all, and
then a person has to say it.

A copy that goes back has a fresh budget: no broker goes on counting on it (its headers are gone) and redrive does not
either. So no baseline is stamped: `x-death` starts empty.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from redrive.core.attempts import HEADER_ATTEMPT, HEADER_BASELINE, HEADER_KEEPS, failed_by_x_death
from redrive.core.message import (
    HEADER_FIRST_FAILED_AT,
    HEADER_LETTER,
    HEADER_REDRIVEN_AT,
    HEADER_REDRIVEN_BATCH,
    HEADER_REDRIVEN_BY,
    HEADER_REDRIVEN_COUNT,
    OWN_HEADER_PREFIX,
    Headers,
    HeaderValue,
    is_broker_header,
    is_own_header,
    whole_number,
)
from redrive.core.origin import HEADER_EXCHANGE, HEADER_ROUTING_KEY, by_death
from redrive.core.text import cut
from redrive.core.topology.entry import (
    HEADER_ATTEMPTS,
    HEADER_DEATHS,
    HEADER_QUEUE,
    HEADER_REASON_CODE,
    HEADER_REASON_TEXT,
)
from redrive.core.topology.ladder import is_level
from redrive.core.topology.model import QueueType, Topology
from redrive.core.topology.wiring import RejectRetry, TierRetry, Wiring
from redrive.core.units import UnixMs, rfc3339

HEADER_ITEM: Final = f"{OWN_HEADER_PREFIX}n-item"
"""Names one message of one redrive: two copies of it, sent around a crash, share it."""
HEADER_ORIGINAL_QUEUE: Final = "x-original-queue"
"""Other programs' name for where a dead letter came from."""

MAX_ACTOR_BYTES: Final = 200
MAX_REASON_BYTES: Final = 1_000

_ROUTES_AGAIN: Final = frozenset({"cc", "bcc"})
"""A broker routes a copy by these once more."""
_MESSAGE_FIELDS: Final = ("published-at", "key", "tenant", "priority", "original", "rest")
"""Of redrive's own headers those that are a part of the message, and would be properties were there room for them."""
_KEPT: Final = frozenset({HEADER_LETTER, HEADER_FIRST_FAILED_AT, HEADER_EXCHANGE, HEADER_ROUTING_KEY}) | {
    f"{OWN_HEADER_PREFIX}-{name}" for name in _MESSAGE_FIELDS
}
"""... the link to the letter, which its success closes; since when it fails; and where it was published first."""
_HISTORY: Final = f"{OWN_HEADER_PREFIX}-history"
_EXPIRES_AT: Final = f"{OWN_HEADER_PREFIX}-expires-at"
_PUBLISHED_AT: Final = f"{OWN_HEADER_PREFIX}-published-at"
_REJECTED: Final = frozenset({"rejected", "delivery_limit"})
_BUS_HEADERS: Final = frozenset({"x-original-queue", "x-final-status-code", "x-final-error", "x-final-retry-count"})
"""What a bus writes on its dead letters: taken off again where redrive wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One queue as it stands. `kind` None: not known. `delivery_limit`: in force, None for none; it counts only where
    `is_limit_known`. `oldest_at`: since when its first message is dead; None: it says nothing, or nobody may look.
    """

    queue: str
    depth: int
    consumers: int
    kind: QueueType | None = None
    delivery_limit: int | None = None
    is_limit_known: bool = False
    oldest_at: UnixMs | None = None
    note: str = ""


def look_refusal(standing: Standing) -> str | None:
    """Why a look would do harm; None: it changes nothing.

    Every look is a delivery that is given back. A classic queue does not count those; a quorum queue does, and one with
    a delivery limit drops or moves a message that was looked at too often.
    """
    name = f'"{standing.queue}"'
    if standing.kind is QueueType.CLASSIC:
        return None
    if standing.kind is QueueType.STREAM:
        return f"{name} is a stream: nothing is taken from one and given back."
    if standing.kind is None:
        return f"It is not known what kind of queue {name} is, and a quorum queue counts every look."
    if not standing.is_limit_known:
        return (
            f"{name} is a quorum queue that counts every look, and whether a delivery limit is in force on it "
            "(RabbitMQ 4 has one of 20 by default, a policy may set one) is not known without the management API."
        )
    if standing.delivery_limit is None:
        return None
    return (
        f"{name} is a quorum queue with a delivery limit of {standing.delivery_limit}, and each look counts towards "
        "it: a message that was looked at too often is dropped or moved."
    )


# ---------------------------------------------------------------------------------------------------- what is read


def origin_queue(headers: Headers, *, own: str = "") -> str | None:
    """The queue a dead letter was given up in, by its headers; None where they do not say. `own`: where it lies now.

    Best first: redrive's own header, `x-original-queue`, then `x-death` (or what redrive kept of it): the latest
    rejection, else the first death. Queues in which messages only wait are not where one came from.
    """
    for name in (HEADER_QUEUE, HEADER_ORIGINAL_QUEUE):
        told = _text(headers.get(name))
        if told:
            return told
    entries = [entry for entry in _deaths(headers) if entry[0] not in ("", own) and not is_level(entry[0])]
    rejected = [queue for queue, reason in entries if reason in _REJECTED]
    if rejected:
        return rejected[0]
    return entries[-1][0] if entries else None


def _deaths(headers: Headers) -> Iterator[tuple[str, str]]:
    """(queue, reason) of every readable entry, latest first."""
    for name in ("x-death", HEADER_DEATHS):
        deaths = headers.get(name)
        for entry in deaths[:100] if isinstance(deaths, list | tuple) else ():
            if isinstance(entry, dict):
                yield _text(entry.get("queue")) or "", _text(entry.get("reason")) or ""


def dead_since(headers: Headers, timestamp: object = None) -> UnixMs | None:
    """Since when it is dead, as far as it says: its latest death, else its first failure, else its own timestamp."""
    times = [
        entry.get("time")
        for deaths in (headers.get("x-death"), headers.get(HEADER_DEATHS))
        for entry in (deaths[:100] if isinstance(deaths, list | tuple) else ())
        if isinstance(entry, dict)
    ]
    known = [at for at in map(_instant, times) if at is not None]
    if known:
        return max(known)
    first = whole_number(headers.get(HEADER_FIRST_FAILED_AT))
    return _instant(timestamp) if first is None else first


def _instant(value: object) -> UnixMs | None:
    if isinstance(value, datetime):
        at = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return int(at.timestamp() * 1_000)
    seconds = whole_number(value)
    return None if seconds is None else seconds * 1_000


def reason_of(headers: Headers) -> tuple[str, str]:
    """(code, text) of why it is dead, as far as it says; empty where it does not."""
    code, text = _text(headers.get(HEADER_REASON_CODE)), _text(headers.get(HEADER_REASON_TEXT))
    if code or text:
        return code or "", cut(text or "", MAX_REASON_BYTES)
    error, status = _text(headers.get("x-final-error")), whole_number(headers.get("x-final-status-code"))
    if error or status is not None:
        return "" if status is None else f"HTTP_{status}", cut(error or "", MAX_REASON_BYTES)
    deaths = list(_deaths(headers))
    return (deaths[0][1].upper(), f'{deaths[0][1]} in queue "{deaths[0][0]}"') if deaths else ("", "")


def attempts_of(headers: Headers, *, queue: str) -> int:
    """Attempts that failed before it was given up: as redrive counted, else rejections by `queue` in `x-death`."""
    counted = whole_number(headers.get(HEADER_ATTEMPTS))
    if counted is not None:
        return counted
    started = whole_number(headers.get(HEADER_ATTEMPT))
    if started:
        return started
    return max(
        failed_by_x_death(headers.get("x-death"), queue=queue).failed,
        failed_by_x_death(headers.get(HEADER_DEATHS), queue=queue).failed,
    )


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


# ---------------------------------------------------------------------------------------------------- where it goes


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a copy is published; `queue` is where it will be consumed in the end."""

    queue: str
    exchange: str
    routing_key: str


def route_to(queue: str, topology: Topology) -> Route:
    """The way back to a consumer queue: straight to it, past every exchange that others are bound to.

    Where dead letters of a queue are parked behind an exchange of their own (`retry_per_queue`), they go back through
    its retry queue, as its operators expect.
    """
    wiring = topology.wiring(queue)
    if wiring is not None and isinstance(wiring.retry, RejectRetry) and wiring.dead_letter.exchange:
        found = next((each for each in topology.queues if each.name == queue), None)
        arguments: Mapping[str, Any] = {} if found is None else found.arguments
        exchange, key = arguments.get("x-dead-letter-exchange"), arguments.get("x-dead-letter-routing-key")
        if exchange and key:
            return Route(queue=queue, exchange=str(exchange), routing_key=str(key))
    return Route(queue=queue, exchange="", routing_key=queue)


def recovered_route(
    queue: str, dead_letter_queue: str, *, exchanges: Collection[str], queues: Collection[str]
) -> Route:
    """As `route_to`, from the names that are on the broker: for queues named as `retry_per_queue` names them."""
    is_parked = dead_letter_queue == f"{queue}.dlq" and f"retry.{queue}" in exchanges and f"{queue}.retry" in queues
    if is_parked:
        return Route(queue=queue, exchange=f"retry.{queue}", routing_key="retry")
    return Route(queue=queue, exchange="", routing_key=queue)


def wired_queue(headers: Headers, dead_letter_queue: str, topology: Topology) -> str | None:
    """The consumer queue a dead letter belongs to: the only one whose dead letters lie here, else as headers say."""
    wired = [wiring.queue for wiring in topology.wirings if wiring.dead_letter_queue == dead_letter_queue]
    return wired[0] if len(wired) == 1 else origin_queue(headers, own=dead_letter_queue)


# ---------------------------------------------------------------------------------------------------- what is sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    """Who sends it back, when, in which batch, and as which item of it."""

    by: str
    at: UnixMs
    batch: str
    item: str
    keeps_attempts: bool = False
    keeps_ttl: bool = False


def redriven_headers(headers: Headers, redriven: Redriven, *, queue: str, wiring: Wiring | None = None) -> Headers:
    """The headers of the copy: the user's, the link to the letter, who sent it back. `queue`: where it is consumed.

    Nothing of the broker's, nothing that routes it again, nothing that says why it was dead: it may die anew, of
    something else. With `keeps_attempts` it goes on counting where it was.
    """
    stale = _written_by(wiring)
    if HEADER_LETTER in headers:
        stale = stale | _BUS_HEADERS
    kept = {name: value for name, value in headers.items() if _is_kept(name) and name.lower() not in stale}
    copy: dict[str, HeaderValue] = {
        **_origin(headers, queue),
        **kept,
        HEADER_REDRIVEN_AT: rfc3339(redriven.at),
        HEADER_REDRIVEN_BY: cut(redriven.by, MAX_ACTOR_BYTES),
        HEADER_REDRIVEN_COUNT: redriven_count(headers) + 1,
        HEADER_REDRIVEN_BATCH: redriven.batch,
        HEADER_ITEM: redriven.item,
    }
    if redriven.keeps_attempts:
        copy[HEADER_ATTEMPT] = attempts_of(headers, queue=queue) + 1
        copy[HEADER_KEEPS] = True
        if _HISTORY in headers:
            copy[_HISTORY] = headers[_HISTORY]
    lifetime_ms = lifetime_of(headers) if redriven.keeps_ttl else None
    if lifetime_ms is not None:
        copy[_EXPIRES_AT] = redriven.at + lifetime_ms
    return copy


def _origin(headers: Headers, queue: str) -> dict[str, HeaderValue]:
    """Where it was published first, which only the broker's header tells and the copy does not carry on."""
    found = by_death(headers.get("x-death"), queue) or by_death(headers.get(HEADER_DEATHS), queue)
    return {} if found is None else {HEADER_EXCHANGE: found[0], HEADER_ROUTING_KEY: found[1]}


def lifetime_of(headers: Headers) -> int | None:
    """How long a message that redrive published was given to live; None: for ever, or another program did."""
    until, since = whole_number(headers.get(_EXPIRES_AT)), whole_number(headers.get(_PUBLISHED_AT))
    return None if until is None or since is None else max(0, until - since)


def moved_headers(headers: Headers, *, queue: str, item: str) -> Headers:
    """The headers of a copy that only changes its queue and counts on: attempts, own headers and the user's stay."""
    kept = {
        name: value
        for name, value in headers.items()
        if not is_broker_header(name) and name.lower() not in _ROUTES_AGAIN and name != HEADER_BASELINE
    }
    failed = failed_by_x_death(headers.get("x-death"), queue=queue).failed
    if HEADER_ATTEMPT not in kept and failed:
        kept[HEADER_ATTEMPT] = failed + 1
    return {**_origin(headers, queue), **kept, HEADER_ITEM: item}


def _is_kept(name: str) -> bool:
    if is_broker_header(name) or name.lower() in _ROUTES_AGAIN:
        return False
    return not is_own_header(name) or name in _KEPT


def _written_by(wiring: Wiring | None) -> frozenset[str]:
    """Header names a wiring writes on dead letters, or counts with."""
    if wiring is None:
        return frozenset()
    names = {name.lower() for name in wiring.dead_letter.headers.values()}
    if isinstance(wiring.retry, TierRetry) and wiring.retry.count_header:
        names.add(wiring.retry.count_header.lower())
    return frozenset(names)


def redriven_count(headers: Headers) -> int:
    """How often it was sent back already."""
    return whole_number(headers.get(HEADER_REDRIVEN_COUNT)) or 0


# ---------------------------------------------------------------------------------------------------- what it is

_CHANGING: Final = frozenset({"x-delivery-count", "x-acquired-count"})


def message_digest(properties: Mapping[str, Any], headers: Headers, body: bytes) -> str:
    """What tells two messages apart, as sha-256 hex: body, properties and headers, without what a broker changes when a
    message is handed out again. Two messages of one digest are twins: either may stand for the other.
    """
    made = hashlib.sha256()
    for name in sorted(properties):
        if properties[name] is not None:
            made.update(f"{name}={properties[name]!r};".encode("utf-8", "backslashreplace"))
    for name in sorted(headers):
        if name.lower() not in _CHANGING:
            made.update(f"{name}:{_stable(headers[name])};".encode("utf-8", "backslashreplace"))
    made.update(b"\x00")
    made.update(body)
    return made.hexdigest()


def _stable(value: Any) -> str:
    match value:
        case Mapping():
            return "{" + ",".join(f"{name!r}:{_stable(value[name])}" for name in sorted(value, key=str)) + "}"
        case list() | tuple():
            return "[" + ",".join(map(_stable, value)) + "]"
        case _:
            return repr(value)
