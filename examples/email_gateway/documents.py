"""The dead letter entry of the system: one mapping from redrive's record to its literal names."""

from __future__ import annotations

import json
from typing import Any

from redrive import Letter
from redrive.core.units import rfc3339


def dead_letter_entry(letter: Letter) -> dict[str, Any]:
    """The entry of one dead letter. What a malformed job does not have is None. Raises ValueError as `checked` does."""
    original = _original(letter)
    outbox_id = _text(original, "outboxId") or letter.message.key or letter.message.id
    last = letter.history[-1] if letter.history else None
    failed_at = letter.dead_lettered_at if last is None else last.at + (last.duration_ms or 0)
    entry = {
        "jobId": outbox_id,
        "outboxId": outbox_id,
        "companyId": letter.message.tenant or _text(original, "companyId"),
        "originalData": original,
        # One that expired before it was ever tried counts as failed once: by running out of time.
        "failedAttempts": max(1, letter.attempt_count),
        "lastFailureReason": letter.reason.text,
        "lastFailureCode": letter.error_code or letter.reason.code,
        "lastFailureTimestamp": rfc3339(failed_at),
        "enqueuedAt": _text(original, "enqueuedAt") or rfc3339(letter.message.published_at),
        "movedToDLQAt": rfc3339(letter.dead_lettered_at),
        "ttl": None if letter.expires_at is None else letter.expires_at - letter.dead_lettered_at,
    }
    return checked({name: value for name, value in entry.items() if name != "lastFailureCode" or value is not None})


def checked(entry: dict[str, Any]) -> dict[str, Any]:
    """The entry, if it may stand among the dead. Raises ValueError for one without a reason, or without a failure."""
    reason = entry.get("lastFailureReason")
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError(f"the entry of job {entry.get('jobId')!r} has no lastFailureReason")
    attempts = entry.get("failedAttempts")
    if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
        raise ValueError(f"the entry of job {entry.get('jobId')!r} has failedAttempts {attempts!r}: 1 or more")
    return entry


def _original(letter: Letter) -> Any:
    """What the producer sent, as JSON where it is, else as text."""
    body = letter.message.original_body
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")


def _text(document: Any, name: str) -> str | None:
    value = document.get(name) if isinstance(document, dict) else None
    return value if isinstance(value, str) else None
