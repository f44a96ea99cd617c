"""Messages that say from when on they may be processed."""

from __future__ import annotations

import json
from typing import Any, Final

from redrive.core.message import Message, whole_number
from redrive.core.units import MAX_DELAY_MS, Millis, UnixMs

FIELD: Final = "processAfterDelayMs"
"""Name of the header, or of the top-level member of a JSON body; the header wins."""

MAX_SEEN: Final = 10_000
"""Messages without a publish time that are remembered by when they were first seen."""

_MARK: Final = FIELD.encode()


def process_after_ms(message: Message, *, name: str = FIELD) -> Millis | None:
    """How long after its publishing the message may be processed; None where it says nothing, or nothing sensible."""
    found = whole_number(message.headers.get(name)) if message.headers else None
    if found is None and (_MARK if name == FIELD else name.encode()) in message.body:
        found = whole_number(_member(message.body, name))
    return None if found is None else min(found, MAX_DELAY_MS)


def _member(body: bytes, name: str) -> Any:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document.get(name) if isinstance(document, dict) else None


class Waiting:
    """How much longer messages have to wait.

    Publish time is the message's own. One that has none counts from when this process first saw it: a restart then
    makes it wait again, and it is never early.
    """

    def __init__(self, *, name: str = FIELD) -> None:
        self._name = name
        self._first_seen: dict[str, UnixMs] = {}

    def left_ms(self, message: Message, now: UnixMs) -> Millis:
        """Milliseconds until the message may be processed; 0: now."""
        after = process_after_ms(message, name=self._name)
        if not after:
            return 0
        published_at = message.published_at or self._seen_at(message.id, now)
        return max(0, published_at + after - now)

    def _seen_at(self, message_id: str, now: UnixMs) -> UnixMs:
        seen = self._first_seen
        if message_id not in seen and len(seen) >= MAX_SEEN:
            del seen[next(iter(seen))]
        return seen.setdefault(message_id, now)
