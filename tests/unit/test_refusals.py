"""Why letters are not sent: every text has its code, and the rules that look beyond the letter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redrive.core.idempotency import ClaimRecord, ClaimState
from redrive.core.letters.letter import ReviewState
from redrive.core.redrive import JobOptions, refusal
from redrive.core.refusals import RefusalCode, added, by_code, code_of, forgotten, overtakes
from redrive.testing.samples import letter

DAY = 86_400_000
C = RefusalCode


def test_what_a_letter_is_refused_for_has_a_code() -> None:
    plain, options = letter("dl_1"), JobOptions()
    given = {
        C.GONE: refusal(None, options, job_id="j"),
        C.NO_QUEUE: refusal(replace(plain, dead_letter_queue=plain.queue), options, job_id="j"),
        C.NOT_OPEN: refusal(replace(plain, state=ReviewState.CLOSED), options, job_id="j"),
        C.IN_PROGRESS: refusal(replace(plain, outstanding_job="other"), options, job_id="j"),
        C.RETENTION_ENDED: refusal(replace(plain, expires_at=1), options, job_id="j", at=2),
        C.REDRIVEN_OFTEN: refusal(replace(plain, redrive_count=3), options, job_id="j"),
        C.DEDUP_EXPIRED: forgotten("q", None, died_at=0, retention_ms=DAY, now=2 * DAY),
        C.OUT_OF_ORDER: overtakes("dl_0"),
        C.EDIT: "the edit does not fit: no",
        C.BROKER: "the broker refused it: no",
        C.OTHER: "something an older version said",
    }

    assert set(C) == set(given)
    assert {code: code for code in C} == {code: code_of(str(why)) for code, why in given.items()}


def test_reasons_are_counted_the_most_first() -> None:
    counted = by_code(["it no longer exists", overtakes("a"), overtakes("b")])

    assert [("out-of-order", 2), ("gone", 1)] == list(counted.items())
    assert [("gone", 3), ("out-of-order", 2)] == list(added(counted, {"gone": 2}).items())


@pytest.mark.parametrize(
    ("age", "record", "may"),
    [
        (DAY, None, True),
        (DAY + 1, None, False),
        (DAY + 1, {}, True),
        (DAY + 1, {"expires_at": 10 * DAY + 1}, True),
        (DAY + 1, {"expires_at": 10 * DAY}, False),
        (DAY + 1, {"state": ClaimState.PROCESSED, "expires_at": None}, True),
    ],
)
def test_a_key_is_forgotten_where_its_time_is_over_and_no_record_is_left(
    age: int, record: dict[str, object] | None, may: bool
) -> None:
    kept = None
    if record is not None:
        kept = ClaimRecord(**{"queue": "q", "key": "k", "state": ClaimState.DEAD_LETTERED, **record})  # type: ignore[arg-type]

    why = forgotten("q", kept, died_at=10 * DAY - age, retention_ms=DAY, now=10 * DAY)

    assert may == (why is None)


def test_the_text_says_how_long_and_what_to_say() -> None:
    why = str(forgotten("orders", None, died_at=0, retention_ms=DAY * 3 // 2, now=5 * DAY))

    assert '"orders" remembers one for 36 h, it died 5 d ago' in why
    assert "--even-if dedup-expired" in why
