"""How fast the other side takes messages, learned from what it refuses."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from redrive.core.policy.pace import CALM_MS, NO_LIMIT, Pace, give_back, refused, sampled, take, wait_ms

NOW = 1_700_000_000_000


class Service:
    """Takes `limit` in every second of the clock, and what was tried and taken in each."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.tried: Counter[int] = Counter()
        self.taken: Counter[int] = Counter()

    def send(self, now: int) -> bool:
        second = now // 1_000
        self.tried[second] += 1
        if self.taken[second] >= self.limit:
            return False
        self.taken[second] += 1
        return True


def run(service: Service, *, seconds: int, at_once: int = 100, pace: Pace = NO_LIMIT) -> Pace:
    """A worker that always has something to send and looks every 10 ms."""
    total = 0
    for now in range(NOW, NOW + seconds * 1_000, 10):
        pace = sampled(pace, total, now)
        pace, granted = take(pace, at_once, now)
        answers = [service.send(now) for _ in range(granted)]
        total += sum(answers)
        if not all(answers):
            pace = refused(pace, total, now)
    return pace


def test_without_a_refusal_there_is_no_limit() -> None:
    assert (NO_LIMIT, 1_000) == take(NO_LIMIT, 1_000, NOW)
    assert NO_LIMIT.per_s is None
    assert 0 == wait_ms(NO_LIMIT, NOW)


def test_the_first_burst_tells_the_pace() -> None:
    service = Service(14)

    pace = run(service, seconds=9)

    assert 12 == pace.per_s
    assert max(service.tried[second] for second in list(service.tried)[1:]) <= 13


def test_it_settles_at_or_below_what_is_allowed() -> None:
    service = Service(14)

    run(service, seconds=300)
    steady = [service.tried[NOW // 1_000 + second] for second in range(2, 300)]

    assert 11 <= sum(steady) / len(steady) <= 14
    assert max(steady) <= 16


def test_answers_that_trickle_in_make_the_pace_of_one_burst_only_better() -> None:
    pace = refused(sampled(NO_LIMIT, 0, NOW), 1, NOW + 10)
    assert 1 == pace.per_s

    pace = refused(pace, 10, NOW + 60)

    assert 9 == pace.per_s


def test_a_refusal_at_the_learned_pace_lowers_it() -> None:
    pace = refused(sampled(NO_LIMIT, 0, NOW), 20, NOW + 10)
    assert 18 == pace.per_s

    lower = refused(pace, 38, NOW + 5_000)

    assert lower.per_s is not None
    assert lower.per_s < 18


def test_a_pace_that_keeps_nothing_waiting_does_not_grow() -> None:
    pace = refused(sampled(NO_LIMIT, 0, NOW), 20, NOW)

    calm, granted = take(pace, 1, NOW + 1_000)
    calm, _ = take(calm, 1, NOW + 10 * CALM_MS)

    assert (1, 18) == (granted, calm.per_s)


def test_a_pace_that_is_felt_grows_by_a_little_after_a_calm_time() -> None:
    pace = refused(sampled(NO_LIMIT, 0, NOW), 20, NOW)

    felt, _ = take(pace, 5, NOW + 1_000)
    grown, _ = take(felt, 5, NOW + CALM_MS)

    assert 19 == grown.per_s


def test_what_was_granted_and_not_used_may_go_later() -> None:
    pace, granted = take(refused(NO_LIMIT, 20, NOW), 1, NOW + 1_000)

    again, once_more = take(give_back(pace, granted), 1, NOW + 1_000)

    assert (1, 1) == (granted, once_more)
    assert wait_ms(again, NOW + 1_000) > 0
    assert NO_LIMIT == give_back(NO_LIMIT, 3)


@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 50), st.booleans()), max_size=60))
def test_whatever_happens_the_pace_is_at_least_one_a_second(steps: list[tuple[int, int, bool]]) -> None:
    pace, now, total = NO_LIMIT, NOW, 0
    for wait, accepted, is_refused in steps:
        now += wait
        pace, granted = take(sampled(pace, total, now), accepted, now)
        assert 0 <= granted <= accepted
        total += granted
        pace = refused(pace, total, now) if is_refused else pace

        assert pace.per_s is None or pace.per_s >= 1
        assert 0 <= wait_ms(pace, now) <= 1_000
