"""How much a short queue gets, against takers that are arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from redrive.core.policy import feeding
from redrive.core.policy.feeding import Feed

LOOK_MS = 5.0


def fed(feed: Feed, asked: Iterable[int], *, began_ms: float = 0.0) -> tuple[Feed, float, int]:
    """After looks `LOOK_MS` apart, the queue filled up after each; before each so many more are asked for, and who gets
    none waits. The time then, and how many still wait.
    """
    now, waiting = began_ms, 0
    for more in asked:
        full = feeding.sent(feed, feeding.room(feed))
        now += LOOK_MS
        gone = min(full.ready, waiting + more)
        waiting += more - gone
        feed = feeding.seen(full, full.ready - gone, now)
    return feed, now, waiting


def test_who_takes_all_there_is_soon_gets_thousands() -> None:
    feed, now, _ = fed(Feed(), itertools.repeat(feeding.MOST, 80))

    assert feeding.MOST == feeding.room(feeding.seen(feed, 0, now + LOOK_MS))


def test_who_takes_slowly_after_that_gets_little_again() -> None:
    feed, now, _ = fed(Feed(), itertools.repeat(feeding.MOST, 80))
    feed, _, _ = fed(feed, [0] * 400, began_ms=now)

    assert feeding.LEAST == round(feed.target)


@pytest.mark.parametrize("bursts", [(4, 0, 0), (0, 4, 0), (2, 1, 1), (3, 0, 1)])
def test_bursts_are_not_taken_for_a_speed(bursts: tuple[int, ...]) -> None:
    """Four handlers of 12 ms take 4 in three looks, together or one after the other: what lies ready meanwhile stands
    before everybody who comes, so it is hardly more than that, and few looks find it empty.
    """
    feed, now, _ = fed(Feed(), bursts * 20)
    targets = []
    for asked in bursts * 20:
        feed, now, waiting = fed(feed, [asked], began_ms=now)
        targets.append(round(feed.target))

    assert max(targets) <= 3
    _, _, waiting = fed(feed, bursts * 50, began_ms=now)
    assert waiting <= max(bursts)


def test_what_lies_idle_is_looked_at_seldom_and_what_goes_fast_often() -> None:
    idle, now, _ = fed(Feed(), [0] * 20)
    assert now + feeding.MOST_WAIT_MS == feeding.look_at(idle)

    fast, now, _ = fed(Feed(), itertools.repeat(feeding.MOST, 20))
    assert now + feeding.LEAST_WAIT_MS == feeding.look_at(fast)


def test_a_queue_that_was_empty_because_nothing_was_sent_says_nothing() -> None:
    feed = Feed()
    for now in range(0, 2_000, 50):
        feed = feeding.seen(feed, 0, float(now))

    assert feeding.LEAST == feed.target
