"""What Dramatiq writes of a message's failures, in the body: it sends no headers.

Its queue `orders` dead-letters into `orders.XQ`, and what waits for a retry lies in `orders.DQ`. A failure counts
`retries`, and keeps its `traceback` and its `requeue_timestamp`, in the message that is queued for the next attempt.
The message of the last attempt is rejected as it was: so the trace there is of the attempt before the last, and the
number of attempts is one more than its `retries`. One that failed at its first attempt says nothing.

Source: dramatiq 2.2.1, `middleware/retries.py`, `brokers/rabbitmq.py` (`enqueue`, `declare_queue`), `common.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from redrive.core.letters.traces import named_in
from redrive.core.message import whole_number
from redrive.core.units import UnixMs

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
"""A larger body is not read for what it tells."""
_START: Final = b'{"queue_name":'
"""Its encoder writes no blanks, and the queue first."""
_SUFFIXES: Final = (".XQ", ".DQ")
_LATEST: Final[UnixMs] = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What such a body tells. `failed_at`: of the failure before the last."""

    queue: str
    actor: str
    attempts: int
    error_type: str | None = None
    text: str = ""
    traceback: str | None = None
    failed_at: UnixMs | None = None


def told_in(body: bytes) -> Told | None:
    """What this body tells, where Dramatiq wrote it; None where it did not."""
    if not body.startswith(_START) or len(body) > MAX_BODY_BYTES:
        return None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    queue, actor, options = (found.get(name) for name in ("queue_name", "actor_name", "options"))
    if not (isinstance(queue, str) and isinstance(actor, str) and isinstance(options, dict)) or not (queue and actor):
        return None
    return _told(queue, actor, options)


def queue_of(name: str) -> str:
    """The queue that this one belongs to."""
    for suffix in _SUFFIXES:
        if name.endswith(suffix) and name != suffix:
            return name.removesuffix(suffix)
    return name


def _told(queue: str, actor: str, options: dict[str, Any]) -> Told:
    trace = options.get("traceback")
    trace = trace if isinstance(trace, str) and trace.strip() else None
    error_type, text = (None, "") if trace is None else named_in(trace)
    failed_at = whole_number(options.get("requeue_timestamp"))
    return Told(
        queue=queue_of(queue),
        actor=actor,
        attempts=1 + (whole_number(options.get("retries")) or 0),
        error_type=error_type,
        text=text or error_type or "",
        traceback=trace,
        failed_at=failed_at if failed_at is not None and failed_at < _LATEST else None,
    )
