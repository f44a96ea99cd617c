"""The documents of the system, one mapping from redrive's records to its literal names.

`dead_letter_event` is what stands in the collection `dead_letter_events` and in the queue `courier-events-dlq`;
`processed_event` is what stands in `processed_events`. The exact message itself is not in the document: the record
it is made from keeps it, and a redrive sends that.
"""

from __future__ import annotations

import json
from typing import Any

from redrive import Letter
from redrive.core.idempotency import ClaimRecord
from redrive.core.letters.letter import Attempt
from redrive.core.units import rfc3339

MAX_SNAPSHOT_BYTES = 8 * 1024 * 1024
"""A larger payload stands in the document as its JSON text."""


def dead_letter_event(letter: Letter) -> dict[str, Any]:
    """The document of one dead letter. What a malformed message does not have is None."""
    fields = _fields(letter.message.body)
    own_key = letter.message.key if letter.message.key != letter.message.id else None
    return {
        "letterId": letter.id,
        "eventId": _text(fields, "eventId"),
        "idempotencyKey": _text(fields, "idempotencyKey") or own_key,
        "traceId": _text(fields, "traceId") or letter.message.properties.trace_id,
        "attemptCount": letter.attempt_count,
        "terminalReasonCode": letter.reason.code,
        "terminalReasonMessage": letter.reason.text,
        "attemptHistory": [_history_entry(entry) for entry in letter.history],
        **_snapshot(fields.get("payload"), body_bytes=len(letter.message.body)),
        "deadLetteredAt": rfc3339(letter.dead_lettered_at),
        "reviewState": letter.state.value,
    }


def processed_event(record: ClaimRecord) -> dict[str, Any]:
    """The idempotency record of one key."""
    return {
        "idempotencyKey": record.key,
        "queue": record.queue,
        "state": record.state.value,
        "attempts": record.attempts,
        "updatedAt": rfc3339(record.updated_at),
        "expiresAt": None if record.expires_at is None else rfc3339(record.expires_at),
    }


def _history_entry(entry: Attempt) -> dict[str, Any]:
    """A start that never ended is a failed attempt too; its code says what became of the worker."""
    return {
        "attempt": entry.attempt,
        "outcome": "failed",
        "errorCode": entry.error_code or entry.outcome.value.upper(),
        "at": rfc3339(entry.at),
        "durationMs": entry.duration_ms,
    }


def _snapshot(payload: Any, *, body_bytes: int) -> dict[str, Any]:
    if body_bytes <= MAX_SNAPSHOT_BYTES:
        return {"payloadSnapshot": payload}
    return {"payloadSnapshot": json.dumps(payload, ensure_ascii=False), "payloadSnapshotIsText": True}


def _fields(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    return value if isinstance(value, str) else None
