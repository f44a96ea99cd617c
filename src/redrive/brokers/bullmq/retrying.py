"""BullMQ's own retry options, `attempts` and `backoff`, as a `Retry`, and a `Retry` as such options.

A consumer's `Retry` wins; these are honoured where it has none. Jobs that redrive makes carry what comes nearest, for
Node's workers. What they do not know is left out: a cap; jitter that lengthens; a factor other than 2 (they double);
`Tiers` becomes its first delay, fixed, and any other rule the delay after the first attempt.

Source: BullMQ 6.7, `classes/backoffs.js` and `Job.shouldRetryJob`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import msgspec

from redrive.core.policy.backoff import Backoff, Exponential, Fixed, Tiers
from redrive.core.policy.retry import Retry
from redrive.core.units import MAX_DELAY_MS, Millis
from redrive.errors import ConfigurationError

FIXED, EXPONENTIAL = "fixed", "exponential"
MAX_ATTEMPTS: Final = 1_000_000
_LARGEST_EXPONENT: Final = 64
"""2**64 ms is beyond what anything waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BullBackoff:
    """One of BullMQ's: `delay` after every attempt, or doubled from attempt to attempt; with `jitter` j drawn from
    [d(1 - j), d].
    """

    kind: str
    base_ms: float
    jitter: float = 0.0

    def delay_ms(self, attempt: int, u: float) -> Millis:
        """Raises `ConfigurationError` for a kind that only the producer's own workers know."""
        if self.kind not in (FIXED, EXPONENTIAL):
            raise ConfigurationError(
                f'The job asks for the back-off "{self.kind:.60}", which is none of BullMQ\'s own.',
                hint="Give the consumer a Retry.",
            )
        exponent = min(max(attempt, 1) - 1, _LARGEST_EXPONENT) if self.kind == EXPONENTIAL else 0
        whole = min(float(MAX_DELAY_MS), math.floor(self.base_ms * 2.0**exponent + 0.5))
        if not self.jitter:
            return int(whole)
        return math.floor(u * whole * self.jitter + whole * (1 - self.jitter))


@lru_cache(maxsize=1_024)
def retry_of(options: bytes) -> Retry:
    """What a job's options say. Without `attempts` there is one, as BullMQ has it."""
    try:
        found = msgspec.json.decode(options)
    except msgspec.DecodeError:
        found = {}
    given: dict[str, Any] = found if isinstance(found, dict) else {}
    attempts: Any = given.get("attempts")
    return Retry(
        max_attempts=min(max(1, int(attempts)), MAX_ATTEMPTS) if _is_number(attempts) else 1,
        backoff=_backoff(given.get("backoff")),
    )


def _backoff(given: Any) -> BullBackoff:
    if _is_number(given):
        return BullBackoff(kind=FIXED, base_ms=_held(given))
    if not isinstance(given, dict):
        return BullBackoff(kind=FIXED, base_ms=0)
    delay: Any = given.get("delay")
    jitter: Any = given.get("jitter")
    return BullBackoff(
        kind=str(given.get("type", "")),
        base_ms=_held(delay) if _is_number(delay) else 0,
        jitter=min(max(float(jitter), 0.0), 1.0) if _is_number(jitter) else 0.0,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _held(value: Any) -> float:
    return min(max(float(value), 0.0), float(MAX_DELAY_MS))


def options_of(retry: Retry) -> dict[str, Any]:
    """What a stock Node worker makes of this rule, as near as it can."""
    return {"attempts": retry.max_attempts, "backoff": _options(retry.backoff)}


def _options(backoff: Backoff) -> dict[str, Any]:
    match backoff:
        case BullBackoff(kind=kind, base_ms=base_ms, jitter=jitter):
            return _as_options(kind, base_ms, jitter)
        case Fixed(base_ms=base_ms, jitter=spread):
            return _as_options(FIXED, base_ms, _shortening(spread.low, spread.high))
        case Exponential(base_ms=base_ms, jitter=spread):
            return _as_options(EXPONENTIAL, base_ms, _shortening(spread.low, spread.high))
        case Tiers(delays_ms=delays_ms):
            return _as_options(FIXED, delays_ms[0], 0)
        case _:
            return _as_options(FIXED, _first_delay(backoff), 0)


def _first_delay(backoff: Backoff) -> Millis:
    try:
        return int(_held(backoff.delay_ms(1, 0.5)))
    except Exception:  # noqa: BLE001 - somebody's own rule may raise anything; it does so where it is used, too
        return 0


def _shortening(low: float, high: float) -> float:
    """BullMQ's jitter only shortens: from d(1 - j) to d."""
    return 1 - low if high == 1 else 0.0


def _as_options(kind: str, delay: float, jitter: float) -> dict[str, Any]:
    options: dict[str, Any] = {"type": kind, "delay": int(delay)}
    return {**options, "jitter": jitter} if jitter else options
