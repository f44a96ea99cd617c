"""Failure, attempt, limits and now to a settlement."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core import settlement
from redrive.core.idempotency import Acquired, ClaimRef, Duplicate, InProgress
from redrive.core.letters.letter import Attempt, AttemptOutcome
from redrive.core.policy.backoff import Exponential, Fixed
from redrive.core.policy.classify import Failure, FailureKind
from redrive.core.policy.decide import WAIT_IN_PROGRESS_MAX_MS, decide, decide_start, exhausted_code
from redrive.core.policy.failure import Scope
from redrive.core.policy.retry import Retry
from redrive.core.signals import DeadLetter, Requeue, RetryLater, Signal
from redrive.core.text import MAX_TEXT_BYTES
from redrive.core.units import MAX_DELAY_MS

NOW = 1_761_440_370_000
RETRY = Retry(5, Exponential("1s", factor=2))


def a_failure(code: str = "TIMEOUT", *, kind: FailureKind = FailureKind.TRANSIENT, **more: Any) -> Failure:
    return Failure(kind=kind, code=code, text="read timed out", **more)


def outcome(what: Failure | Signal, attempt: int = 1, retry: Retry = RETRY) -> settlement.Settlement:
    return decide(what, attempt=attempt, retry=retry, now=NOW, u=0.0)


# ------------------------------------------------------------------------------------------------ after a handler


@pytest.mark.parametrize(("attempt", "delay_ms"), [(1, 1_000), (2, 2_000), (3, 4_000), (4, 8_000)])
def test_a_transient_failure_is_retried_after_the_backoff(attempt: int, delay_ms: int) -> None:
    decided = outcome(a_failure(), attempt)

    assert isinstance(decided, settlement.Retry)
    assert (NOW + delay_ms, "TIMEOUT") == (decided.due_at, decided.reason.code)


@pytest.mark.parametrize(("max_attempts", "runs"), [(1, 1), (2, 2), (3, 3)])
def test_the_handler_runs_max_attempts_times_then_it_is_a_dead_letter(max_attempts: int, runs: int) -> None:
    retry = Retry(max_attempts, Fixed("1s"))

    ends = [type(outcome(a_failure(), attempt, retry)) for attempt in range(1, runs + 1)]

    assert [settlement.Retry] * (runs - 1) + [settlement.DeadLetter] == ends


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("TIMEOUT", "DOWNSTREAM_TIMEOUT_EXHAUSTED"),
        ("ECONNREFUSED", "ECONNREFUSED_EXHAUSTED"),
        ("HTTP_503", "HTTP_503_EXHAUSTED"),
        ("WORKER_LOST", "WORKER_LOST"),
    ],
)
def test_an_exhausted_failure_says_so_in_its_code_and_how_often_in_its_text(code: str, reason: str) -> None:
    decided = outcome(a_failure(code), 5)

    assert (
        settlement.DeadLetter(reason=settlement.Reason(code=reason, text="read timed out (attempt 5 of 5)")) == decided
    )
    assert reason == exhausted_code(code)


def test_a_permanent_failure_is_a_dead_letter_at_once_under_its_own_code() -> None:
    decided = outcome(a_failure("VALIDATION_FAILED", kind=FailureKind.PERMANENT))

    assert settlement.DeadLetter(reason=settlement.Reason(code="VALIDATION_FAILED", text="read timed out")) == decided


@pytest.mark.parametrize(
    ("told_ms", "delay_ms"), [(None, 1_000), (0, 1_000), (500, 1_000), (300_000, 300_000), (10**15, MAX_DELAY_MS)]
)
def test_a_delay_told_by_a_server_is_honoured_at_least(told_ms: int | None, delay_ms: int) -> None:
    decided = outcome(a_failure("HTTP_429", retry_after_ms=told_ms))

    assert isinstance(decided, settlement.Retry)
    assert NOW + delay_ms == decided.due_at


def test_retry_later_is_taken_as_asked_and_counts() -> None:
    asked, open_ended, last = outcome(RetryLater("30s", "busy")), outcome(RetryLater()), outcome(RetryLater("30s"), 5)

    assert isinstance(asked, settlement.Retry)
    assert isinstance(open_ended, settlement.Retry)
    assert isinstance(last, settlement.DeadLetter)
    assert (NOW + 30_000, "busy", NOW + 1_000) == (asked.due_at, asked.reason.text, open_ended.due_at)
    assert "RETRY_LATER_EXHAUSTED" == last.reason.code


def test_a_requeue_costs_no_attempt_even_on_the_last_one() -> None:
    decided = outcome(Requeue("2s", "not my turn"), 99)

    assert isinstance(decided, settlement.Requeue)
    assert (NOW + 2_000, "not my turn") == (decided.due_at, decided.reason.text)


def test_a_dead_letter_signal_gives_up_with_the_handlers_reason() -> None:
    decided = outcome(DeadLetter("no such order", code="unknown order"))

    assert settlement.DeadLetter(reason=settlement.Reason(code="UNKNOWN_ORDER", text="no such order")) == decided


def test_a_signal_of_ones_own_making_is_a_transient_failure() -> None:
    class Shrug(Signal):
        pass

    decided = outcome(Shrug("whatever"))

    assert isinstance(decided, settlement.Retry)
    assert ("SHRUG", "whatever") == (decided.reason.code, decided.reason.text)


def test_a_rewritten_body_travels_with_the_retry() -> None:
    decided = decide(a_failure(), attempt=1, retry=RETRY, now=NOW, u=0.0, body=b'{"attempt":2}')

    assert isinstance(decided, settlement.Retry)
    assert b'{"attempt":2}' == decided.body


@pytest.mark.parametrize("now", [1_761_440_370_000, 1_743_296_370_000])
def test_a_due_time_is_plain_arithmetic_across_a_change_of_clocks(now: int) -> None:
    decided = decide(a_failure(), attempt=1, retry=Retry(5, Fixed("60s")), now=now, u=0.0)

    assert isinstance(decided, settlement.Retry)
    assert now + 60_000 == decided.due_at
    assert None is decide_start(attempt=2, retry=RETRY, verdict=None, expires_at=now + 90_000, now=decided.due_at)


FAILURES = st.builds(
    Failure,
    kind=st.sampled_from(FailureKind),
    code=st.text(st.characters(), max_size=8),
    text=st.text(st.characters(), max_size=5_000),
    retry_after_ms=st.none() | st.integers(0, 10**18),
)


@given(FAILURES, st.integers(1, 10**9), st.integers(1, 10**9), st.floats(0, 1, exclude_max=True))
def test_whatever_failed_the_end_is_a_bounded_retry_or_a_dead_letter_with_a_reason(
    failure: Failure, attempt: int, max_attempts: int, u: float
) -> None:
    decided = decide(failure, attempt=attempt, retry=Retry(max_attempts, RETRY.backoff), now=NOW, u=u)

    assert isinstance(decided, settlement.Retry | settlement.DeadLetter)
    assert decided.reason.code.strip("\x00")
    assert len(decided.reason.text.encode()) <= MAX_TEXT_BYTES + 100
    if isinstance(decided, settlement.Retry):
        assert attempt < max_attempts
        assert failure.is_retryable
        assert NOW + max(1_000, min(failure.retry_after_ms or 0, MAX_DELAY_MS)) <= decided.due_at <= NOW + MAX_DELAY_MS


# ------------------------------------------------------------------------------------------------ before a handler


def start(attempt: int = 1, **more: Any) -> settlement.Settlement | None:
    given: dict[str, Any] = {"retry": RETRY, "verdict": None, "expires_at": None, "now": NOW, **more}
    return decide_start(attempt=attempt, **given)


def entry(attempt: int, how: AttemptOutcome = AttemptOutcome.FAILED, **more: Any) -> Attempt:
    return Attempt(attempt=attempt, outcome=how, at=NOW - 1, **more)


ACQUIRED = Acquired(ref=ClaimRef(queue="q", key="k", token=1), attempts=1, cycle=0)


def test_a_first_delivery_runs() -> None:
    assert start() is None
    assert start(5, verdict=ACQUIRED, expires_at=NOW + 1) is None


def test_a_duplicate_is_acknowledged_without_running() -> None:
    decided = start(verdict=Duplicate(), expires_at=NOW - 1)

    assert isinstance(decided, settlement.Ack)
    assert decided.reason is not None


@pytest.mark.parametrize(
    ("left_ms", "wait_ms"),
    [
        (30_000, 100),
        (29_500, 500),
        (20_000, WAIT_IN_PROGRESS_MAX_MS),
        (3_000, 3_000),
        (60_000, 100),
        (1, 100),
        (-5, 100),
    ],
)
def test_a_key_in_progress_elsewhere_waits_and_loses_nothing(left_ms: int, wait_ms: int) -> None:
    decided = start(99, verdict=InProgress(lease_until=NOW + left_ms), lease_ms=30_000, expires_at=NOW - 1)

    assert isinstance(decided, settlement.Requeue)
    assert NOW + wait_ms == decided.due_at


def test_an_expired_message_is_a_dead_letter() -> None:
    decided = start(expires_at=NOW)

    assert isinstance(decided, settlement.DeadLetter)
    assert "EXPIRED" == decided.reason.code


def test_a_message_whose_last_start_never_ended_is_worker_lost_after_the_allowed_starts() -> None:
    history = (entry(4), entry(5, AttemptOutcome.INTERRUPTED, worker="w"))

    decided = start(6, history=history)

    assert isinstance(decided, settlement.DeadLetter)
    assert "WORKER_LOST" == decided.reason.code
    assert start(5, history=history[:1]) is None


def test_a_message_that_failed_its_last_attempt_before_is_exhausted_under_that_failure() -> None:
    decided = start(6, history=(entry(5, error_code="TIMEOUT", error_text="slow"),))

    assert isinstance(decided, settlement.DeadLetter)
    assert ("DOWNSTREAM_TIMEOUT_EXHAUSTED", "slow (attempt 5 of 5)") == (decided.reason.code, decided.reason.text)


def test_a_forged_count_dead_letters_early_and_says_why() -> None:
    decided = start(1_000_001)

    assert isinstance(decided, settlement.DeadLetter)
    assert "ATTEMPTS_EXHAUSTED" == decided.reason.code
    assert "1000000 attempts were counted" in decided.reason.text


# ------------------------------------------------------------------------------------------------ who is to blame


@pytest.mark.parametrize("kind", FailureKind)
def test_a_failure_of_the_lane_costs_no_attempt_even_in_the_last_one(kind: FailureKind) -> None:
    failure = a_failure("Throttling", kind=kind, scope=Scope.LANE, retry_after_ms=60_000)

    decided = outcome(failure, attempt=5)

    assert isinstance(decided, settlement.Requeue)
    assert (NOW + 60_000, "Throttling") == (decided.due_at, decided.reason.code)


def test_a_failure_of_the_tenant_costs_no_attempt_while_it_may_pass() -> None:
    passing = a_failure("PAUSED", scope=Scope.TENANT)
    lasting = a_failure("UNVERIFIED", kind=FailureKind.PERMANENT, scope=Scope.TENANT)

    assert isinstance(outcome(passing), settlement.Requeue)
    assert isinstance(outcome(lasting), settlement.DeadLetter)


def test_what_the_handler_kept_goes_along_only_with_a_retry_so_that_one_is_made() -> None:
    failure = a_failure("Throttling", scope=Scope.LANE, retry_after_ms=60_000)

    decided = decide(failure, attempt=1, retry=RETRY, now=NOW, u=0.0, body=b"{}", has_kept=True)

    assert isinstance(decided, settlement.Retry)
    assert (NOW + 60_000, b"{}") == (decided.due_at, decided.body)


def test_an_unknown_outcome_is_tried_once_more_and_then_a_person_decides() -> None:
    failure = a_failure("SMTP_OUTCOME_UNKNOWN", kind=FailureKind.UNKNOWN, retry_after_ms=900_000)
    before = Attempt(attempt=1, outcome=AttemptOutcome.FAILED, at=NOW, error_code="SMTP_OUTCOME_UNKNOWN")

    first = outcome(failure)
    second = decide(failure, attempt=2, retry=RETRY, now=NOW, u=0.0, history=(before,))

    assert isinstance(first, settlement.Retry)
    assert NOW + 900_000 == first.due_at
    assert isinstance(second, settlement.DeadLetter)
    assert "SMTP_OUTCOME_UNKNOWN" == second.reason.code
    assert "may have been done" in second.reason.text
