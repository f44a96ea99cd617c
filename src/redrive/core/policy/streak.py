"""A streak of failures of something that should be there, such as a broker: how many in a row.

What comes back and is gone again a moment later has not recovered: a streak is over only after a time without a
failure. Its number goes into a backoff (`backoff.delay_ms(streak.failures, u)`), so that the delays go on growing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from redrive.core.units import Millis

STABLE_MS: Final[Millis] = 10_000
"""How long a broker must have worked before the next failure is the first of a new streak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streak:
    """`failures` in a row. `well_since`: when it worked again, on the clock of the caller; None while it does not."""

    failures: int = 0
    well_since: float | None = None

    @property
    def is_on(self) -> bool:
        """Whether the last thing that happened was a failure."""
        return self.failures > 0 and self.well_since is None


NO_FAILURE: Final = Streak()


def failed(streak: Streak, *, now: float, stable_ms: Millis = STABLE_MS) -> Streak:
    """After one more failure."""
    is_over = streak.well_since is not None and now - streak.well_since >= stable_ms
    return Streak(failures=1 if is_over else streak.failures + 1)


def succeeded(streak: Streak, *, now: float) -> Streak:
    """After it worked."""
    return replace(streak, well_since=now) if streak.is_on else streak
