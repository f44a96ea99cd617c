"""Millis and UnixMs; "30s", timedelta or seconds to Millis. The only duration parser."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from redrive.errors import ConfigurationError

Millis: TypeAlias = int
"""A duration in whole milliseconds, never negative."""

UnixMs: TypeAlias = int
"""An instant: whole milliseconds since 1970-01-01T00:00:00Z. Instants end in `_at` or `_until`."""

Duration: TypeAlias = "timedelta | int | float | str"
"""What a user may write: a timedelta, seconds as a number, or "1500ms", "30s", "5m", "2h", "7d"."""

MAX_DELAY_MS: Final[Millis] = 315_360_000_000
"""Ten years of 365 days: no delay on any system is longer."""

_PER_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TEXT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.ASCII)


def duration_ms(value: Duration, *, field: str = "duration") -> Millis:
    """A user's duration as whole milliseconds, rounded half up.

    Raises `ConfigurationError` naming `field` when the value is negative, not finite, longer than ten years,
    or not understood. A bool is refused: it is a mistake, not a number of seconds.
    """
    exact = _exact_ms(value, field)
    if not math.isfinite(exact) or exact < 0:
        raise ConfigurationError(f"{field} is {value!r}: a duration must be finite and not negative.")
    if exact > MAX_DELAY_MS:
        raise ConfigurationError(f"{field} is {value!r}: longer than ten years ({MAX_DELAY_MS} ms).")
    return round_half_up(exact)


def _exact_ms(value: Duration, field: str) -> float:
    match value:
        case timedelta():
            return value / timedelta(milliseconds=1)
        case bool():
            pass
        case int() | float():
            return value * 1_000.0 if abs(value) < 1e300 else math.inf  # noqa: PLR2004 - beyond it the product overflows
        case str() if found := _TEXT.fullmatch(value.strip()):
            return float(found[1]) * _PER_UNIT_MS[found[2]]
        case _:
            pass
    raise ConfigurationError(
        f"{field} is {value!r}, which is not a duration.",
        hint='Write a timedelta, seconds as a number, or text such as "1500ms", "30s", "5m", "2h", "7d".',
    )


def round_half_up(value: float) -> int:
    """Whole number nearest to a value that is not negative; a half goes up (1500.5 to 1501)."""
    return math.floor(value + 0.5)


def wire_delay(delay_ms: float) -> str:
    """A delay as brokers take it (AMQP `expiration`): whole milliseconds as text, rounded up so that it is never early.

    Raises ValueError for what is negative or not finite.
    """
    if not 0 <= delay_ms < math.inf:
        raise ValueError(f"a delay on the wire must be finite and not negative, got {delay_ms!r}")
    return str(min(math.ceil(delay_ms), MAX_DELAY_MS))


def parse_instant(text: str, *, field: str = "time") -> UnixMs:
    """An instant from RFC 3339 text with an offset ("2026-01-31T12:00:00+01:00", "…Z"), whatever the host's zone.

    Raises `ConfigurationError` naming `field`: not a time, or one without an offset, which would mean another instant
    on every host.
    """
    what = "which is no time"
    try:
        moment = datetime.fromisoformat(text.strip())
        if moment.utcoffset() is not None:
            # Over the edges of the calendar in UTC there is no text for it any more.
            return (moment.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
        what = "a time without an offset"
    except (ValueError, OverflowError):
        pass
    raise ConfigurationError(
        f"{field} is {text!r}, {what}.",
        hint='Write RFC 3339 with an offset: "2026-01-31T12:00:00Z" or "2026-01-31T13:00:00+01:00".',
    )


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def rfc3339(at: UnixMs) -> str:
    """An instant as RFC 3339 text in UTC with milliseconds, e.g. 2026-01-31T12:00:00.250Z."""
    whole, ms = divmod(at, 1_000)
    return datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{ms:03d}Z"
