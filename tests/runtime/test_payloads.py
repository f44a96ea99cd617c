"""What a handler is given, and what happens to bodies it cannot be given (case PF-01, PF-02, PF-03, PF-05,
PF-06, PF-08).
"""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from redrive import DeadLetter, Delivery, Fixed, InvalidMessageError, Redrive, Retry
from redrive.core.wire import headers_json
from tests.runtime.stage import Told, depth, letters, quiet, redrive_all, working

AT_ONCE = Fixed("1ms")

UNDECODABLE: list[tuple[bytes, dict[str, Any]]] = [
    (bytes.fromhex("fffe0080"), {}),
    (b"", {}),
    (b"{", {}),
    (bytes.fromhex("22c32822"), {}),
    (bytes.fromhex("deadbeef"), {"content_encoding": "gzip"}),
    (b'{"a":' * 100_000, {}),
    (b'{"a":1}', {"content_encoding": "brotli"}),
    (b'{"a":1}', {"content_type": "application/json; charset=nonsense"}),
    (b'{"a":1}', {"content_type": "image/png"}),
]


async def test_undecodable_bodies_are_dead_letters_with_their_exact_bytes_however_often_they_are_redriven(
    app: Redrive,
) -> None:
    handled: list[Any] = []

    @app.consumer("orders", retry=Retry(max_attempts=5, backoff=AT_ONCE))
    async def handle(order: dict[str, Any]) -> None:
        handled.append(order)

    told = Told(app)
    bodies = [body for body, _ in UNDECODABLE]
    async with working(app):
        for body, properties in UNDECODABLE:
            await app.publish("orders", body, **{"content_type": "application/json", **properties})
        for round_number in range(1, 4):
            await told.until("delivery.dead_lettered", len(bodies) * round_number)
            newest = [letter for letter in await letters(app) if letter.redrive_count == round_number - 1]

            assert sorted(bodies) == sorted(letter.message.body for letter in newest)
            assert {"MALFORMED_PAYLOAD"} == {letter.reason.code for letter in newest}
            assert {1} == {letter.attempt_count for letter in newest}
            await redrive_all(app)
        await app.publish("orders", {"good": True})
        await told.until("deliveries.processed")

    assert [{"good": True}] == handled
    assert told.count("delivery.retry_scheduled") == 0


async def test_a_body_without_a_content_type_is_taken_for_json_unless_the_setting_says_otherwise(make_app: Any) -> None:
    handled: list[Any] = []
    for setting in ("application/json", "text/plain"):
        app: Redrive = make_app(default_content_type=setting)

        @app.consumer("orders")
        async def handle(order) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - without an annotation
            handled.append(order)

        told = Told(app)
        async with working(app):
            await app.publish("orders", bytes.fromhex("68656c6c6f"))
            await told.until_true(
                lambda told=told: told.count("delivery.dead_lettered") + told.count("deliveries.processed") == 1  # type: ignore[misc]
            )

    assert ["hello"] == handled


async def test_a_bomb_of_gzip_and_a_body_over_the_limit_are_too_large(make_app: Any) -> None:
    app: Redrive = make_app(max_body_bytes=100_000, max_decoded_bytes=200_000)

    @app.consumer("orders")
    async def handle(order: dict[str, Any]) -> None:
        raise AssertionError(order)

    told = Told(app)
    async with working(app):
        await app.publish("orders", gzip.compress(b"0" * 10_000_000), content_encoding="gzip")
        await told.until("delivery.dead_lettered")

    assert ["PAYLOAD_TOO_LARGE"] == [fields["reason_code"] for fields in told.named("delivery.dead_lettered")]


async def test_properties_survive_retry_dead_letter_and_redrive(app: Redrive) -> None:
    body = gzip.compress(b'{"a":1}', mtime=0)
    headers = {
        "tenant": "t1", "n": None, "b": True, "small": -5, "big": 9007199254740993, "f": 1.5,
        "dec": Decimal("12.34"), "t": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        "arr": [1, "a", [2, {"k": b"\x00\xff"}]], "raw": b"\x00\x01\xff", "tbl": {"x": {"y": []}}, "CC": ["audit"],
    }  # fmt: skip
    properties = {
        "correlation_id": "c-1", "reply_to": "rpc.r", "type": "order.created.v2", "app_id": "shop",
        "content_encoding": "gzip", "delivery_mode": 2, "timestamp": 1700000000,
    }  # fmt: skip
    seen: list[Delivery] = []
    payloads: list[Any] = []

    @app.consumer("orders", retry=Retry(max_attempts=2, backoff=AT_ONCE))
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        seen.append(delivery)
        payloads.append(order)
        if len(seen) <= 2:
            raise ConnectionError("twice")

    told = Told(app)
    async with working(app):
        await app.publish(
            "orders", body, message_id="m-1", content_type="application/json", priority=7, headers=headers, **properties
        )
        await told.until("delivery.dead_lettered")
        await redrive_all(app)
        await told.until("deliveries.processed")

    assert [{"a": 1}] * 3 == payloads
    for delivery in seen:
        message = delivery.message
        own = {name: value for name, value in message.headers.items() if not name.startswith("x-redrive")}
        assert headers == own
        assert headers["b"] is own["b"]
        assert ("m-1", body, "application/json", 7) == (
            message.id, message.body, message.content_type, message.priority,
        )  # fmt: skip
        assert properties == {name: getattr(message.properties, name) for name in properties}


async def test_nul_and_lone_surrogates_reach_the_letter_as_replacement_marks(app: Redrive) -> None:
    body = b'{"s":"a\\u0000b"}'

    @app.consumer("orders", retry=Retry(max_attempts=1))
    async def handle(order: dict[str, Any]) -> None:
        raise ValueError("bad\x00byte\ud800")

    told = Told(app)
    async with working(app):
        await app.publish("orders", body, message_id="m-1", headers={"note": "x\x00"})
        await told.until("delivery.dead_lettered")
        await redrive_all(app)
        await told.until("delivery.dead_lettered", 2)

        first, second = await letters(app)
        for letter in (first, second):
            assert letter.message.body == body
            assert letter.history[-1].error_text == "bad\ufffdbyte\ufffd"
            assert letter.message.headers["note"] == "x\x00"
        assert told.count("consumer.paused") == 0


async def test_a_huge_error_text_is_cut_and_headers_do_not_grow_with_the_rounds(app: Redrive) -> None:
    @app.consumer("orders", retry=Retry(max_attempts=1), breaker=None)
    async def handle(order: dict[str, Any]) -> None:
        raise ValueError("界" * 100_000)

    told = Told(app)
    sizes = {}
    async with working(app):
        await app.publish("orders", {"n": 1}, message_id="m-1")
        for round_number in range(1, 51):
            await told.until("delivery.dead_lettered", round_number)
            newest = (await letters(app))[-1]
            sizes[round_number] = len(headers_json(newest.message.headers) or "")
            await redrive_all(app, force=True)
        await told.until("delivery.dead_lettered", 51)
        newest = (await letters(app))[-1]

    text = newest.history[-1].error_text or ""
    assert newest.redrive_count == 50
    assert len(text.encode()) < 16_000
    assert text.endswith("…")
    assert sizes[50] <= 2 * sizes[4]
    assert max(sizes.values()) < 16_000


async def test_what_a_broker_wrote_into_the_headers_is_not_sent_back_to_it(app: Redrive) -> None:
    death = {
        "queue": "orders", "reason": "rejected", "count": 3, "exchange": "shop", "routing-keys": ["order.created"],
        "time": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
    }  # fmt: skip
    written = {"x-death": [death], "x-first-death-queue": "orders", "x-delivery-count": 2}
    seen: list[dict[str, Any]] = []

    @app.consumer("orders", retry=Retry(max_attempts=2, backoff=AT_ONCE))
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        seen.append(dict(delivery.headers))
        if len(seen) <= 2:
            raise ConnectionError("twice")

    told = Told(app)
    async with working(app):
        await app.publish("orders", {"n": 1}, message_id="m-1", headers={**written, "x-tenant": "t1"})
        await told.until("delivery.dead_lettered")
        (letter,) = await letters(app)
        await redrive_all(app)
        await told.until("deliveries.processed")

    assert [death] == letter.message.headers["x-death"]
    redriven = seen[-1]
    assert set() == set(written) & set(redriven)
    assert redriven["x-tenant"] == "t1"


async def test_a_handler_may_reject_a_payload_with_its_own_code(app: Redrive) -> None:
    @app.consumer("orders")
    async def handle(order: dict[str, Any]) -> None:
        try:
            raise DeadLetter("no such customer", code="UNKNOWN_CUSTOMER")
        except Exception:
            return

    told = Told(app)
    async with working(app):
        await app.publish("orders", {"n": 1})
        await told.until("delivery.dead_lettered")
        await quiet(app, told, "orders")

        (letter,) = await letters(app)
        assert ("UNKNOWN_CUSTOMER", "no such customer") == (letter.reason.code, letter.reason.text)
        assert letter.attempt_count == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"message_id": "a\x00b"},
        {"tenant": "\ud800"},
        {"idempotency_key": "k" * 3_000},
        {"priority": -1},
        {"headers": {"n": object()}},
        {"colour": "red"},
        {"payload": object()},
        {"payload": b"x" * 2_000},
        {"queue": ""},
    ],
)
async def test_a_message_no_broker_can_hold_is_refused_and_nothing_is_sent(
    make_app: Any, arguments: dict[str, Any]
) -> None:
    app: Redrive = make_app(max_body_bytes=1_000)
    async with app:
        with pytest.raises(InvalidMessageError):
            await app.publish(**{"queue": "orders", "payload": {"n": 1}, **arguments})

        assert await depth(app, "orders") == 0
