"""What a handler raises to say the outcome outright.

They derive from `BaseException`, as asyncio's `CancelledError` does, so that a handler's broad `except Exception`
cannot eat them. The price: `except Exception: rollback()` does not see them either; use a context manager or
`finally`. They pickle, so they cross from a process handler, and are found inside exception groups.
"""

from __future__ import annotations

from redrive.core.units import Duration, Millis, duration_ms


class Signal(BaseException):
    """Base of the three signals. Not an error, never logged as one."""


class RetryLater(Signal):
    """Fail this attempt and run again after `delay` (None: by the consumer's backoff). Counts as an attempt."""

    def __init__(self, delay: Duration | None = None, reason: str = "the handler asked to retry later") -> None:
        super().__init__(delay, reason)
        self.delay_ms: Millis | None = None if delay is None else duration_ms(delay, field="RetryLater delay")
        self.reason = reason


class DeadLetter(Signal):
    """Dead-letter this message now. `reason` is the text a person reads; `code` the machine's reason code."""

    def __init__(self, reason: str, code: str = "REJECTED_BY_HANDLER") -> None:
        super().__init__(reason, code)
        self.reason = reason.strip() or "the handler rejected the message and gave no reason"
        self.code = code


class Requeue(Signal):
    """Hand the message back; runs again after `delay` (None: one second). Costs no attempt."""

    def __init__(self, delay: Duration | None = None, reason: str = "the handler asked to requeue") -> None:
        super().__init__(delay, reason)
        self.delay_ms: Millis = 1_000 if delay is None else duration_ms(delay, field="Requeue delay")
        self.reason = reason
