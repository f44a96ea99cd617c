"""One message to several addresses, each with its own fate."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.policy.failure import Failure, FailureKind, Scope
from redrive.core.recipients import Recipients, RecipientState

A, B, C, D = "a@x.example", "b@x.example", "c@x.example", "d@x.example"
ALL = (A, B, C, D)
UNKNOWN = (550, b"5.1.1 user unknown")
BUSY = (451, "4.2.1 busy, try again in 90 seconds")


def again(recipients: Recipients) -> Recipients:
    """As the next attempt finds it, through JSON."""
    return Recipients.of(ALL, json.loads(json.dumps(recipients.document())))


def failure_of(recipients: Recipients) -> Failure:
    failure = recipients.failure()
    assert failure is not None
    return failure


def test_only_who_was_refused_for_now_is_tried_again() -> None:
    """Case ML-06: RCPT 250, 550, 451, 250; DATA 250."""
    first = Recipients.of(ALL).after(sent=(A, D), refused={B: UNKNOWN, C: BUSY})
    failure = failure_of(first)

    assert (C,) == first.waiting
    assert (FailureKind.TRANSIENT, "SMTP_451", 90_000) == (failure.kind, failure.code, failure.retry_after_ms)
    assert "4 recipients: 1 waiting, 2 sent, 1 refused" in failure.text
    second = again(first).after(sent=(C,))
    assert second.waiting == ()
    assert None is second.failure()
    assert [B] == [each.address for each in second.in_state(RecipientState.REFUSED) if each.suppress]


def test_four_refused_for_now_are_all_tried_again() -> None:
    """Case ML-06, all 4xx."""
    first = Recipients.of(ALL).after(refused=dict.fromkeys(ALL, BUSY))

    assert ALL == first.waiting
    assert failure_of(first).is_retryable
    assert None is again(first).after(sent=ALL).failure()


def test_when_nobody_can_be_reached_the_message_is_dead() -> None:
    """Case ML-06, all 5xx."""
    first = Recipients.of(ALL).after(refused=dict.fromkeys(ALL, UNKNOWN))
    failure = failure_of(first)

    assert (FailureKind.PERMANENT, "SMTP_550", Scope.RECIPIENT) == (failure.kind, failure.code, failure.scope)


def test_a_refusal_of_the_content_is_one_of_each_who_was_accepted() -> None:
    """Case ML-06: DATA 451 after mixed RCPT."""
    first = Recipients.of(ALL).after(refused={B: UNKNOWN, **dict.fromkeys((A, C, D), (451, "4.3.0 later"))})

    assert (A, C, D) == first.waiting
    assert failure_of(first).is_retryable


def test_what_throttles_the_account_refuses_nobody() -> None:
    first = Recipients.of((A,)).after(refused={A: (535, "5.7.8 bad credentials")})
    failure = failure_of(first)

    assert (A,) == first.waiting
    assert (Scope.LANE, "535 5.7.8 bad credentials") == (failure.scope, failure.text)


def test_whoever_got_it_never_gets_it_again_whatever_is_said_later() -> None:
    first = Recipients.of((A, B)).after(sent=(A,), refused={B: BUSY})

    second = again_of((A, B), first).after(sent=(A, B), refused={A: UNKNOWN})

    assert [RecipientState.SENT, RecipientState.SENT] == [each.state for each in second.each]


def again_of(addresses: tuple[str, ...], recipients: Recipients) -> Recipients:
    return Recipients.of(addresses, recipients.document())


def test_an_attempt_that_says_nothing_leaves_all_waiting() -> None:
    untouched = Recipients.of((A, A, B))

    assert (A, B) == untouched.waiting
    assert ("RECIPIENTS_WAITING", True) == (failure_of(untouched).code, failure_of(untouched).is_retryable)
    assert {"recipients": {}} == untouched.document()


@pytest.mark.parametrize("junk", [None, 5, [], {"recipients": 5}, {"recipients": {A: 5}}, {"recipients": {A: {}}}])
def test_junk_that_was_kept_counts_as_nothing(junk: Any) -> None:
    assert (A, B) == Recipients.of((A, B), junk).waiting


REPLIES = st.one_of(
    st.tuples(st.integers(0, 999), st.text() | st.binary()),
    st.text(),
    st.binary(),
    st.none(),
    st.tuples(),
    st.integers(),
)


@given(st.lists(st.sampled_from(ALL)), st.dictionaries(st.sampled_from((*ALL, "z@z")), REPLIES))
def test_whatever_a_server_says_nobody_is_lost_and_sent_is_sent(sent: list[str], refused: dict[str, Any]) -> None:
    first = Recipients.of(ALL).after(sent=sent, refused=refused)

    assert sorted(ALL) == sorted(each.address for each in first.each)
    reached = set(sent) - set(refused)
    assert reached == {each.address for each in first.in_state(RecipientState.SENT)}
    assert [each.state for each in first.each] == [each.state for each in again(first).each]
    failure = first.failure()
    assert bool(first.waiting) <= (failure is not None)
