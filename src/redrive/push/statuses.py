"""What the status of a service that consumes over HTTP means.

| status | end of the delivery |
|---|---|
| 2xx | acknowledged |
| 425 | handed back; costs no attempt |
| any other | a failed attempt: retried, and dead-lettered when the attempts are used up |
| 4xx other than 409, 425, 429, where the consumer says so | dead-lettered at once |

No other meaning is read into a status: a redirect is not followed and is a failure, and so is 501.
"""

from __future__ import annotations

import functools
import inspect
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from redrive.core.policy.catalogue.http import REQUEUE_STATUS, parse_retry_after
from redrive.core.policy.failure import Failure, FailureKind
from redrive.core.signals import Requeue
from redrive.core.text import cut
from redrive.core.units import Millis, UnixMs

Outcome: TypeAlias = "Failure | Requeue | None"
"""What a handler with `http_status=True` may return as it is; None is success."""

REPEATED_4XX: Final = frozenset({409, REQUEUE_STATUS, 429})
"""Lock conflict, too early and rate limit pass by themselves, whatever is said of other 4xx."""

WAIT_MIN_MS: Final[Millis] = 1_000
WAIT_MAX_MS: Final[Millis] = 5_000
"""A service that says "too early" and not until when is asked again after a random time between these."""


def outcome_of_status(
    status: int,
    *,
    now: UnixMs,
    retry_after: str | bytes | float | None = None,
    text: str | None = None,
    gives_up_on_4xx: bool = False,
    u: float | None = None,
) -> Outcome:
    """How the attempt ended that was answered with this status.

    `retry_after` is the header's value (seconds or a date, seen from `now`). `text` is kept in the history; None says
    the status. `u` in [0, 1): the draw for the wait after 425; None draws one.

    >>> outcome_of_status(204, now=0)
    >>> outcome_of_status(404, now=0).kind.value, outcome_of_status(404, now=0, gives_up_on_4xx=True).kind.value
    ('transient', 'permanent')
    """
    if 200 <= status <= 299:  # noqa: PLR2004 - success, RFC 9110 §15.3
        return None
    said = cut(text) if text is not None and text.strip() else f"The service answered with HTTP status {status}."
    after_ms = parse_retry_after(retry_after, now)
    if status == REQUEUE_STATUS:
        return Requeue(_seconds(too_early_wait_ms(u) if after_ms is None else after_ms), reason=said)
    is_final = gives_up_on_4xx and 400 <= status <= 499 and status not in REPEATED_4XX  # noqa: PLR2004 - RFC 9110 §15.5
    return Failure(
        kind=FailureKind.PERMANENT if is_final else FailureKind.TRANSIENT,
        code=f"HTTP_{status}",
        text=said,
        retry_after_ms=after_ms,
    )


def too_early_wait_ms(u: float | None = None) -> Millis:
    """A random wait before a message that came too early is handed out again."""
    draw = random.random() if u is None else u  # noqa: S311 - spreads load, guards nothing
    return WAIT_MIN_MS + int(draw * (WAIT_MAX_MS - WAIT_MIN_MS))


def _wall_ms() -> UnixMs:
    return time.time_ns() // 1_000_000


def status_handler(
    handler: Callable[..., Any], *, gives_up_on_4xx: bool = False, clock: Callable[[], UnixMs] = _wall_ms
) -> Callable[..., Awaitable[Any]]:
    """An async handler that returns or raises a status, under the rules of this module instead of redrive's own.

    Register it with `http_status=True`. A status is an int, or anything with `.status_code`, raised ones too. The
    answer's `.headers`, where it has any, are asked for Retry-After; `clock` (unix ms) is what its date is seen from.
    """

    @functools.wraps(handler)
    async def handle(*arguments: Any) -> Any:
        try:
            found = handler(*arguments)
            result = await found if inspect.isawaitable(found) else found
        except Exception as error:
            if _status_of(error) is None:
                raise
            result = error
        status = result if type(result) is int else _status_of(result)
        if status is None:
            return result
        text = str(result) if isinstance(result, Exception) else None
        after = _retry_after(result)
        return outcome_of_status(status, now=clock(), retry_after=after, text=text, gives_up_on_4xx=gives_up_on_4xx)

    return handle


def _status_of(holder: Any) -> int | None:
    status = getattr(holder, "status_code", None)
    return status if isinstance(status, int) and not isinstance(status, bool) else None


def _retry_after(holder: Any) -> Any:
    get = getattr(getattr(holder, "headers", None), "get", None)
    return get("retry-after") or get("Retry-After") if callable(get) else None


def _seconds(delay_ms: Millis) -> float:
    return delay_ms / 1_000
