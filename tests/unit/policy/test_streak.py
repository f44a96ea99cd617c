"""Failures in a row: counted on through short recoveries, forgotten after a stable time."""

from __future__ import annotations

from redrive.core.policy.streak import NO_FAILURE, STABLE_MS, Streak, failed, succeeded


def test_failures_in_a_row_are_counted() -> None:
    streak = NO_FAILURE
    for now in (1.0, 2.0, 3.0):
        streak = failed(streak, now=now)

    assert Streak(failures=3) == streak
    assert streak.is_on


def test_a_short_recovery_does_not_end_a_streak_and_a_stable_one_does() -> None:
    well = succeeded(failed(failed(NO_FAILURE, now=0), now=1), now=10)

    assert not well.is_on
    assert 3 == failed(well, now=10 + STABLE_MS - 1).failures
    assert 1 == failed(well, now=10 + STABLE_MS).failures


def test_working_on_does_not_move_when_it_recovered() -> None:
    well = succeeded(failed(NO_FAILURE, now=0), now=10)

    assert well is succeeded(well, now=999)
    assert NO_FAILURE is succeeded(NO_FAILURE, now=999)
