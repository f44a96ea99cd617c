"""HTTP statuses and Retry-After."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.policy.catalogue.http import entry_of_status, parse_retry_after
from redrive.core.units import MAX_DELAY_MS

NOW = 784_111_777_000  # Sun, 06 Nov 1994 08:49:37 GMT


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("120", 120_000),
        (" 0 ", 0),
        ("00000000000000005", 5_000),
        ("9" * 4_000, MAX_DELAY_MS),
        ("99999999999", MAX_DELAY_MS),
        (b"7", 7_000),
        (7, 7_000),
        (0, 0),
        ("Sun, 06 Nov 1994 08:50:37 GMT", 60_000),
        ("sun, 06 nov 1994 08:50:37 gmt", 60_000),
        ("Sunday, 06-Nov-94 08:50:37 GMT", 60_000),
        ("Sun Nov  6 08:50:37 1994", 60_000),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", MAX_DELAY_MS),
        ("Sunday, 06-Nov-93 08:50:37 GMT", 0),
        ("Sunday, 06-Nov-44 08:50:37 GMT", 0),
    ],
)
def test_retry_after_is_seconds_or_a_date_seen_from_now(value: str | bytes | float, expected: int) -> None:
    assert expected == parse_retry_after(value, NOW)


@pytest.mark.parametrize(
    "value",
    [None, "", "soon", "-1", "+1", "1.5", "1e3", "٣", "Sun, 31 Feb 1994 08:50:37 GMT", "Sun, 06 Foo 1994 08:50:37 GMT",
     "Sun, 06 Nov 1994 08:50:37 CET", "Sun, 06 Nov 1994 25:00:00 GMT", b"\xff", "x" * 10**6],
)  # fmt: skip
def test_a_retry_after_that_says_nothing_is_none(value: str | bytes | None) -> None:
    assert parse_retry_after(value, NOW) is None


@given(st.datetimes(datetime(1971, 1, 1), datetime(9998, 1, 1)), st.integers(0, 10**6))
def test_a_date_is_as_far_away_as_it_says(moment: datetime, ahead_s: int) -> None:
    now = moment.replace(microsecond=0, tzinfo=UTC)
    text = (now + timedelta(seconds=ahead_s)).strftime("%a, %d %b %Y %H:%M:%S GMT")

    assert ahead_s * 1_000 == parse_retry_after(text, round(now.timestamp()) * 1_000)


@given(st.text() | st.binary())
def test_no_header_whatever_raises(value: str | bytes) -> None:
    delay = parse_retry_after(value, NOW)

    assert delay is None or 0 <= delay <= MAX_DELAY_MS


def test_only_two_hundreds_are_success() -> None:
    assert list(range(200, 300)) == [status for status in range(100, 1_000) if entry_of_status(status) is None]
