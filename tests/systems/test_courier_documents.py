"""System A: the documents of dead letters and of idempotency records, letter by letter."""

from __future__ import annotations

import json
from dataclasses import replace

from examples.courier.documents import MAX_SNAPSHOT_BYTES, dead_letter_event, processed_event
from redrive.core.idempotency import ClaimRecord, ClaimState
from redrive.core.letters.letter import Attempt, AttemptOutcome, Letter
from redrive.core.message import Message, Properties
from redrive.core.settlement import Reason

AT = 1_700_000_000_000
BODY = json.dumps(
    {
        "eventId": "e1",
        "eventType": "t",
        "idempotencyKey": "courier-x:e1",
        "traceId": "req_1",
        "payload": {"status": "x"},
    }
).encode()
LETTER = Letter(
    id="dl_1",
    system="courier",
    queue="courier-events-main",
    dead_letter_queue="courier-events-dlq",
    message=Message(id="wh_1", body=BODY, key="courier-x:e1"),
    reason=Reason(code="DOWNSTREAM_TIMEOUT_EXHAUSTED", text="timed out (attempt 2 of 2)"),
    attempt_count=2,
    history=(
        Attempt(attempt=1, outcome=AttemptOutcome.FAILED, at=AT, duration_ms=300, error_code="TIMEOUT"),
        Attempt(attempt=2, outcome=AttemptOutcome.INTERRUPTED, at=AT + 1_000),
    ),
    first_failed_at=AT,
    dead_lettered_at=AT + 1_250,
)


def test_the_dead_letter_document_is_exactly_that_of_the_system() -> None:
    assert dead_letter_event(LETTER) == {
        "letterId": "dl_1",
        "eventId": "e1",
        "idempotencyKey": "courier-x:e1",
        "traceId": "req_1",
        "attemptCount": 2,
        "terminalReasonCode": "DOWNSTREAM_TIMEOUT_EXHAUSTED",
        "terminalReasonMessage": "timed out (attempt 2 of 2)",
        "attemptHistory": [
            {
                "attempt": 1,
                "outcome": "failed",
                "errorCode": "TIMEOUT",
                "at": "2023-11-14T22:13:20.000Z",
                "durationMs": 300,
            },
            {
                "attempt": 2,
                "outcome": "failed",
                "errorCode": "INTERRUPTED",
                "at": "2023-11-14T22:13:21.000Z",
                "durationMs": None,
            },
        ],
        "payloadSnapshot": {"status": "x"},
        "deadLetteredAt": "2023-11-14T22:13:21.250Z",
        "reviewState": "pending",
    }


def test_what_a_malformed_message_lacks_is_null() -> None:
    for body in (b"", b"\xff", b"[1]", b"{", b"[" * 100_000, b'{"eventId":7,"traceId":null}'):
        document = dead_letter_event(replace(LETTER, message=Message(id="m1", body=body, key="m1")))

        assert [None] * 4 == [document[name] for name in ("eventId", "idempotencyKey", "traceId", "payloadSnapshot")]
        json.dumps(document)


def test_key_and_trace_of_a_malformed_message_are_those_it_was_published_with() -> None:
    message = Message(id="m1", body=b"{", key="courier-x:e1", properties=Properties(trace_id="req_9"))

    document = dead_letter_event(replace(LETTER, message=message))

    assert ("courier-x:e1", "req_9") == (document["idempotencyKey"], document["traceId"])


def test_a_payload_too_large_for_a_document_stands_there_as_its_text_with_a_flag() -> None:
    body = json.dumps({"payload": {"blob": "x" * MAX_SNAPSHOT_BYTES}}).encode()

    document = dead_letter_event(replace(LETTER, message=replace(LETTER.message, body=body)))

    assert document["payloadSnapshotIsText"] is True
    assert json.loads(body)["payload"] == json.loads(document["payloadSnapshot"])


def test_the_record_of_a_key_has_the_states_of_the_system() -> None:
    record = ClaimRecord(
        queue="courier-events-main",
        key="courier-x:e1",
        state=ClaimState.PROCESSED,
        attempts=2,
        expires_at=AT,
        updated_at=AT,
    )

    document = processed_event(record)

    assert ("courier-x:e1", "processed", 2) == (document["idempotencyKey"], document["state"], document["attempts"])
    assert ["received", "processing", "processed", "failed", "dead_lettered"] == [state.value for state in ClaimState]
