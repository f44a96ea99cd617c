"""The sliding window: never one start too many in any period, nearly all of the rate used."""

from __future__ import annotations

import bisect

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redrive.core.policy.flow import (
    Rate,
    Window,
    forgotten_at,
    free_at,
    parse_rate,
    room,
    started,
    window_numbers,
    window_of,
)

NOW = 1_700_000_000_123
RATES = st.builds(Rate, count=st.integers(1, 50), per_ms=st.integers(1, 120_000))


def most_in_any_period(starts: list[int], per_ms: int) -> int:
    return max((bisect.bisect_left(starts, at + per_ms) - place for place, at in enumerate(starts)), default=0)


@given(RATES, st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 20)), max_size=60))
def test_in_no_period_are_more_starts_than_the_rate_has(rate: Rate, asked: list[tuple[int, int]]) -> None:
    window, now, starts = Window(rate=rate), NOW, []
    for wait_ms, wanted in asked:
        now += wait_ms
        granted = min(wanted, room(window, now))
        window = started(window, granted, now)
        starts += [now] * granted

    assert most_in_any_period(starts, rate.per_ms) <= rate.count


@pytest.mark.parametrize("spec", ["100 per 60 s", "100/s", "5/s", "1 per 10 s", "1000/h"])
@pytest.mark.parametrize("wanted", [1, 1_000])
def test_with_work_enough_the_rate_is_used_to_within_five_percent(spec: str, wanted: int) -> None:
    rate = parse_rate(spec)
    window, now, starts = Window(rate=rate), NOW, []
    end = NOW + 20 * rate.per_ms
    while now < end:
        granted = min(wanted, room(window, now))
        window = started(window, granted, now)
        starts += [now] * granted
        now = max(now + 1, free_at(window, now))

    assert most_in_any_period(starts, rate.per_ms) <= rate.count
    assert len(starts) >= 0.95 * 20 * rate.count


@given(RATES, st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 20)), min_size=1, max_size=30))
def test_it_says_exactly_when_one_more_may_start(rate: Rate, asked: list[tuple[int, int]]) -> None:
    window, now = Window(rate=rate), NOW
    for wait_ms, wanted in asked:
        now += wait_ms
        window = started(window, min(wanted, room(window, now)), now)

    at = free_at(window, now)

    assert room(window, at) >= 1
    assert at == now or room(window, at - 1) == 0
    assert rate.count == room(window, forgotten_at(window))


@given(RATES, st.integers(1, 60_000))
def test_a_clock_that_goes_back_gives_nothing_away(rate: Rate, back_ms: int) -> None:
    window = started(Window(rate=rate), rate.count, NOW)

    assert 0 == room(window, NOW - back_ms)
    assert 0 == room(window, NOW + rate.per_ms)


# The last start at the beginning of a long slot: the one before it is hardly older.
@example(rate=Rate(count=2, per_ms=601), other=Rate(count=2, per_ms=59), waits=[0, 58])
@given(RATES, RATES, st.lists(st.integers(0, 10_000), max_size=20))
def test_a_stored_window_comes_back_and_a_new_rate_forgets_no_start(rate: Rate, other: Rate, waits: list[int]) -> None:
    window, now, starts = Window(rate=rate), NOW, []
    for wait_ms in waits:
        now += wait_ms
        if room(window, now):
            window = started(window, 1, now)
            starts.append(now)

    changed = window_of(other, window_numbers(window))

    assert window == window_of(rate, window_numbers(window))
    kept = [at for at in starts if at > now - min(other.per_ms, rate.per_ms)]
    assert room(changed, now) <= max(0, other.count - len(kept))
    assert Window(rate=rate) == window_of(rate, [])


def test_a_window_stays_small() -> None:
    rate = parse_rate("100000 per 60 s")
    window = Window(rate=rate)
    for now in range(NOW, NOW + 120_000, 7):
        window = started(window, min(1, room(window, now)), now)

    assert len(window_numbers(window)) <= 2 * 103 + 1
