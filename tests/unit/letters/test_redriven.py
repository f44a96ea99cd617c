"""The copy that a redrive sends."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from redrive.core.attempts import failed_by_headers
from redrive.core.letters.letter import Letter
from redrive.core.letters.making import letter_of
from redrive.core.letters.redriven import redriven_message
from redrive.core.letters.selection import Selection
from redrive.core.message import (
    HEADER_FIRST_FAILED_AT,
    HEADER_LETTER,
    HEADER_REDRIVEN_AT,
    HEADER_REDRIVEN_BATCH,
    HEADER_REDRIVEN_BY,
    HEADER_REDRIVEN_COUNT,
    Message,
    Properties,
)
from redrive.core.policy.failure import Failure, FailureKind
from redrive.core.redrive import Job, JobOptions
from redrive.core.settlement import Reason
from redrive.core.wire import headers_from_json, headers_json, letter_document, letter_from_document

NOW = 1_700_000_000_000
DEATH: Any = {
    "queue": "orders", "reason": "rejected", "count": 3, "exchange": "shop", "routing-keys": ["order.created"],
    "time": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), "original-expiration": "60000",
}  # fmt: skip
HEADERS: dict[str, Any] = {
    "x-death": [DEATH],
    "x-first-death-queue": "orders",
    "x-first-death-reason": "rejected",
    "x-first-death-exchange": "shop",
    "x-last-death-queue": "orders",
    "x-delivery-count": 2,
    "x-acquired-count": 2,
    "x-tenant": "t1",
    "n": None,
    "b": True,
    "raw": b"\x00\xff",
    "traceparent": "00-1-2-01",
}
MESSAGE = Message(
    id="m-1",
    body=b'{"a":1,"attempt":5}',
    original=b'{"a":1}',
    content_type="application/json",
    key="k",
    tenant="t1",
    priority=7,
    published_at=NOW - 600_000,
    expires_at=NOW - 540_000,
    headers=HEADERS,
    properties=Properties(
        correlation_id="c-1",
        reply_to="rpc.r",
        type="order.created.v2",
        app_id="shop",
        delivery_mode=2,
        timestamp=1_700_000_000,
        expiration="60000",
    ),
)


def died(message: Message, *, text: str = "no", now: int = NOW) -> Letter:
    return letter_of(
        message,
        system="shop",
        queue="orders",
        dead_letter_queue="orders.dead",
        reason=Reason(code="X", text=text),
        attempt=5,
        history=(),
        now=now,
        position="1",
        cycle=0,
        failure=Failure(kind=FailureKind.PERMANENT, code="X", text=text),
    )


def a_job(actor: str = "ana", **options: Any) -> Job:
    return Job(
        id="job-1", selection=Selection(), options=JobOptions(**options), actor=actor, created_at=NOW, updated_at=NOW
    )


def test_the_copy_is_the_original_message_with_a_fresh_budget() -> None:
    copy = redriven_message(died(MESSAGE), a_job(), now=NOW + 120_000)

    assert (b'{"a":1}', None) == (copy.body, copy.original)
    assert replace(MESSAGE.properties, expiration=None) == copy.properties
    assert ("m-1", "k", "t1", 7, "application/json") == (
        copy.id,
        copy.key,
        copy.tenant,
        copy.priority,
        copy.content_type,
    )
    assert 0 == failed_by_headers(copy.headers, queue="orders").failed


def test_no_header_of_a_broker_is_sent_back_and_the_users_are_kept() -> None:
    letter = letter_from_document(letter_document(died(MESSAGE)))
    letter = replace(
        letter, message=replace(letter.message, headers=headers_from_json(headers_json(letter.message.headers)))
    )

    copy = redriven_message(letter, a_job(), now=NOW)

    kept = {name: value for name, value in copy.headers.items() if not name.startswith(("x-redrive-", "x-redriven-"))}
    assert {"x-tenant": "t1", "n": None, "b": True, "raw": b"\x00\xff", "traceparent": "00-1-2-01"} == kept
    assert kept["b"] is True


def test_the_letter_still_shows_what_the_broker_had_counted() -> None:
    letter = letter_from_document(letter_document(died(MESSAGE)))

    assert [DEATH] == letter.message.headers["x-death"]


def test_the_copy_says_where_it_comes_from_and_who_sent_it() -> None:
    letter = died(MESSAGE)

    headers = redriven_message(letter, a_job(), now=NOW).headers

    assert (letter.id, letter.first_failed_at, 1) == (
        headers[HEADER_LETTER], headers[HEADER_FIRST_FAILED_AT], headers[HEADER_REDRIVEN_COUNT],
    )  # fmt: skip
    assert ("2023-11-14T22:13:20.000Z", "ana", "job-1") == (
        headers[HEADER_REDRIVEN_AT], headers[HEADER_REDRIVEN_BY], headers[HEADER_REDRIVEN_BATCH],
    )  # fmt: skip


def test_by_default_the_copy_does_not_expire() -> None:
    copy = redriven_message(died(MESSAGE), a_job(), now=NOW + 120_000)

    assert (None, None) == (copy.expires_at, copy.properties.expiration)


@pytest.mark.parametrize(
    ("message", "lives_ms"),
    [
        (MESSAGE, 60_000),
        (replace(MESSAGE, expires_at=None), 60_000),
        (replace(MESSAGE, expires_at=None, properties=replace(MESSAGE.properties, expiration="soon")), None),
        (replace(MESSAGE, expires_at=None, properties=Properties()), None),
    ],
)
def test_with_keep_ttl_the_copy_lives_as_long_again(message: Message, lives_ms: int | None) -> None:
    copy = redriven_message(died(message), a_job(keep_ttl=True), now=NOW)
    again = redriven_message(died(copy), a_job(keep_ttl=True), now=NOW + 1_000_000)

    assert (None if lives_ms is None else NOW + lives_ms) == copy.expires_at
    assert (None if lives_ms is None else NOW + 1_000_000 + lives_ms) == again.expires_at


def test_a_second_death_shows_the_new_reason_and_links_to_the_old() -> None:
    first = died(MESSAGE, text="expired")

    second = died(redriven_message(first, a_job(), now=NOW), text="another reason", now=NOW + 5)

    assert ("another reason", first.id, 1) == (second.reason.text, second.previous, second.redrive_count)
    assert first.first_failed_at == second.first_failed_at
    assert first.id != second.id


def test_fifty_rounds_do_not_make_the_headers_longer() -> None:
    message, letter, sizes = MESSAGE, died(MESSAGE), []
    for round_ in range(1, 51):
        letter = died(message, now=NOW + round_)
        message = redriven_message(letter, a_job(actor="界" * 10_000), now=NOW + round_)
        sizes.append(len(headers_json(message.headers) or ""))

    assert 50 == message.headers[HEADER_REDRIVEN_COUNT]
    assert 49 == letter.redrive_count
    assert sizes[-1] <= 2 * sizes[2]
    assert sizes[-1] < 16_384
