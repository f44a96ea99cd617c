"""Delivery: what a handler is told beside the payload, and what it may ask for."""

from __future__ import annotations

import threading
from typing import Any

from redrive.core.message import Headers, Message
from redrive.core.ports import LedgerTransaction, Published
from redrive.core.units import Duration, UnixMs


class Delivery:
    """One hand-over of one message; the optional second parameter of a handler."""

    __slots__ = ("_attempt", "_cancelled", "_deadline", "_message", "_queue")

    @property
    def message(self) -> Message:
        """The whole message, with the body's exact bytes."""
        raise NotImplementedError

    @property
    def headers(self) -> Headers:
        """The message's headers."""
        raise NotImplementedError

    @property
    def attempt(self) -> int:
        """1, 2, …: every run counted, lost starts included."""
        raise NotImplementedError

    @property
    def max_attempts(self) -> int:
        """How many attempts there are."""
        raise NotImplementedError

    @property
    def queue(self) -> str:
        """The consumer queue."""
        raise NotImplementedError

    @property
    def tenant(self) -> str | None:
        """Whose message it is."""
        raise NotImplementedError

    @property
    def key(self) -> str | None:
        """The idempotency key, or None where there is none."""
        raise NotImplementedError

    @property
    def trace_id(self) -> str | None:
        """The trace this message belongs to."""
        raise NotImplementedError

    @property
    def deadline(self) -> UnixMs | None:
        """When this attempt's time is over, or None where the consumer has no timeout."""
        raise NotImplementedError

    @property
    def token(self) -> int:
        """The fencing token: grows with every hand-over of this message. Hand it to a store that can compare."""
        raise NotImplementedError

    @property
    def is_cancelled(self) -> bool:
        """Whether the result will be refused or unwanted: lease lost, time over, or the worker stops at once."""
        raise NotImplementedError

    @property
    def cancelled(self) -> threading.Event:
        """Set when `is_cancelled` turns true; for handlers in threads."""
        raise NotImplementedError

    async def publish(self, queue: str, payload: Any, **arguments: Any) -> Published:
        """As `Redrive.publish`, carrying this message's trace id and tenant unless given others."""
        raise NotImplementedError

    def publish_sync(self, queue: str, payload: Any, **arguments: Any) -> Published:
        """`publish` for handlers in threads and processes."""
        raise NotImplementedError

    def extend_lease(self, duration: Duration) -> bool:
        """Hold this message at least that much longer; False: it is lost already."""
        raise NotImplementedError

    def transaction(self) -> LedgerTransaction:
        """Effects and the end of this message, together or not at all."""
        raise NotImplementedError
