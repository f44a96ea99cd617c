"""Token bucket and breaker: arithmetic on a given now."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.policy.backoff import Exponential, Fixed
from redrive.core.policy.flow import (
    BREAKER_TRANSITIONS,
    CLOSED,
    DEFAULT_BREAKER,
    Breaker,
    BreakerEvent,
    BreakerPolicy,
    BreakerState,
    Rate,
    abandoned,
    allowed,
    failed,
    full_bucket,
    give_back,
    held,
    parse_rate,
    probing,
    refill,
    succeeded,
    take,
    wait_ms,
)
from redrive.errors import ConfigurationError, TransitionError

NOW = 1_000_000


# ------------------------------------------------------------------------------------------------ token bucket


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("100/min", (100, 60_000)), ("100 per 60 s", (100, 60_000)), ("100/60s", (100, 60_000)), ("5/s", (5, 1_000)),
        ("1/10s", (1, 10_000)), ("100 per minute", (100, 60_000)), ("2/h", (2, 3_600_000)), ("3/day", (3, 86_400_000)),
        ("7 / 250ms", (7, 250)),
        ("0.5/s", (1, 2_000)), ("2.5/min", (5, 120_000)),
        (" 5/S ", (5, 1_000)), (10, (10, 1_000)), (2.5, (5, 2_000)), (0.5, (1, 2_000)),
        (Rate(count=3, per_ms=7), (3, 7)),
    ],
)  # fmt: skip
def test_a_rate_is_a_count_in_a_period(written: str | float | Rate, expected: tuple[int, int]) -> None:
    rate = parse_rate(written)

    assert expected == (rate.count, rate.per_ms)


@pytest.mark.parametrize(
    "written",
    [
        0,
        -1,
        True,
        None,
        "",
        "fast",
        "0/s",
        "5/0s",
        "5/fortnight",
        "/s",
        "5",
        float("nan"),
        float("inf"),
        1e-9,
        "5/s/s",
        [],
    ],
)
def test_what_is_no_rate_is_refused_with_the_field_named(written: object) -> None:
    with pytest.raises(ConfigurationError, match="limiter"):
        parse_rate(written, field="limiter")  # type: ignore[arg-type]


def test_a_full_bucket_gives_one_period_at_once_and_then_by_and_by() -> None:
    bucket = full_bucket(parse_rate("100/min"), NOW)

    bucket, first = take(bucket, 150, NOW)
    bucket, none = take(bucket, 1, NOW + 599)
    bucket, one = take(bucket, 5, NOW + 600)

    assert (100, 0, 1) == (first, none, one)


def test_one_in_ten_seconds_is_two_runs_within_fifteen() -> None:
    bucket, runs = full_bucket(parse_rate("1/10s"), NOW), 0
    for ms in range(0, 15_000, 10):
        bucket, granted = take(bucket, 1, NOW + ms)
        runs += granted

    assert 2 == runs


def test_the_wait_is_exact_the_token_is_there_then_and_not_before() -> None:
    bucket, _ = take(full_bucket(parse_rate("3/s"), NOW), 3, NOW)

    wait = wait_ms(bucket, NOW)

    assert 334 == wait
    assert (0, 1) == (take(bucket, 1, NOW + wait - 1)[1], take(bucket, 1, NOW + wait)[1])
    assert 0 == wait_ms(bucket, NOW + wait)


RATES = st.builds(Rate, count=st.integers(1, 1_000), per_ms=st.integers(1, 100_000))


@given(RATES, st.integers(1, 50), st.lists(st.tuples(st.integers(-500, 5_000), st.integers(0, 30)), max_size=40))
def test_a_bucket_never_gives_more_than_burst_and_rate_allow(
    rate: Rate, burst: int, asked: list[tuple[int, int]]
) -> None:
    bucket, now, given_out, latest = full_bucket(rate, 0, burst=burst), 0, 0, 0
    for step, wanted in asked:
        now += step
        gained = max(0, now - bucket.at)
        latest += gained
        bucket, granted = take(bucket, wanted, now)
        given_out += granted

        assert 0 <= granted <= wanted
        assert given_out <= burst + Fraction(latest * rate.count, rate.per_ms)
        assert granted == wanted or wait_ms(bucket, now) > 0


@given(RATES, st.integers(1, 20))
def test_tokens_given_back_can_be_taken_again_and_never_overfill(rate: Rate, taken: int) -> None:
    full = full_bucket(rate, NOW)

    bucket, granted = take(full, taken, NOW)

    assert full == give_back(bucket, granted)
    assert full == give_back(full, 5)


def test_a_clock_that_goes_back_adds_nothing() -> None:
    bucket, _ = take(full_bucket(parse_rate("5/s"), NOW), 5, NOW)

    assert 0 == refill(bucket, NOW - 10_000).level
    assert 0 == take(bucket, 1, NOW - 10_000)[1]


# ------------------------------------------------------------------------------------------------ breaker

S, E = BreakerState, BreakerEvent
LEGAL = {
    (S.CLOSED, E.TRIP): S.OPEN,
    (S.CLOSED, E.SUCCEED): S.CLOSED,
    (S.CLOSED, E.FAIL): S.CLOSED,
    (S.OPEN, E.PROBE): S.HALF_OPEN,
    (S.OPEN, E.SUCCEED): S.OPEN,
    (S.OPEN, E.FAIL): S.OPEN,
    (S.HALF_OPEN, E.SUCCEED): S.CLOSED,
    (S.HALF_OPEN, E.FAIL): S.OPEN,
    (S.HALF_OPEN, E.ABANDON): S.OPEN,
    (S.CLOSED, E.HOLD): S.OPEN,
    (S.OPEN, E.HOLD): S.OPEN,
    (S.HALF_OPEN, E.HOLD): S.OPEN,
}
POLICY = BreakerPolicy(failures=3, probe=Exponential("1s", cap="60s"))


@pytest.mark.parametrize(("state", "event"), list(itertools.product(BreakerState, BreakerEvent)))
def test_every_pair_of_state_and_event_is_as_the_document_has_it(state: BreakerState, event: BreakerEvent) -> None:
    assert LEGAL.get((state, event)) == BREAKER_TRANSITIONS[state].get(event)


def fail(breaker: Breaker, times: int = 1, *, now: int = NOW) -> Breaker:
    for _ in range(times):
        breaker = failed(breaker, POLICY, now=now, u=0.0)
    return breaker


def test_the_default_opens_after_twenty_consecutive_transient_failures() -> None:
    breaker = CLOSED
    for _ in range(19):
        breaker = failed(breaker, DEFAULT_BREAKER, now=NOW, u=0.5)
    assert allowed(breaker, NOW) is None

    breaker = failed(breaker, DEFAULT_BREAKER, now=NOW, u=0.5)

    assert (S.OPEN, 0) == (breaker.state, allowed(breaker, NOW))


def test_a_success_in_between_starts_the_count_again() -> None:
    assert allowed(fail(succeeded(fail(CLOSED, 2)), 2), NOW) is None


def test_an_open_breaker_lets_one_probe_through_when_it_is_due() -> None:
    breaker = fail(CLOSED, 3)

    assert (0, 1) == (allowed(breaker, NOW + 999), allowed(breaker, NOW + 1_000))
    assert 0 == allowed(probing(breaker), NOW + 10**9)


def test_a_probe_that_succeeds_closes_it() -> None:
    assert CLOSED == succeeded(probing(fail(CLOSED, 3)))


def test_each_probe_that_fails_waits_longer_for_the_next_up_to_the_cap() -> None:
    breaker, waits = fail(CLOSED, 3), []
    for _ in range(9):
        assert breaker.probe_at is not None
        waits.append(breaker.probe_at - NOW)
        breaker = fail(probing(breaker))

    assert [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000] == waits


def test_results_of_deliveries_started_before_change_nothing_while_it_is_open() -> None:
    breaker = fail(CLOSED, 3)

    assert breaker == fail(breaker, 30, now=NOW + 500)
    assert breaker == succeeded(breaker)


def test_a_probe_without_an_answer_makes_room_for_another_at_once() -> None:
    breaker = abandoned(probing(fail(CLOSED, 3)), NOW + 5_000)

    assert (S.OPEN, 1) == (breaker.state, allowed(breaker, NOW + 5_000))
    assert CLOSED == abandoned(CLOSED, NOW)


@pytest.mark.parametrize("state", [S.CLOSED, S.HALF_OPEN])
def test_a_probe_is_taken_only_of_an_open_breaker(state: BreakerState) -> None:
    with pytest.raises(TransitionError, match="cannot probe"):
        probing(replace(CLOSED, state=state))


@pytest.mark.parametrize("failures", [0, -1, True, "20", None, 1.5])
def test_a_breaker_needs_at_least_one_failure(failures: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"breaker\.failures"):
        BreakerPolicy(failures=failures)


@given(st.lists(st.sampled_from(["ok", "fail", "probe", "abandon", "wait"]), max_size=60))
def test_a_breaker_is_never_stuck(events: list[str]) -> None:
    policy = BreakerPolicy(failures=2, probe=Fixed("1s"))
    breaker, now = CLOSED, NOW
    for event in events:
        now += 1_000 if event == "wait" else 1
        if event == "probe" and allowed(breaker, now) == 1:
            breaker = probing(breaker)
        elif event == "ok":
            breaker = succeeded(breaker)
        elif event == "fail":
            breaker = failed(breaker, policy, now=now, u=0.5)
        elif event == "abandon":
            breaker = abandoned(breaker, now)

    later = abandoned(breaker, now)

    assert allowed(later, now + 1_000) in (None, 1)


def test_a_held_breaker_lets_one_probe_go_when_the_time_is_over() -> None:
    breaker = held(CLOSED, NOW + 1_000)

    assert [0, 0, 1] == [allowed(breaker, NOW + late) for late in (0, 999, 1_000)]
    assert CLOSED == succeeded(probing(breaker))


def test_of_two_holds_the_later_one_counts_but_a_probe_knows_best() -> None:
    breaker = held(held(CLOSED, NOW + 5_000), NOW + 1_000)

    assert NOW + 5_000 == breaker.probe_at
    assert NOW + 6_000 == held(probing(breaker), NOW + 6_000).probe_at
    assert NOW + 2_000 == held(probing(breaker), NOW + 2_000).probe_at
