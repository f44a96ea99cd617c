"""Letters from jobs that a broker's own workers gave up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.letters.failed import FAILED, STALLED_TEXT, failed_letter
from redrive.core.letters.foreign import UNKNOWN
from redrive.core.letters.letter import AttemptOutcome, Letter
from redrive.core.message import Message, Properties
from redrive.core.ports import FailedJob

NOW = 1_700_000_100_000
JOB = FailedJob(
    message=Message(id="7", key="7@1", body=b"{}", published_at=1, properties=Properties(type="charge")),
    ref=None,
    text="declined",
    traces=("Error: first\n    at a.js:1:1", "CardError: declined\n    at a.js:1:1"),
    attempts=2,
    started_at=NOW - 5_000,
    failed_at=NOW - 4_000,
)


def made(**changes: Any) -> Letter:
    return failed_letter(replace(JOB, **changes), queue="orders", system="found", now=NOW)


def test_it_says_what_the_job_says() -> None:
    letter = made()

    assert ("orders", "", "CardError", "CARD_ERROR") == (
        letter.queue, letter.dead_letter_queue, letter.error_type, letter.reason.code,
    )  # fmt: skip
    (last,) = letter.history
    assert (2, NOW - 4_000, 1_000, "declined") == (last.attempt, last.at, last.duration_ms, last.error_text)
    assert '["Error: first\\n    at a.js:1:1"]' == letter.message.headers["x-bullmq-stacktraces"]


def test_a_reason_of_blanks_says_nothing() -> None:
    assert UNKNOWN.text == made(text="\r").reason.text


def test_one_whose_workers_died_says_so() -> None:
    letter = made(text=f"{STALLED_TEXT} ", traces=())

    assert ("JOB_STALLED", AttemptOutcome.INTERRUPTED) == (letter.reason.code, letter.history[0].outcome)


@pytest.mark.parametrize(
    "changes",
    [
        {"failed_at": NOW - 3_999},
        {"message": replace(JOB.message, id="8")},
        {"message": replace(JOB.message, body=b"[]")},
        {"message": replace(JOB.message, published_at=2)},
    ],
)
def test_another_failure_is_another_letter(changes: dict[str, Any]) -> None:
    assert made().id == made(text="other", traces=(), attempts=9).id
    assert made().id != made(**changes).id


@given(
    st.builds(
        FailedJob,
        message=st.builds(Message, id=st.text(), body=st.binary(), headers=st.dictionaries(st.text(), st.text())),
        ref=st.none(),
        text=st.text(),
        traces=st.lists(st.text(), max_size=3).map(tuple),
        attempts=st.integers(),
        started_at=st.none() | st.integers(),
        failed_at=st.integers(),
    )
)
def test_whatever_a_job_says_it_becomes_a_letter(job: FailedJob) -> None:
    letter = failed_letter(job, queue="orders", system="found", now=NOW)

    assert letter.reason.text.strip()
    assert letter.reason.code in {FAILED, "JOB_STALLED"} or letter.error_type
    assert 0 <= letter.first_failed_at <= letter.dead_lettered_at <= NOW
