"""A letter from a message that was given up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.letters.letter import Attempt, AttemptOutcome, Letter, ReviewState
from redrive.core.letters.making import letter_of, previous_letter, redrive_count
from redrive.core.message import HEADER_FIRST_FAILED_AT, HEADER_LETTER, HEADER_REDRIVEN_COUNT, Message
from redrive.core.policy.failure import Failure, FailureKind
from redrive.core.settlement import Reason

NOW = 1_700_000_000_000
MESSAGE = Message(id="m", body=b"\x00\xff", key="k", tenant="t", published_at=NOW - 9_000, headers={"x-tenant": "t"})
HISTORY = (
    Attempt(attempt=1, outcome=AttemptOutcome.FAILED, at=NOW - 5_000, error_code="TIMEOUT", error_type="TimeoutError"),
    Attempt(attempt=2, outcome=AttemptOutcome.FAILED, at=NOW - 1_000, error_code="TIMEOUT", error_type="TimeoutError",
            traceback='  File "/app/shop/charge.py", line 3, in charge\n'),
)  # fmt: skip
FAILURE = Failure(kind=FailureKind.TRANSIENT, code="TIMEOUT", text="order 7: timed out", error_type="TimeoutError")


def a_letter(message: Message = MESSAGE, **more: Any) -> Letter:
    given: dict[str, Any] = {
        "system": "shop",
        "queue": "orders",
        "dead_letter_queue": "orders.dead",
        "attempt": 2,
        "history": HISTORY,
        "now": NOW,
        "reason": Reason(code="DOWNSTREAM_TIMEOUT_EXHAUSTED", text="order 7: timed out (attempt 2 of 2)"),
        "position": "1",
        "cycle": 0,
        "failure": FAILURE,
        **more,
    }
    return letter_of(message, **given)


def test_a_letter_keeps_the_whole_message_and_why_it_lies_here() -> None:
    letter = a_letter(ttl_ms=1_000)

    assert MESSAGE is letter.message
    assert HISTORY == letter.history
    assert ("TimeoutError", "TIMEOUT", 2) == (letter.error_type, letter.error_code, letter.attempt_count)
    assert (NOW - 5_000, NOW, NOW + 1_000) == (letter.first_failed_at, letter.dead_lettered_at, letter.expires_at)
    assert (ReviewState.PENDING, 0, None) == (letter.state, letter.redrive_count, letter.previous)
    assert "TimeoutError: order <n>: timed out (shop/charge.py:charge)" == letter.group_title


def test_a_message_given_up_without_running_has_the_reason_for_its_group() -> None:
    reason = Reason(code="EXPIRED", text="the lifetime ended 17 ms before")
    letter = a_letter(reason=reason, failure=None, history=(), attempt=0)
    later = a_letter(
        replace(MESSAGE, id="n", key="l"),
        reason=replace(reason, text="the lifetime ended 23 ms before"),
        failure=None,
        history=(),
    )

    assert (None, None, NOW) == (letter.error_type, letter.error_code, letter.first_failed_at)
    assert "EXPIRED: the lifetime ended <n> ms before" == letter.group_title
    assert letter.fingerprint == later.fingerprint


def test_a_crash_between_storing_and_settling_makes_the_same_letter_again() -> None:
    assert a_letter().id == a_letter(now=NOW + 5_000, position="2").id


def test_another_cycle_or_another_send_of_the_key_is_another_letter() -> None:
    again = replace(MESSAGE, published_at=NOW)

    assert 3 == len({a_letter().id, a_letter(cycle=1).id, a_letter(again).id})


def test_without_a_claim_every_copy_makes_its_own_letter_whatever_its_key() -> None:
    assert a_letter(cycle=None).id != a_letter(cycle=None, position="2").id
    assert a_letter(replace(MESSAGE, key=None)).id != a_letter(replace(MESSAGE, key=None), position="2").id


def test_a_redriven_copy_that_dies_again_is_linked_and_keeps_its_first_failure() -> None:
    copy = replace(
        MESSAGE, headers={HEADER_LETTER: "dl_1", HEADER_REDRIVEN_COUNT: 2, HEADER_FIRST_FAILED_AT: NOW - 99_000}
    )

    letter = a_letter(copy)

    assert ("dl_1", 2, NOW - 99_000) == (letter.previous, letter.redrive_count, letter.first_failed_at)


@pytest.mark.parametrize(
    "junk", [None, "", "x", -1, True, 1.5, [], {}, b"\xff", 2**70, "9" * 5_000, "²", "dl\x00", "\ud800"]
)
def test_malformed_own_headers_count_as_absent(junk: Any) -> None:
    letter = a_letter(replace(MESSAGE, headers={HEADER_REDRIVEN_COUNT: junk, HEADER_FIRST_FAILED_AT: junk}))

    assert (0, NOW - 5_000) == (letter.redrive_count, letter.first_failed_at)


@pytest.mark.parametrize("junk", [None, "", 5, True, [], b"dl_1", "dl\x00", "dl\n", "\ud800", "x" * 201])
def test_a_malformed_link_counts_as_absent(junk: Any) -> None:
    assert previous_letter({HEADER_LETTER: junk}) is None


def test_counts_may_come_as_text() -> None:
    assert 7 == redrive_count({HEADER_REDRIVEN_COUNT: "7"})


def test_a_first_failure_in_the_future_is_not_believed() -> None:
    letter = a_letter(replace(MESSAGE, headers={HEADER_FIRST_FAILED_AT: NOW + 1}))

    assert NOW - 5_000 == letter.first_failed_at


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=3,
)


@given(
    st.dictionaries(
        st.sampled_from([HEADER_LETTER, HEADER_REDRIVEN_COUNT, HEADER_FIRST_FAILED_AT, "x-death"]), ANYTHING
    )
)
def test_no_headers_whatever_keep_a_letter_from_being_made(headers: dict[str, Any]) -> None:
    letter = a_letter(replace(MESSAGE, headers=headers))

    assert 0 <= letter.first_failed_at <= NOW
    assert letter.redrive_count >= 0
