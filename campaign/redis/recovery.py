"""How soon the work of a killed worker ran again, and what of that the machine itself was late by.

A worker was in the middle of a message where the journal has its start and neither its effect nor its failure. A
machine that stands still, or has far more to run than processors, makes everything late: so this process notes how late
it wakes up itself and how many wait for a processor. A promise in seconds is kept where it is kept without that and
without the time in which Redis was away.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from campaign.journal import EFFECT, START, Journal, Line
from campaign.redis.app import FAILED, QUEUE
from campaign.watching import Watch

LOAD: Final = Path("/proc/loadavg")
TICK_S: Final = 0.05
CROWD: Final = 2 * (os.cpu_count() or 1)
"""So many may run or wait for a processor before it counts as an excuse: a campaign alone stays below."""

Span = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A worker that was killed. `at`: monotonic seconds."""

    pid: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A message that was in hand at a kill, and when it was started again; None: it never was. `losses`: starts it had
    lost by then; more than one where whoever had it next was killed before its handler began.
    """

    key: str
    killed_at: float
    again_at: float | None
    losses: int

    @property
    def took_s(self) -> float:
        """From the kill to the start."""
        return float("inf") if self.again_at is None else self.again_at - self.killed_at


class Excuses(Watch):
    """Spans of time in which nobody could have been in time: from, to, and the share of it that was not to be had.
    `away`: those in which Redis was away. `counts_load`: one in which far more ran than there are processors is one.
    """

    every_s = TICK_S

    def __init__(self, *, counts_load: bool = True) -> None:
        super().__init__()
        self._counts_load = counts_load
        self.spans: list[Span] = []
        self.away: list[Span] = []
        self._before = time.monotonic()

    def within(self, start: float, end: float) -> float:
        """How much of this time is excused, in seconds."""
        return self.away_within(start, end) + _overlap(self.spans, start, end)

    def away_within(self, start: float, end: float) -> float:
        """In how much of it Redis was away."""
        return _overlap(self.away, start, end)

    def look(self) -> None:
        """Note how late this thread is itself, or how many stand before the processors."""
        now = time.monotonic()
        is_still = now - self._before > 2 * TICK_S
        running = _running() if self._counts_load else 0
        share = 1.0 if is_still else max(0.0, 1 - CROWD / max(CROWD, running))
        if share:
            self.spans.append((self._before, now, share))
        self._before = now


def _overlap(spans: Sequence[Span], start: float, end: float) -> float:
    return sum(share * max(0.0, min(high, end) - max(low, start)) for low, high, share in list(spans))


def _running() -> int:
    """How many run or wait for a processor; 0 where the system does not say."""
    try:
        return int(LOAD.read_text("utf-8").split()[3].partition("/")[0])
    except (OSError, IndexError, ValueError):
        return 0


def recoveries(journal: Journal, kills: Sequence[Kill]) -> list[Recovery]:
    """Of each message that was in hand at a kill."""
    starts = journal.of(START, QUEUE)
    ended = {
        (line.key, line.pid, line.attempt)
        for kind in (EFFECT, FAILED)
        for lines in journal.of(kind, QUEUE).values()
        for line in lines
    }
    killed_at = {kill.pid: kill.at for kill in kills}
    return [
        _recovery(line, starts=lines, killed_at=killed_at[line.pid])
        for key, lines in starts.items()
        for line in lines
        if line.pid in killed_at and (key, line.pid, line.attempt) not in ended
    ]


def _recovery(lost: Line, *, starts: Sequence[Line], killed_at: float) -> Recovery:
    later = [line for line in starts if line.at > killed_at]
    again = min(later, key=lambda line: line.at) if later else None
    return Recovery(
        key=lost.key,
        killed_at=killed_at,
        again_at=None if again is None else again.at,
        losses=1 if again is None else max(1, again.attempt - lost.attempt),
    )
