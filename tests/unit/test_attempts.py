"""The true attempt number, from everything that counts it (case RC-01, RC-02)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.attempts import (
    HEADER_ATTEMPT,
    HEADER_BASELINE,
    MAX_COUNT,
    attempt_number,
    failed_by_headers,
    failed_by_x_death,
)
from redrive.core.idempotency import Acquired, ClaimRef
from redrive.core.message import Headers

REJECTED = {"queue": "orders", "reason": "rejected"}


def claim(attempts: int, *, cycle: int = 0) -> Acquired:
    return Acquired(ref=ClaimRef(queue="orders", key="k", token=1), attempts=attempts, cycle=cycle)


X_DEATHS: list[tuple[Any, int, bool]] = [
    (
        [
            {"queue": "orders.retry.30s", "reason": "expired", "count": 3},
            {"queue": "orders", "reason": "rejected", "count": 3},
            {"queue": "orders.retry.5s", "reason": "expired", "count": 1},
            {"queue": "billing", "reason": "rejected", "count": 7},
        ],
        3,
        True,
    ),
    ([REJECTED, REJECTED], 2, True),
    (None, 0, True),
    ([], 0, True),
    ("boom", 0, False),
    ([{**REJECTED, "count": "2"}], 2, True),
    ([{"queue": "orders", "reason": "expired", "count": 9}], 0, True),
    ([{"queue": "orders", "reason": "delivery_limit", "count": 4}], 4, True),
    ([{"queue": b"orders", "reason": b"rejected", "count": b"2"}], 2, True),
    (["a", 1, None, REJECTED], 1, False),
    ([{**REJECTED, "count": -5}, REJECTED], 1, False),
    ([{**REJECTED, "count": True}], 0, False),
    ([{**REJECTED, "count": "9" * 5_000}], 0, False),
    ({"queue": "orders"}, 0, False),
    (7, 0, False),
]


@pytest.mark.parametrize(("value", "failed", "is_readable"), X_DEATHS)
def test_x_death_counts_this_queues_rejections_and_no_junk_raises(value: Any, failed: int, is_readable: bool) -> None:
    counted = failed_by_x_death(value, queue="orders")

    assert (failed, is_readable) == (counted.failed, counted.is_readable)


def test_three_rejections_make_the_running_delivery_attempt_four() -> None:
    headers: Headers = {"x-death": [{**REJECTED, "count": 3, "time": datetime(2023, 11, 14, tzinfo=UTC)}]}

    assert 4 == attempt_number(claim=None, starts=None, headers=headers, queue="orders")


def test_the_own_header_comes_before_x_death() -> None:
    headers: Headers = {HEADER_ATTEMPT: 2, "x-death": [{**REJECTED, "count": 1}]}

    assert 2 == attempt_number(claim=None, starts=None, headers=headers, queue="orders")


def test_the_baseline_of_the_last_redrive_is_taken_off_x_death() -> None:
    headers: Headers = {HEADER_BASELINE: 5, "x-death": [{**REJECTED, "count": 7}]}

    assert 2 == failed_by_headers(headers, queue="orders").failed
    assert 0 == failed_by_headers({**headers, HEADER_BASELINE: 99}, queue="orders").failed


@pytest.mark.parametrize("junk", [None, "", "x", -1, 0, True, 1.5, [], {}, b"\xff", "²"])
def test_a_malformed_own_header_counts_as_absent(junk: Any) -> None:
    headers: Headers = {HEADER_ATTEMPT: junk, "x-death": [{**REJECTED, "count": 2}]}

    counted = failed_by_headers(headers, queue="orders")

    assert (2, False) == (counted.failed, counted.is_readable)


def test_a_broker_that_counts_starts_is_believed_and_headers_are_not_asked() -> None:
    forged: Headers = {HEADER_ATTEMPT: 9, "x-death": [{**REJECTED, "count": 9}]}

    assert 2 == attempt_number(claim=None, starts=2, headers=forged, queue="orders")
    assert 3 == attempt_number(claim=claim(3), starts=7, headers=forged, queue="orders")


def test_a_claim_record_of_the_first_cycle_may_be_younger_than_the_message() -> None:
    headers: Headers = {"x-death": [{**REJECTED, "count": 3}]}

    assert 4 == attempt_number(claim=claim(1), starts=None, headers=headers, queue="orders")
    assert 5 == attempt_number(claim=claim(5), starts=None, headers=headers, queue="orders")


def test_after_a_redrive_the_claim_record_alone_counts() -> None:
    headers: Headers = {"x-death": [{**REJECTED, "count": 5}]}

    assert 1 == attempt_number(claim=claim(1, cycle=1), starts=None, headers=headers, queue="orders")


def test_a_broker_that_says_one_for_ever_does_not_stop_the_count() -> None:
    headers: Headers = {"x-death": [{**REJECTED, "count": 1}]}

    counted = [attempt_number(claim=claim(n), starts=None, headers=headers, queue="orders") for n in (1, 2, 3)]

    assert [2, 2, 3] == counted


@given(
    st.dictionaries(
        st.sampled_from(["x-death", HEADER_ATTEMPT, HEADER_BASELINE, "x-delivery-count"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
            lambda inner: (
                st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["queue", "count"]), inner, max_size=2)
            ),
            max_leaves=4,
        ),
    )
)
def test_no_headers_whatever_raise_or_count_beyond_the_limit(headers: dict[str, Any]) -> None:
    assert 1 <= attempt_number(claim=None, starts=None, headers=headers, queue="orders") <= MAX_COUNT + 1
