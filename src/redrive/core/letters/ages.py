"""How old letters are, as counts by bucket: what a histogram shows, made by a store in one walk over its letters."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from redrive.core.units import Millis, UnixMs

_S, _MIN, _H, _D = 1_000, 60_000, 3_600_000, 86_400_000
AGE_BOUNDS_MS: Final[tuple[Millis, ...]] = (
    10 * _S, _MIN, 5 * _MIN, 15 * _MIN, 30 * _MIN, _H, 2 * _H, 6 * _H, 12 * _H, _D, 2 * _D, 7 * _D, 30 * _D, 90 * _D,
)  # fmt: skip
"""From "just now" over a person's shift to the retention of the five systems (7 and 90 days)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """Letters by age. `counts`: how many are no older than each bound and older than the one before; the last number
    is of those older than all. `total_ms`: all ages added up. A letter from the future counts as new.
    """

    counts: tuple[int, ...]
    total_ms: int


NO_AGES: Final = Ages(counts=(0,) * (len(AGE_BOUNDS_MS) + 1), total_ms=0)


def ages_at(now: UnixMs, died_at: Iterable[UnixMs]) -> Ages:
    """The ages at `now` of letters that died then."""
    counts, total = [0] * len(NO_AGES.counts), 0
    for at in died_at:
        age = max(0, now - at)
        counts[bisect_left(AGE_BOUNDS_MS, age)] += 1
        total += age
    return Ages(counts=tuple(counts), total_ms=total)
