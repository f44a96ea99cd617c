"""Sending over HTTP: one message into a queue."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from redrive.core.units import Millis
from redrive.core.wire import body_from_document, untagged
from redrive.runtime.outgoing import JSON_TYPE, TEXT_TYPE, new_message_id
from redrive.views import receipt_document
from redrive.web.admin.call import Call
from redrive.web.admin.problems import refuse
from redrive.web.admin.queues import known_queue
from redrive.web.admin.requests import MISSING, MessageBody


async def publish_message(call: Call) -> Any:
    """Send one message; answers once it is durable.

    Killed before that, it is sent or not: the same Idempotency-Key sends it with the same id, so that it is handled
    once. A queue nobody knows is refused, for a message in it would wait for ever; with an `exchange` the name is the
    routing key, and the broker says.
    """
    body: MessageBody = call.body
    queue = call.path["queue"] if body.exchange else await known_queue(call)
    sent = _body(body)
    message_id = body.message_id or call.request_key or new_message_id(call.now)
    arguments = {
        "delay": _duration(body.delay_ms),
        "ttl": _duration(body.ttl_ms),
        "idempotency_key": body.key,
        "message_id": message_id,
        "tenant": body.tenant,
        "priority": body.priority,
        "headers": untagged(body.headers) or None,
        "type": body.type,
        "content_type": sent.content_type if body.content_type is None else body.content_type,
        "once": body.once,
        "exchange": body.exchange,
    }
    receipt = await call.service.publish(queue, [(sent.content, arguments)])
    return {**receipt_document(receipt), "message_id": message_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    content: bytes
    content_type: str | None


def _body(given: MessageBody) -> _Body:
    if (given.payload is MISSING) == (given.body is None):
        raise refuse("invalid", 'Give either "payload" (any JSON) or "body" (text, or {"$bytes": base64}). Not sent.')
    if given.once and given.key is None:
        raise refuse("invalid", '"once" needs "key": it asks whether the key is known. Not sent.')
    if given.body is None:
        return _Body(content=msgspec.json.encode(given.payload), content_type=JSON_TYPE)
    is_text = isinstance(given.body, str)
    return _Body(content=body_from_document(given.body), content_type=TEXT_TYPE if is_text else None)


def _duration(ms: Millis | None) -> timedelta | None:
    return None if ms is None else timedelta(milliseconds=ms)
