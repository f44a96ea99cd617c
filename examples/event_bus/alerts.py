"""The log line this team's alerts look for: a message that used up its retries."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import TextIO

from redrive import Event, Redrive

CODE = "RABBITMQ_MESSAGE_MAX_RETRIES_EXCEEDED"


def subscribe_alerts(app: Redrive, stream: TextIO | None = None) -> None:
    """Write one JSON line for every message that is dead because its retries are used up."""

    def write(event: Event) -> None:
        fields = event.fields
        if event.name != "delivery.dead_lettered" or not str(fields["reason_code"]).endswith("_EXHAUSTED"):
            return
        line = {
            "timestamp": datetime.now(UTC).isoformat(),
            "level": "error",
            "code": CODE,
            "queue": fields["queue"],
            "deadLetterQueue": fields["dead_letter_queue"],
            "messageId": fields["message_id"],
            "retryCount": fields["attempt"] - 1,
            "error": fields["error_text"],
        }
        print(json.dumps(line), file=sys.stderr if stream is None else stream, flush=True)

    app.events.subscribe(write)
