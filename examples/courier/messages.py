"""The message of the system: how the gateway makes one from a webhook, and how the worker reads it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec

from redrive.core.units import rfc3339
from redrive.ingest import Envelope, InvalidField, Webhook, is_identifier, json_fields, json_text

MAX_TYPE_CHARS = 255


class CourierEvent(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One message as the handler gets it. A message without a required field is dead-lettered as invalid."""

    event_id: str
    event_type: str
    idempotency_key: str
    trace_id: str
    payload: dict[str, Any]
    occurred_at: str | None = None
    received_at: str | None = None
    source: str | None = None
    signature_meta: dict[str, Any] | None = None
    attempt: Annotated[int, msgspec.Meta(ge=1)] = 1


def build_message(webhook: Webhook) -> Envelope:
    """The message for a verified webhook. The payload goes in as the very bytes the courier wrote.

    Members the system does not know are kept; members the gateway sets cannot be forged by the sender.
    """
    fields = json_fields(webhook.body)
    event_id = _required_text(fields, "eventId")
    event_type = _required_text(fields, "eventType", limit=MAX_TYPE_CHARS)
    if not bytes(fields.get("payload", b"")).startswith(b"{"):
        raise InvalidField("payload", "payload is required and must be an object.")
    key = _optional_text(fields, "idempotencyKey") or f"{webhook.source}:{event_id}"
    message = {
        **fields,
        "eventId": event_id,
        "eventType": event_type,
        "idempotencyKey": key,
        "traceId": webhook.trace_id,
        "payload": fields["payload"],
        **_occurred_at(fields),
        "receivedAt": rfc3339(webhook.received_at),
        "source": webhook.source,
        "signatureMeta": {
            "algorithm": webhook.scheme,
            "timestamp": webhook.verified.timestamp,
            "signature": webhook.verified.signature,
        },
        "attempt": 1,
    }
    return Envelope(key=key, event_id=event_id, body=msgspec.json.encode(message), type=event_type)


def _required_text(fields: dict[str, msgspec.Raw], name: str, *, limit: int = 512) -> str:
    text = _optional_text(fields, name, limit=limit)
    if text is None:
        raise InvalidField(name, f"{name} is required and must be a string.")
    return text


def _optional_text(fields: dict[str, msgspec.Raw], name: str, *, limit: int = 512) -> str | None:
    text = json_text(fields, name)
    if text is not None and not is_identifier(text, limit=limit):
        raise InvalidField(name, f"{name} must be 1 to {limit} printable characters.")
    return text


def _occurred_at(fields: dict[str, msgspec.Raw]) -> dict[str, str]:
    """`occurredAt` as sent, if it is there; refused unless it is RFC 3339 in UTC."""
    text = json_text(fields, "occurredAt")
    if text is None:
        return {}
    try:
        at = msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        at = None
    if at is None or at.utcoffset() != timedelta(0):
        raise InvalidField("occurredAt", "occurredAt must be RFC 3339 in UTC, such as 2026-01-31T12:00:00Z.")
    return {"occurredAt": text}
