"""Retry: how often and how far apart. The one value a consumer is configured with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from redrive.core.policy.backoff import Backoff, Exponential
from redrive.core.units import MAX_DELAY_MS, Millis
from redrive.errors import ConfigurationError

DEFAULT_MAX_ATTEMPTS: Final = 5
DEFAULT_BACKOFF: Final = Exponential("1s", cap="60s", jitter="±25%")


def _default_backoff() -> Backoff:
    return DEFAULT_BACKOFF


@dataclass(frozen=True, slots=True)
class Retry:
    """At most `max_attempts` runs of the handler, the first included, with `backoff` between them.

    `max_attempts` is 1 or more; 1 means no retry. Text of digits ("3", from an environment variable) is the number.
    Raises `ConfigurationError` naming the field for 0, a negative number, or anything else.

    >>> Retry(max_attempts=3).max_attempts
    3
    """

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    backoff: Backoff = field(default_factory=_default_backoff)

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_attempts", checked_max_attempts(self.max_attempts))
        if not isinstance(self.backoff, Backoff):
            raise ConfigurationError(
                f"retry.backoff is {self.backoff!r}, which has no delay_ms(attempt, u).",
                hint='Write for example Exponential("1s", cap="60s", jitter="±25%").',
            )

    def delay_ms(self, attempt: int, u: float) -> Millis:
        """The backoff's answer, held to whole milliseconds from 0 to ten years whoever wrote the backoff."""
        delay = self.backoff.delay_ms(attempt, u)
        # `not >=` also catches NaN, which compares false with everything.
        return 0 if not delay >= 0 else int(min(delay, MAX_DELAY_MS))


def checked_max_attempts(value: object, *, field: str = "retry.max_attempts") -> int:
    """The number of allowed attempts. Raises `ConfigurationError` naming `field` unless it is 1 or more."""
    number = int(value) if isinstance(value, str) and value.strip().isdecimal() and len(value) < 10 else value  # noqa: PLR2004
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ConfigurationError(
            f"{field} is {value!r}: it must be a whole number, 1 or more.",
            hint="It counts every run of the handler, the first included; 1 means no retry.",
        )
    return number
