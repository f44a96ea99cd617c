"""The log line of a retry, under the system's own names; and one for whatever somebody has to look at."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from redrive import Event, Redrive

RETRY: Final = "delivery.retry_scheduled"
MESSAGE: Final = "Job failed, scheduling retry"

NAMES: Final[Mapping[str, str]] = {
    "jobId": "message_id",
    "companyId": "tenant",
    "attempt": "attempt",
    "maxAttempts": "max_attempts",
    "errorCode": "error_code",
    "errorReason": "error_text",
    "nextRetryDelay": "delay_ms",
    "isRetryable": "is_retryable",
}


def line_of(event: Event) -> dict[str, Any] | None:
    """The line for an event of redrive; None: it is no retry."""
    if event.name != RETRY:
        return None
    fields = {name: event.fields[own] for name, own in NAMES.items()}
    return {"level": "warn", "message": MESSAGE, **fields, "timestamp": datetime.now(UTC).isoformat()}


def subscribe_log(app: Redrive, stream: TextIO | None = None) -> None:
    """Write the lines to `stream`, else to standard error."""

    def write(event: Event) -> None:
        line = line_of(event)
        if line is not None:
            print(json.dumps(line, default=str), file=sys.stderr if stream is None else stream, flush=True)

    app.events.subscribe(write)
