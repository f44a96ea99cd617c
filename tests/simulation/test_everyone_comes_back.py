"""Many consumers lose their broker at one moment and come back (case SD-04), with the policy a worker pauses by."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence

import pytest

from redrive.core.policy import streak
from redrive.runtime.outage import pause_backoff
from redrive.runtime.settings import Settings

CONSUMERS = 200
BACK_AT_MS = 15_000
SETTINGS = Settings(pause_initial_ms=1_000, pause_max_ms=30_000)


def outage(seed: int) -> tuple[list[float], list[float], list[int]]:
    """When each try was made, when each consumer was back, and every delay drawn."""
    backoff, draw = pause_backoff(SETTINGS), random.Random(seed).random
    tries: list[float] = []
    back: list[float] = []
    delays: list[int] = []
    due = []

    def lose(number: int, streaks: Sequence[streak.Streak], now: float) -> None:
        streaks[number] = streak.failed(streaks[number], now=now)  # type: ignore[index]
        delays.append(backoff.delay_ms(streaks[number].failures, draw()))
        heapq.heappush(due, (now + delays[-1], number))

    streaks = [streak.NO_FAILURE] * CONSUMERS
    for number in range(CONSUMERS):
        lose(number, streaks, 0.0)
    while due:
        now, number = heapq.heappop(due)
        tries.append(now)
        if now >= BACK_AT_MS:
            back.append(now)
        else:
            lose(number, streaks, now)
    return tries, back, delays


@pytest.mark.parametrize("seed", range(20))
def test_two_hundred_consumers_do_not_come_back_as_one(seed: int) -> None:
    tries, back, delays = outage(seed)

    early = sorted(at for at in tries if at < 2_000)
    crowd = max(sum(start <= at < start + 100 for at in early) for start in early)
    assert crowd <= 0.2 * len(early)
    assert CONSUMERS == len(back)
    assert max(back) <= BACK_AT_MS + SETTINGS.pause_max_ms
    assert max(delays) <= SETTINGS.pause_max_ms
