"""Parked messages where they lie on a RabbitMQ: list, peek, send back. *Source*: system D, Admin API."""

from __future__ import annotations

from typing import Any

from redrive.core.access import REDACTED, paths_below, secrets_of, veil_of
from redrive.core.live import SendBack
from redrive.errors import NotFoundError, UnsupportedError
from redrive.in_place import Place, look_document, peeked, sent_back, sent_back_document, standing_document, standings
from redrive.runtime.app import Redrive
from redrive.topologies import SCHEMES, Reach
from redrive.web.admin.call import Call
from redrive.web.admin.shown import Shown


async def list_parked(call: Call) -> Any:
    """Every queue of parked messages with its depth and the age of its oldest."""
    place = _place(call)
    return [standing_document(await _one(place, queue)) for queue in _queues(call.app)]


async def _one(place: Place, queue: str) -> Any:
    return (await standings(place, queue))[0]


async def peek_parked(call: Call) -> Any:
    """The oldest, with all properties and the reason; nothing is taken and their order stays."""
    place, queue = _place(call), _known(call)
    document = look_document(await peeked(place, queue, limit=call.query.limit))
    document["messages"] = [_shown(call, each) for each in document["messages"]]
    return document


def _shown(call: Call, message: Any) -> Any:
    """Bodies here are of any system's messages: a rule on a part of one hides it whole, and the texts of its death."""
    veil = veil_of(call.app.settings.redact, message["properties"].get("type"), call.principal.role)
    if not veil:
        return message
    payload, headers = paths_below(veil.paths, "payload"), paths_below(veil.paths, "headers")
    secrets = secrets_of(message["headers"], headers, is_caseless=True)
    shown = Shown(veil=veil, headers=headers, secrets=frozenset(secrets), is_opaque=bool(payload))
    return {
        **shown.document({**message, "headers": None, "properties": None, "body": None}),
        "headers": shown.header_document(message["headers"]),
        "properties": shown.texts(message["properties"]),
        "body": REDACTED if payload else shown.texts(message["body"]),
    }


async def redrive_parked(call: Call) -> Any:
    """Send the oldest back, each confirmed before it leaves its queue. Killed half-way and called again, nothing is
    lost and nothing sent twice.
    """
    place, queue = _place(call), _known(call)
    return sent_back_document(await sent_back(place, queue, SendBack(actor=call.actor, limit=call.body.limit)))


def _queues(app: Redrive) -> tuple[str, ...]:
    return tuple(dict.fromkeys(consumer.dead_letter_queue for consumer in app.consumers.values()))


def _known(call: Call) -> str:
    queue = call.path["queue"]
    if queue not in _queues(call.app):
        raise NotFoundError(f'"{queue}" is no queue of parked messages of this app. Nothing was changed.')
    return queue


def _place(call: Call) -> Place:
    app = call.app
    if not app.settings.broker.startswith(SCHEMES):
        raise UnsupportedError(
            "Messages are parked on a RabbitMQ only; this app has another broker.", hint="See /api/v1/letters."
        )
    return Place(reach=Reach(url=app.settings.broker, management=call.management), topology=app.wired_topology())
