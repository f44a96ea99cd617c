"""The policy value of a consumer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from redrive.core.policy.backoff import Exponential, Fixed
from redrive.core.policy.retry import Retry, checked_max_attempts
from redrive.core.units import MAX_DELAY_MS
from redrive.errors import ConfigurationError


@dataclass(frozen=True)
class Says:
    """A team's own backoff."""

    delay: Any

    def delay_ms(self, attempt: int, u: float) -> Any:
        return self.delay


def test_the_default_is_five_attempts_with_a_capped_exponential() -> None:
    assert Retry(5, Exponential("1s", factor=2, cap="60s", jitter="±25%")) == Retry()


@pytest.mark.parametrize("value", [0, -1, True, False, None, 1.5, "x", "", "-1", "0", [], "9" * 50])
def test_a_wrong_number_of_attempts_is_refused_with_the_field_named(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"retry\.max_attempts"):
        Retry(max_attempts=value)


@pytest.mark.parametrize(("value", "expected"), [(1, 1), (3, 3), ("3", 3), (" 3 ", 3)])
def test_digits_from_the_environment_are_the_number(value: Any, expected: int) -> None:
    assert expected == Retry(max_attempts=value).max_attempts
    assert expected == checked_max_attempts(value)


def test_what_is_no_backoff_is_refused_with_the_field_named() -> None:
    with pytest.raises(ConfigurationError, match=r"retry\.backoff"):
        Retry(backoff="5s")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("delay", "expected"), [(-5, 0), (math.nan, 0), (math.inf, MAX_DELAY_MS), (10**20, MAX_DELAY_MS), (2.7, 2), (7, 7)]
)
def test_a_teams_own_backoff_is_held_to_whole_milliseconds_within_ten_years(delay: Any, expected: int) -> None:
    held = Retry(backoff=Says(delay)).delay_ms(1, 0.5)

    assert type(held) is int
    assert expected == held


def test_a_retry_is_a_value() -> None:
    assert {Retry(3, Fixed("1s"))} == {Retry(3, Fixed("1s"))}
