"""Everything a person can do with dead letters where they lie on a broker. Surfaces only translate to this."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redrive.core.in_place import Standing
from redrive.core.live import LiveBroker, Look, SendBack, SentBack, Waiting
from redrive.core.topology.model import EMPTY, Topology
from redrive.core.topology.verify.client import UNKNOWN
from redrive.core.topology.verify.effective import parse_version
from redrive.core.topology.verify.situation import Role, survey
from redrive.core.units import UnixMs, rfc3339
from redrive.core.wire import body_document, tagged
from redrive.errors import UnsupportedError
from redrive.topologies import Reach, reached

MAX_QUEUES = 500
"""Queues of one list; their first messages are looked at one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A broker, and what is known of the topology on it: how its queues retry."""

    reach: Reach
    topology: Topology = EMPTY


async def standings(place: Place, queue: str | None) -> tuple[Standing, ...]:
    """How a queue stands, or (None) every dead-letter queue: those of the topology, else those on the broker in which
    messages rest until a person comes. Changes nothing.
    """
    async with reached(place.reach) as live:
        names = (queue,) if queue is not None else await _dead_letter_queues(live, place.topology)
        return tuple([await live.standing(name) for name in names[:MAX_QUEUES]])


async def _dead_letter_queues(live: LiveBroker, topology: Topology) -> tuple[str, ...]:
    wired = tuple(dict.fromkeys(wiring.dead_letter_queue for wiring in topology.wirings))
    if wired:
        return wired
    there = await live.there()
    if not there.is_complete:
        raise UnsupportedError(
            f"Which dead-letter queues {live.place} has cannot be asked without its management API.",
            hint="Name the queue, or the API with --management URL.",
        )
    found = survey(
        there.topology,
        version=parse_version(there.topology.version),
        client=UNKNOWN,
        consumers=None,
        publishes=(),
    )
    return tuple(sorted(each.name for each in found.with_role(Role.RESTING)))


async def peeked(place: Place, queue: str, *, limit: int, is_forced: bool = False) -> Look:
    """The first messages of a queue; they stay where and as they are. See `LiveBroker.look`."""
    async with reached(place.reach) as live:
        return await live.look(queue, limit=limit, topology=place.topology, is_forced=is_forced)


async def sent_back(
    place: Place, queue: str, what: SendBack, *, on_count: Callable[[int], None] = lambda _: None
) -> SentBack:
    """Send dead letters back to be processed. See `LiveBroker.send_back`."""
    async with reached(place.reach) as live:
        return await live.send_back(queue, what, topology=place.topology, on_count=on_count)


# ---------------------------------------------------------------------------------------------------- documents


def standing_document(standing: Standing) -> dict[str, Any]:
    """How one queue stands."""
    return {
        "queue": standing.queue,
        "depth": standing.depth,
        "consumers": standing.consumers,
        "type": None if standing.kind is None else str(standing.kind),
        "delivery_limit": standing.delivery_limit,
        "delivery_limit_known": standing.is_limit_known,
        "oldest_at": _instant(standing.oldest_at),
        "note": standing.note,
    }


def look_document(look: Look) -> dict[str, Any]:
    """A queue and its first messages."""
    return {**standing_document(look.standing), "messages": [_message(each) for each in look.messages]}


def _message(message: Waiting) -> dict[str, Any]:
    return {
        "position": message.position,
        "message_id": message.message_id,
        "queue": message.queue,
        "reason_code": message.reason_code,
        "reason_text": message.reason_text,
        "attempts": message.attempts,
        "redriven": message.redriven,
        "dead_since": _instant(message.dead_since),
        "redelivered": message.is_redelivered,
        "exchange": _text(message.exchange),
        "routing_key": _text(message.routing_key),
        "properties": {name: tagged(value) for name, value in message.properties.items()},
        "headers": {_text(name): tagged(value) for name, value in message.headers.items()},
        "body": body_document(message.body),
        "body_bytes": len(message.body),
    }


def look_text(value: Any) -> str:
    """A body, or properties or headers, in one line for a person."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return ", ".join(f"{name}={each!r}" for name, each in value.items())


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _instant(at: UnixMs | None) -> str | None:
    return None if at is None else rfc3339(at)


def sent_back_document(result: SentBack) -> dict[str, Any]:
    """What a redrive in place did."""
    return {
        "queue": result.queue,
        "batch": result.batch,
        "resumed": result.is_resumed,
        "requested": result.requested,
        "moved": result.moved,
        "already_sent": result.found,
        "failed": len(result.stayed),
        "targets": dict(result.targets),
        "stayed": [
            {"position": each.position, "message_id": each.message_id, "why": each.why} for each in result.stayed
        ],
        "error": result.error,
    }
