"""The redrive job: its states, which letters it may send, its pace."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.message import Message
from redrive.core.redrive import JOB_TRANSITIONS, JobEvent, JobOptions, JobState, pace_ms, refusal
from redrive.core.settlement import Reason

LETTER = Letter(
    id="dl_1", system="s", queue="orders", dead_letter_queue="orders.dead", message=Message(id="m", body=b""),
    reason=Reason(code="X", text="y"), attempt_count=5, first_failed_at=1, dead_lettered_at=2,
)  # fmt: skip
S, E = JobState, JobEvent
LEGAL = {
    (S.STAGED, E.START): S.RUNNING,
    (S.STAGED, E.ABORT): S.ABORTED,
    (S.STAGED, E.BREAK): S.FAILED,
    (S.STAGED, E.PAUSE): S.PAUSED,
    (S.RUNNING, E.START): S.RUNNING,
    (S.RUNNING, E.FINISH): S.DONE,
    (S.RUNNING, E.ABORT): S.ABORTED,
    (S.RUNNING, E.BREAK): S.FAILED,
    (S.RUNNING, E.PAUSE): S.PAUSED,
    (S.PAUSED, E.START): S.RUNNING,
    (S.PAUSED, E.ABORT): S.ABORTED,
    (S.ABORTED, E.START): S.RUNNING,
    (S.FAILED, E.START): S.RUNNING,
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(JobState, JobEvent)))
def test_every_pair_of_state_and_event_is_as_the_document_has_it(state: JobState, event: JobEvent) -> None:
    assert LEGAL.get((state, event)) == JOB_TRANSITIONS[state].get(event)


@pytest.mark.parametrize(
    ("state", "may"),
    [
        (ReviewState.PENDING, True),
        (ReviewState.REVIEWED, True),
        (ReviewState.REPLAYED, False),
        (ReviewState.CLOSED, False),
    ],
)
def test_only_open_letters_are_sent_and_a_closed_one_must_be_restored_first(state: ReviewState, may: bool) -> None:
    why = refusal(replace(LETTER, state=state), JobOptions(), job_id="job")

    assert may == (why is None)
    assert may or "restore it first" in str(why)


def test_a_closed_letter_stays_out_even_with_force() -> None:
    assert refusal(replace(LETTER, state=ReviewState.CLOSED), JobOptions(force=True), job_id="job") is not None
    assert refusal(replace(LETTER, state=ReviewState.REPLAYED), JobOptions(force=True), job_id="job") is None


def test_a_letter_whose_retention_has_ended_stays_out_of_a_redrive_of_all() -> None:
    letters = [replace(LETTER, expires_at=expires_at) for expires_at in (None, 99, 100, 101)]

    why = [refusal(letter, JobOptions(), job_id="job", at=100) for letter in letters]

    assert [None, "its retention has ended: use --force", "its retention has ended: use --force", None] == why
    assert refusal(letters[1], JobOptions(force=True), job_id="job", at=100) is None
    assert refusal(letters[1], JobOptions(), job_id="job") is None


def test_a_letter_in_another_job_is_refused_and_names_that_job() -> None:
    held = replace(LETTER, outstanding_job="other")

    assert "other" in str(refusal(held, JobOptions(), job_id="job"))
    assert refusal(held, JobOptions(), job_id="other") is None


def test_a_letter_redriven_three_times_needs_force() -> None:
    often = replace(LETTER, redrive_count=3)

    assert "--force" in str(refusal(often, JobOptions(), job_id="job"))
    assert refusal(often, JobOptions(force=True), job_id="job") is None
    assert refusal(replace(LETTER, redrive_count=2), JobOptions(), job_id="job") is None


@given(st.integers(0, 10**6), st.integers(0, 10**9), st.floats(0.01, 1e5))
def test_the_pace_never_sends_more_than_the_rate_since_the_start(sent: int, elapsed_ms: int, rate: float) -> None:
    wait = pace_ms(JobOptions(rate_per_s=rate), sent, elapsed_ms)

    assert wait >= 0
    assert (elapsed_ms + wait + 1) * rate / 1_000 >= sent * (1 - 1e-9)


def test_without_a_rate_there_is_no_wait() -> None:
    assert 0 == pace_ms(JobOptions(), 10**6, 0)
