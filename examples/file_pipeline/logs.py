"""The log lines of the system, under its own names: one JSON line for every failure, retry and parking."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from redrive import Event, Redrive

HAPPENED: Final[Mapping[str, str]] = {
    "delivery.interrupted": "failure",
    "delivery.retry_scheduled": "retry",
    "delivery.dead_lettered": "parking",
}
"""A failure that is tried again is a retry, the last one a parking; a worker that died leaves a failure."""

NAMES: Final[Mapping[str, str]] = {
    "correlationId": "correlation_id",
    "queue": "queue",
    "routingKey": "routing_key",
    "messageType": "type",
    "attempt": "attempt",
    "maxAttempts": "max_attempts",
    "messageId": "message_id",
    "error": "error_text",
    "errorCode": "error_code",
    "delayMs": "delay_ms",
    "parkedIn": "dead_letter_queue",
}


def line_of(event: Event) -> dict[str, Any] | None:
    """The line for an event of redrive; None: the system logs nothing of it."""
    what = HAPPENED.get(event.name)
    if what is None:
        return None
    fields = {name: event.fields[own] for name, own in NAMES.items() if own in event.fields}
    return {"timestamp": datetime.now(UTC).isoformat(), "event": what, **fields}


def subscribe_log(app: Redrive, stream: TextIO | None = None) -> None:
    """Write the lines to `stream`, else to standard error."""

    def write(event: Event) -> None:
        line = line_of(event)
        if line is not None:
            print(json.dumps(line, default=str), file=sys.stderr if stream is None else stream, flush=True)

    app.events.subscribe(write)
