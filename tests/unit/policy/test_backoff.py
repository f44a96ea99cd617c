"""Backoff and jitter: exact numbers, bounds, and jitter as a distribution (case BO-01, BO-02)."""

from __future__ import annotations

import math
import pickle
import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.policy.backoff import Backoff, Decorrelated, Exponential, Fixed, Jitter, Tiers, parse_jitter
from redrive.core.units import MAX_DELAY_MS
from redrive.errors import ConfigurationError

DRAWS = st.floats(0, 1, exclude_max=True)
ATTEMPTS = st.integers(-5, 10**7) | st.sampled_from([2**31, 2**53, 2**64, 10**400])
JITTERS = st.sampled_from([None, "0..20%", "±25%", "full", "equal", 0.5, 1.0, 0, "0..150%", "±100%"])
DURATIONS_MS = st.integers(0, MAX_DELAY_MS)


def seconds(ms: int) -> str:
    return f"{ms}ms"


# ------------------------------------------------------------------------------------------------ the numbers


def test_an_exponential_delay_is_exact_at_silly_attempt_numbers() -> None:
    backoff = Exponential("1s", factor=2, cap="3600s")

    delays = [backoff.delay_ms(attempt, 0.5) for attempt in (1, 2, 12, 13, 64, 1_025, 5_000, 1_000_000)]

    assert [1_000, 2_000, 2_048_000, 3_600_000, 3_600_000, 3_600_000, 3_600_000, 3_600_000] == delays


@pytest.mark.parametrize(
    "backoff",
    [Exponential("1s", cap="3600s"), Exponential("1s", factor=1.0000001), Tiers("1s", "2s"), Decorrelated("1s", "60s")],
)
def test_the_millionth_attempt_costs_no_more_than_the_first(backoff: Backoff) -> None:
    began = time.thread_time()
    for attempt in (10**6, 5 * 10**6, 10**400, 10**6) * 25:
        backoff.delay_ms(attempt, 0.5)

    # Of the processor, and generous: a loop over the attempts would take seconds for the smallest of them.
    assert time.thread_time() - began < 1


def test_the_courier_delays_lie_in_the_four_intervals() -> None:
    backoff = Exponential("1000ms", factor=2, jitter="0..20%")

    ends = [(backoff.delay_ms(n, 0.0), backoff.delay_ms(n, 1 - 2**-53)) for n in (1, 2, 3, 4)]

    assert [(1_000, 1_200), (2_000, 2_400), (4_000, 4_800), (8_000, 9_600)] == ends


def test_a_cap_before_jitter_lets_a_capped_delay_lie_around_it() -> None:
    backoff = Exponential("1s", cap="60s", jitter="±25%", cap_before_jitter=True)

    assert [1, 2, 4, 8, 16, 32, 60] == [backoff.delay_ms(n, 0.5) / 1_000 for n in range(1, 8)]
    assert (45_000, 75_000) == (backoff.delay_ms(9, 0.0), backoff.delay_ms(9, 1 - 2**-53))


def test_a_huge_factor_reaches_the_cap_at_the_second_attempt() -> None:
    backoff = Exponential("1s", factor=1e300, cap="3600s")

    assert [1_000, 3_600_000, 3_600_000] == [backoff.delay_ms(attempt, 0) for attempt in (1, 2, 3)]


def test_a_factor_of_one_is_always_the_base() -> None:
    assert {1_000} == {Exponential("1s", factor=1).delay_ms(attempt, 0) for attempt in (1, 2, 64, 10**6)}


def test_tiers_go_up_and_stay_on_the_last() -> None:
    backoff = Tiers("30s", "5m", "30m")

    assert [30_000, 30_000, 300_000, 1_800_000, 1_800_000] == [backoff.delay_ms(n, 0.9) for n in (0, 1, 2, 3, 10**6)]


def test_a_fixed_delay_is_the_same_every_time() -> None:
    assert {700} == {Fixed("700ms").delay_ms(attempt, 0.3) for attempt in (1, 2, 10**6)}


def test_without_a_cap_no_delay_is_over_ten_years() -> None:
    assert MAX_DELAY_MS == Exponential("1s", jitter="0..20%").delay_ms(10**6, 0.999)


def test_a_half_millisecond_is_rounded_up() -> None:
    assert 1_501 == Exponential("1s", factor=1.5005).delay_ms(2, 0)


# ------------------------------------------------------------------------------------------------ jitter and cap


@pytest.mark.parametrize(("u", "hard", "soft"), [(0.0, 250, 250), (0.5, 375, 500), (0.999999, 500, 750)])
def test_proportional_jitter_keeps_a_hard_cap_and_goes_around_a_soft_one(u: float, hard: int, soft: int) -> None:
    given_hard = Exponential("100ms", cap="500ms", jitter=0.5)
    given_soft = Exponential("100ms", cap="500ms", jitter=0.5, cap_before_jitter=True)

    assert (hard, soft) == (given_hard.delay_ms(10, u), given_soft.delay_ms(10, u))


def test_ten_thousand_draws_stay_within_the_hard_cap_and_do_not_pile_up_on_it() -> None:
    backoff, draw = Exponential("100ms", cap="500ms", jitter=0.5), random.Random(1).random

    delays = [backoff.delay_ms(10, draw()) for _ in range(10_000)]

    assert 250 <= min(delays)
    assert max(delays) <= 500
    assert delays.count(500) < 60  # an even share is 20 in 10 000 (half a step of 250)


def test_two_workers_do_not_draw_the_same_delays() -> None:
    backoff = Exponential("1s", jitter="full")
    one, other = random.Random(1).random, random.Random(2).random

    assert [backoff.delay_ms(3, one()) for _ in range(9)] != [backoff.delay_ms(3, other()) for _ in range(9)]


def test_a_base_of_zero_is_always_zero() -> None:
    backoff = Exponential(0, jitter=1.0)

    assert {0} == {backoff.delay_ms(attempt, u) for attempt in (1, 10, 10**6) for u in (0.0, 0.5, 0.999999)}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (None, (1, 1)),
        ("none", (1, 1)),
        ("full", (0, 1)),
        ("equal", (0.5, 1)),
        ("0..20%", (1, 1.2)),
        ("10 .. 20 %", (1.1, 1.2)),
        ("±25%", (0.75, 1.25)),
        ("+-25%", (0.75, 1.25)),
        ("+/-25%", (0.75, 1.25)),
        (0.5, (0.5, 1.5)),
        (1, (0, 2)),
        (0, (1, 1)),
        (Jitter(low=0.1, high=3.0), (0.1, 3)),
    ],
)
def test_a_jitter_is_an_interval_of_the_delay(spec: str | float | None, expected: tuple[float, float]) -> None:
    jitter = parse_jitter(spec)

    assert expected == pytest.approx((jitter.low, jitter.high))


@pytest.mark.parametrize(
    "spec",
    [
        -0.1,
        1.5,
        math.nan,
        math.inf,
        True,
        "25%",
        "±125%",
        "20..0%",
        "0..2000%",
        "-5..5%",
        "some",
        "",
        [],
        Jitter(low=2, high=1),
        Jitter(low=-1, high=1),
        Jitter(low=math.nan, high=1),
        "٣..٤%",
    ],
)
def test_what_is_no_jitter_is_refused_with_the_field_named(spec: object) -> None:
    with pytest.raises(ConfigurationError, match="jitter"):
        Exponential("1s", jitter=spec)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"factor": math.nan}, "factor"),
        ({"factor": math.inf}, "factor"),
        ({"factor": -2}, "factor"),
        ({"factor": 0}, "factor"),
        ({"factor": True}, "factor"),
        ({"factor": "2"}, "factor"),
        ({"base": -1}, "base"),
        ({"base": "x"}, "base"),
        ({"cap": "500ms"}, "cap"),
        ({"cap": -1}, "cap"),
        ({"factor": 10**400}, "factor"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_field_named(arguments: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"Exponential\.{field}"):
        Exponential(**{"base": "1s", **arguments})  # type: ignore[arg-type]


def test_tiers_without_a_tier_and_a_decorrelated_cap_below_its_base_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"Tiers\.delays"):
        Tiers()
    with pytest.raises(ConfigurationError, match=r"Tiers\.delays\[1\]"):
        Tiers("1s", "soon")
    with pytest.raises(ConfigurationError, match=r"Decorrelated\.cap"):
        Decorrelated("2s", cap="1s")
    with pytest.raises(ConfigurationError, match=r"Fixed\.delay"):
        Fixed(-1)


# ------------------------------------------------------------------------------------------------ every rule

BACKOFFS: st.SearchStrategy[Backoff] = st.one_of(
    st.builds(Fixed, DURATIONS_MS.map(seconds), JITTERS),
    st.builds(
        lambda base, more, factor, jitter, soft: Exponential(
            seconds(base), factor, seconds(min(base + more, MAX_DELAY_MS)), jitter=jitter, cap_before_jitter=soft
        ),
        DURATIONS_MS,
        DURATIONS_MS,
        st.floats(1, 1e308),
        JITTERS,
        st.booleans(),
    ),
    st.builds(
        lambda delays, jitter: Tiers(*map(seconds, delays), jitter=jitter), st.lists(DURATIONS_MS, min_size=1), JITTERS
    ),
    st.builds(
        lambda base, more: Decorrelated(seconds(base), seconds(min(base + more, MAX_DELAY_MS))),
        DURATIONS_MS,
        DURATIONS_MS,
    ),
)


@given(BACKOFFS, ATTEMPTS, DRAWS)
def test_any_backoff_at_any_attempt_is_whole_milliseconds_within_ten_years(
    backoff: Backoff, attempt: int, u: float
) -> None:
    delay = backoff.delay_ms(attempt, u)

    assert type(delay) is int
    assert 0 <= delay <= MAX_DELAY_MS


@given(BACKOFFS, ATTEMPTS, DRAWS)
def test_no_delay_is_over_a_hard_cap(backoff: Backoff, attempt: int, u: float) -> None:
    if isinstance(backoff, Decorrelated) or (isinstance(backoff, Exponential) and not backoff.cap_before_jitter):
        assert backoff.cap_ms is not None
        assert backoff.delay_ms(attempt, u) <= backoff.cap_ms


@given(BACKOFFS, ATTEMPTS, DRAWS, DRAWS)
def test_a_larger_draw_never_gives_a_shorter_delay(backoff: Backoff, attempt: int, u: float, v: float) -> None:
    assert backoff.delay_ms(attempt, min(u, v)) <= backoff.delay_ms(attempt, max(u, v))


@given(BACKOFFS, ATTEMPTS, DRAWS)
def test_a_backoff_survives_pickling_and_says_the_same(backoff: Backoff, attempt: int, u: float) -> None:
    copy = pickle.loads(pickle.dumps(backoff))

    assert backoff == copy
    assert backoff.delay_ms(attempt, u) == copy.delay_ms(attempt, u)


@given(st.integers(1, 10_000), st.floats(1, 5), st.integers(1, 40))
def test_without_jitter_a_delay_never_shrinks_from_one_attempt_to_the_next(
    base: int, factor: float, attempt: int
) -> None:
    backoff = Exponential(seconds(base), factor)

    assert backoff.delay_ms(attempt, 0) <= backoff.delay_ms(attempt + 1, 0)


# ------------------------------------------------------------------------------------------------ distributions


def distance_from_uniform(sample: Sequence[float], low: float, high: float) -> float:
    """Kolmogorov and Smirnov's D: the largest gap between the sample's steps and the straight line."""
    ordered = sorted((value - low) / (high - low) for value in sample)
    n = len(ordered)
    return max(max(at / n - value, value - (at - 1) / n) for at, value in enumerate(ordered, 1))


N = 4_000
CRITICAL = 1.95 / math.sqrt(N)
"""D beyond this has a chance of one in a thousand if the draws are uniform. The seed is fixed: it does not flicker."""


@pytest.mark.parametrize(
    ("backoff", "attempt", "low", "high"),
    [
        (Exponential("100s", jitter="0..20%"), 1, 100_000, 120_000),
        (Exponential("100s", jitter="±25%"), 1, 75_000, 125_000),
        (Exponential("100s", jitter="full"), 2, 0, 200_000),
        (Exponential("100s", jitter="equal"), 2, 100_000, 200_000),
        (Exponential("100s", jitter=0.5), 1, 50_000, 150_000),
        # A hard cap cuts the interval and the draws are even on what is left: none piles up on the cap.
        (Exponential("1s", cap="100s", jitter="±25%"), 20, 75_000, 100_000),
        (Exponential("1s", cap="100s", jitter="±25%", cap_before_jitter=True), 20, 75_000, 125_000),
        (Fixed("100s", jitter="±25%"), 7, 75_000, 125_000),
        (Tiers("1s", "100s", jitter="full"), 5, 0, 100_000),
        (Decorrelated("100s", cap="10000s"), 1, 100_000, 300_000),
        (Decorrelated("100s", cap="200s"), 9, 100_000, 200_000),
    ],
)
def test_jitter_is_even_on_its_interval(backoff: Backoff, attempt: int, low: int, high: int) -> None:
    draw = random.Random(20_260_131).random

    sample = [backoff.delay_ms(attempt, draw()) for _ in range(N)]

    assert distance_from_uniform(sample, low, high) < CRITICAL


def test_the_distance_sees_draws_that_pile_up_on_the_cap() -> None:
    draw = random.Random(20_260_131).random

    piled = [min(100_000, 75_000 + 50_000 * draw()) for _ in range(N)]

    assert distance_from_uniform(piled, 75_000, 100_000) > CRITICAL


@pytest.mark.parametrize("attempt", [1, 2, 3, 5, 8])
def test_decorrelated_has_the_mean_of_the_one_that_remembers(attempt: int) -> None:
    base, draw = 10_000, random.Random(7).random
    backoff = Decorrelated(seconds(base), cap="7d")
    remembering = 0.0
    for _ in range(N):
        delay = float(base)
        for _ in range(attempt):
            delay = base + draw() * (3 * delay - base)
        remembering += delay / N

    ours = sum(backoff.delay_ms(attempt, draw()) for _ in range(N)) / N

    assert remembering == pytest.approx(ours, rel=0.07)
