"""Counts of the last hour, for figures that are asked for once and have no history of their own."""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_MINUTES: Final = 60


class LastHour:
    """Counts by name over a sliding hour, minute by minute. Not thread-safe; `minute` never goes back."""

    def __init__(self) -> None:
        self._minutes: dict[str, deque[list[int]]] = {}

    def add(self, name: str, minute: int, count: int) -> None:
        """Count `count` for `name` now."""
        minutes = self._minutes.get(name)
        if minutes is None:
            minutes = self._minutes[name] = deque(maxlen=WINDOW_MINUTES)
        if minutes and minutes[-1][0] == minute:
            minutes[-1][1] += count
        else:
            minutes.append([minute, count])

    def sums(self, minute: int) -> dict[str, int]:
        """Name to what was counted in the hour up to `minute`; 0 for a name that has been quiet since."""
        return {
            name: sum(count for at, count in minutes if at > minute - WINDOW_MINUTES)
            for name, minutes in self._minutes.items()
        }
