"""Letters from what others left in a dead-letter queue."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.letters.foreign import READERS, UNKNOWN, found_id, found_letter, reader_of, tells_of_death
from redrive.core.letters.letter import Letter
from redrive.core.letters.traces import named_in
from redrive.core.message import Message, Properties
from redrive.core.redrive import JobOptions, refusal
from redrive.core.wire import letter_document
from redrive.testing.samples import HARD_BODIES, hard_letter

NOW = 1_700_000_100_000
DEATH = {
    "queue": "orders", "reason": "rejected", "count": 3, "exchange": "shop", "routing-keys": ["order.created"],
    "time": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
}  # fmt: skip


def found(headers: dict[str, Any], *, body: bytes = b"{}", **more: Any) -> Letter:
    message = Message(id="m-1", key="m-1", body=body, headers=headers, properties=Properties(exchange="dlx"))
    return found_letter(message, dead_letter_queue="orders.dlq", system="found", now=NOW, **more)


WRITTEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "NServiceBus": (
        {
            "NServiceBus.FailedQ": "Sales@machine",
            "NServiceBus.TimeOfFailure": "2023-11-14 22:13:20:250000 Z",
            "NServiceBus.ExceptionInfo.ExceptionType": "System.TimeoutException",
            "NServiceBus.ExceptionInfo.Message": "no answer",
            "NServiceBus.ExceptionInfo.StackTrace": "at Sales.Charge()",
            "NServiceBus.DelayedRetries": "3",
        },
        {"queue": "Sales", "attempt_count": 4, "first_failed_at": 1_700_000_000_250},
    ),
    "MassTransit": (
        {
            "MT-Fault-InputAddress": "rabbitmq://host/vhost/submit-order?durable=true",
            "MT-Fault-ExceptionType": "System.InvalidOperationException",
            "MT-Fault-Message": "no stock",
            "MT-Fault-RetryCount": 2,
            "MT-Fault-Timestamp": "2023-11-14T22:13:20.25Z",
        },
        {"queue": "submit-order", "error_type": "System.InvalidOperationException", "attempt_count": 3},
    ),
    "Spring AMQP": (
        {
            "x-exception-stacktrace": "java.net.ConnectException: refused\n\tat x.Y.z(Y.java:7)",
            "x-exception-message": "refused",
            "x-death": [DEATH],
        },
        {"queue": "orders", "error_type": "java.net.ConnectException", "attempt_count": 3},
    ),
    "a bus": (
        {"x-original-queue": "labels", "x-final-status-code": 422, "x-final-error": "bad", "x-final-retry-count": 4},
        {"queue": "labels", "error_code": "HTTP_422", "attempt_count": 5},
    ),
    "Celery": ({"task": "tasks.charge", "retries": 2, "x-death": [DEATH]}, {"queue": "orders", "attempt_count": 3}),
}  # fmt: skip


@pytest.mark.parametrize("name", [each.name for each in READERS])
def test_each_producer_is_read(name: str) -> None:
    headers, expected = WRITTEN[name]
    reader = reader_of(headers)

    letter = found(headers)

    assert reader is not None
    assert name == reader.name
    assert expected == {field: getattr(letter, field) for field in expected}
    assert letter.reason.text
    assert letter.message.headers == headers


def test_a_broker_alone_says_where_and_why() -> None:
    letter = found({"x-death": [DEATH], "x-first-death-queue": "orders"})

    assert ("orders", "REJECTED", 3) == (letter.queue, letter.reason.code, letter.attempt_count)
    assert 1_700_000_000_000 == letter.dead_lettered_at == letter.first_failed_at


def test_what_says_nothing_is_kept_and_can_be_sent_only_with_a_target() -> None:
    letter = found({})

    assert ("orders.dlq", UNKNOWN) == (letter.queue, letter.reason)
    assert "--to" in str(refusal(letter, JobOptions(), job_id="j"))
    assert refusal(letter, JobOptions(target_queue="orders"), job_id="j") is None
    assert refusal(found({}, as_queue="orders"), JobOptions(), job_id="j") is None


@pytest.mark.parametrize("blank", ["", " ", "\r", "\u2003\n"])
def test_a_reason_of_blanks_says_nothing(blank: str) -> None:
    letter = found({"MT-Fault-ExceptionType": "E", "MT-Fault-Message": blank})

    assert UNKNOWN.text == letter.reason.text


def test_a_letter_of_redrive_is_itself() -> None:
    kept = hard_letter()
    document = json.dumps(letter_document(kept), separators=(",", ":")).encode()

    assert kept == found({}, body=document)
    entry = {"x-redrive-letter": "dl_9", "x-redrive-queue": "orders", "x-redrive-reason-code": "TIMEOUT_EXHAUSTED"}
    assert ("dl_9", "orders", "TIMEOUT_EXHAUSTED") == (
        found(entry).id, found(entry).queue, found(entry).reason.code,
    )  # fmt: skip


@pytest.mark.parametrize(
    "forged",
    [
        {"attempt_count": 2**64}, {"attempt_count": 2**31}, {"redrive_count": 2**40}, {"attempt_count": -1},
        {"attempt_count": "4"}, {"dead_lettered_at": 2**63}, {"first_failed_at": None}, {"expires_at": 2**70},
    ],
)  # fmt: skip
def test_what_only_looks_like_a_letter_of_redrive_is_kept_as_a_message(forged: dict[str, Any]) -> None:
    body = json.dumps({"schema": 1, **letter_document(hard_letter()), **forged}).encode()

    letter = found({}, body=body)

    assert body == letter.message.body
    assert ("orders.dlq", 0) == (letter.queue, letter.attempt_count)


def test_the_id_is_the_same_however_often_it_is_handed_over() -> None:
    first = Message(id="m", body=b"x", headers={"n": 1, "x-death": [DEATH]})
    backwards = dict(reversed(DEATH.items()))
    again = Message(id="m", body=b"x", headers={"x-death": [backwards], "n": 1, "x-delivery-count": 4})
    died_again = Message(id="m", body=b"x", headers={"x-death": [{**DEATH, "count": 4}]})

    ids = {found_id(each, dead_letter_queue="q") for each in (first, again)}

    assert 1 == len(ids)
    assert found_id(died_again, dead_letter_queue="q") not in ids
    assert found_id(first, dead_letter_queue="q", copy=1) not in ids
    assert found_id(first, dead_letter_queue="p") not in ids


def test_what_tells_of_a_death_does_not_go_back() -> None:
    assert all(
        tells_of_death(name) for name in ("NServiceBus.FailedQ", "nservicebus.exceptioninfo.Source", "MT-Reason")
    )
    assert not any(tells_of_death(name) for name in ("NServiceBus.MessageId", "MT-Activity-Id", "x-tenant", "task"))


TRACE = """Traceback (most recent call last):
  File "/app/worker.py", line 12, in charge
    raise CardError("declined")
          ^^^^^^^^^^^^^^^^^^^^^
shop.errors.CardError: declined
card: 4711
"""


def dramatiq(**options: Any) -> bytes:
    """As its encoder writes a message."""
    fields = {
        "queue_name": "orders", "actor_name": "charge", "args": [1], "kwargs": {}, "options": options,
        "message_id": "b1f6", "message_timestamp": NOW - 90_000,
    }  # fmt: skip
    return json.dumps(fields, separators=(",", ":")).encode()


def test_dramatiq_writes_in_the_body() -> None:
    body = dramatiq(retries=2, traceback=TRACE, requeue_timestamp=NOW - 60_000)

    letter = found({"x-death": [DEATH]}, body=body)

    assert ("orders", "charge", 3) == (letter.queue, letter.message.properties.type, letter.attempt_count)
    assert ("shop.errors.CardError", "REJECTED") == (letter.error_type, letter.reason.code)
    assert "declined\ncard: 4711" == letter.reason.text
    assert (NOW - 100_000, 1_700_000_000_000) == (letter.first_failed_at, letter.dead_lettered_at)
    assert body == letter.message.body
    assert UNKNOWN.text == found({}, body=dramatiq()).reason.text
    assert 1 == found({}, body=dramatiq()).attempt_count


@pytest.mark.parametrize(
    ("body", "queue"),
    [
        (dramatiq().replace(b'"orders"', b'"orders.DQ"'), "orders"),
        (dramatiq().replace(b'"orders"', b'".XQ"'), ".XQ"),
        (dramatiq().replace(b'"orders"', b'""'), "orders.dlq"),
        (dramatiq().replace(b'"options":{}', b'"options":[]'), "orders.dlq"),
        (dramatiq(retries="many", traceback=7, requeue_timestamp=2**70), "orders"),
        (b'{"queue_name":' + b"[" * 100_000, "orders.dlq"),
        (b'{"queue_name":"orders"}', "orders.dlq"),
    ],
)
def test_what_only_looks_like_dramatiq_is_kept(body: bytes, queue: str) -> None:
    letter = found({}, body=body)

    assert (queue, body) == (letter.queue, letter.message.body)


@pytest.mark.parametrize(
    ("trace", "named"),
    [
        (TRACE, ("shop.errors.CardError", "declined\ncard: 4711")),
        ('Traceback (most recent call last):\n  File "a.py", line 1, in f\n    1 / 0\nKeyError\n', ("KeyError", "")),
        ("TypeError: x is not\n  a function\n    at run (a.js:7:1)", ("TypeError", "x is not\n  a function")),
        ("Error\n    at run (a.js:7:1)", ("Error", "")),
        ("it broke", (None, "it broke")),
        ("    at run (a.js:7:1)", (None, "")),
        ("Traceback (most recent call last):", (None, "")),
        ("", (None, "")),
    ],
)
def test_a_trace_names_its_error(trace: str, named: tuple[str | None, str]) -> None:
    assert named == named_in(trace)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | st.binary(max_size=30)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner))
marks = st.sampled_from([name for headers, _ in WRITTEN.values() for name in headers] + ["x-death", "x-redrive-letter",
                        "x-redrive-queue", "x-redrive-attempts", "x-redriven-count"])  # fmt: skip


@given(st.dictionaries(marks, values, max_size=8), st.sampled_from(list(HARD_BODIES.values())))
def test_whatever_stands_in_headers_becomes_a_letter(headers: dict[str, Any], body: bytes) -> None:
    letter = found(headers, body=body)

    assert letter.message.body == body
    assert letter.queue
    assert letter.reason.code
    assert letter.reason.text
    assert 0 <= letter.first_failed_at <= letter.dead_lettered_at <= NOW
    assert letter.id == found(headers, body=body).id
