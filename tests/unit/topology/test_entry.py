"""How a dead letter lies in a broker's own dead-letter queue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redrive.core.letters.letter import Letter
from redrive.core.ports import Outgoing
from redrive.core.topology.entry import dead_letter_outgoing, default_wiring
from redrive.core.topology.wiring import DeadLetterRoute, LadderRetry, Wiring
from redrive.testing.samples import attempt, hard_letter, hard_message, letter, message

BUS = DeadLetterRoute(
    exchange="",
    routing_key="wms.dlq.wms-cincout",
    headers={
        "queue": "x-original-queue",
        "status_code": "x-final-status-code",
        "error": "x-final-error",
        "retry_count": "x-final-retry-count",
    },
)


def wired(route: DeadLetterRoute) -> Wiring:
    return Wiring(queue="orders", retry=LadderRetry(), dead_letter=route, dead_letter_queue=route.routing_key)


def entry(found: Letter, route: DeadLetterRoute | None = None) -> Outgoing:
    outgoing = dead_letter_outgoing(found, None if route is None else wired(route))
    assert outgoing is not None
    return outgoing


def test_without_a_wiring_it_lies_in_the_letters_own_queue() -> None:
    found = letter("dl_1")

    outgoing = entry(found)

    assert ("", "orders.dead") == (outgoing.exchange, outgoing.queue)
    assert outgoing == dead_letter_outgoing(found, default_wiring("orders", "orders.dead"))


def test_the_message_is_the_producers_with_every_property_but_its_expiration() -> None:
    outgoing = entry(hard_letter()).message
    sent = hard_message()

    assert (sent.id, sent.key, sent.original_body, None) == (
        outgoing.id,
        outgoing.key,
        outgoing.body,
        outgoing.original,
    )
    assert replace(sent.properties, expiration=None) == outgoing.properties
    assert None is outgoing.expires_at
    assert set(sent.headers) <= set(outgoing.headers)


def test_headers_a_broker_counts_from_are_kept_under_another_name() -> None:
    deaths: list[dict[str, object]] = [{"queue": "orders", "reason": "rejected", "count": 2}]
    headers = {"x-death": deaths, "x-delivery-count": 3, "x-first-death-queue": "orders", "mine": 1, "x-mine": 2}
    outgoing = entry(letter("dl_1", message=message("m-1", headers=headers))).message

    assert deaths == outgoing.headers["x-redrive-deaths"]
    assert {"mine", "x-mine"} == {name for name in outgoing.headers if "redrive" not in name}


def test_it_says_which_letter_it_is_and_why_it_lies_there() -> None:
    outgoing = entry(letter("dl_1", attempt_count=3)).message

    assert "dl_1" == outgoing.headers["x-redrive-letter"]
    assert "TIMEOUT_EXHAUSTED" == outgoing.headers["x-redrive-reason-code"]
    assert 3 == outgoing.headers["x-redrive-attempts"]


def test_moved_back_as_it_lies_it_starts_with_a_fresh_budget() -> None:
    old = {"x-redrive-attempt": 4, "x-redrive-baseline": 2, "x-redriven-count": 1}
    outgoing = entry(letter("dl_1", message=message("m-1", headers=old))).message

    assert "x-redrive-attempt" not in outgoing.headers
    assert "x-redrive-baseline" not in outgoing.headers
    assert 1 == outgoing.headers["x-redriven-count"]


@pytest.mark.parametrize(
    ("code", "kind", "expected"),
    [
        ("HTTP_503", None, {"x-final-status-code": 503}),
        ("TIMEOUT", "TimeoutError", {"x-final-error": "no answer"}),
        ("HTTP_429", "httpx.HTTPStatusError", {"x-final-status-code": 429, "x-final-error": "no answer"}),
    ],
)
def test_the_wiring_names_headers_for_what_is_known(code: str, kind: str | None, expected: dict[str, object]) -> None:
    found = letter(
        "dl_1",
        attempt_count=11,
        error_code=code,
        error_type=kind,
        history=(attempt(11, error_text="no answer", error_code=code, error_type=kind),),
    )

    outgoing = entry(found, BUS)

    assert "wms.dlq.wms-cincout" == outgoing.queue
    named = {name: value for name, value in outgoing.message.headers.items() if "redrive" not in name}
    assert {"x-original-queue": "orders", "x-final-retry-count": 10, **expected} == named


def test_the_broker_moves_it_by_itself_or_it_lies_nowhere() -> None:
    by_reject = wired(DeadLetterRoute(exchange="dlx", routing_key="", by_reject=True))

    assert None is dead_letter_outgoing(letter("dl_1"), by_reject)
    assert None is dead_letter_outgoing(letter("dl_1", dead_letter_queue=""), None)


def test_a_long_reason_does_not_fill_the_headers() -> None:
    found = letter("dl_1")
    outgoing = entry(replace(found, reason=replace(found.reason, text="x" * 100_000))).message

    assert len(str(outgoing.headers["x-redrive-reason-text"]).encode()) <= 1_000
