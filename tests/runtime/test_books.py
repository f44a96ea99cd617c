"""Books must balance (case MA-04): every message taken is settled exactly once, whatever it does."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from redrive import DeadLetter, Delivery, Fixed, Redrive, Requeue, Retry, RetryLater
from tests.runtime.stage import Told, depth, letters, quiet, working

KINDS = ["ok", "transient", "permanent", "undecodable", "expired", "duplicate", "nothing", "base", "cancel", "huge"]


async def test_what_comes_in_is_processed_dead_or_a_duplicate_and_nothing_else(make_app: Any) -> None:
    app: Redrive = make_app(max_body_bytes=50_000, max_decoded_bytes=60_000)

    @app.consumer("orders", retry=Retry(max_attempts=3, backoff=Fixed("1ms")), breaker=None, concurrency=7)
    async def handle(order: dict[str, Any], delivery: Delivery) -> Any:
        match order["kind"]:
            case "transient":
                if delivery.attempt < 3:
                    raise ConnectionError("for now")
            case "permanent":
                raise DeadLetter("never")
            case "base":
                raise KeyboardInterrupt
            case "cancel":
                raise asyncio.CancelledError
            case "later" if delivery.attempt == 1:
                raise RetryLater("5ms")
            case "again" if order["n"] not in requeued:
                requeued.add(order["n"])
                raise Requeue("5ms")
            case _:
                await asyncio.sleep(0)

    requeued: set[int] = set()
    sent: Counter[str] = Counter()
    told = Told(app)
    async with app:
        for n in range(200):
            kind = [*KINDS, "later", "again"][n % 12]
            sent[kind] += 1
            payload: Any = {"kind": kind, "n": n}
            arguments: dict[str, Any] = {"message_id": f"m-{n}", "tenant": f"t-{n % 5}"}
            if kind == "undecodable":
                payload = b"{"
            elif kind == "expired":
                arguments["ttl"] = 0
            elif kind == "huge":
                payload, arguments["content_encoding"] = __import__("gzip").compress(b" " * 70_000), "gzip"
            await app.publish("orders", payload, **arguments)
            if kind == "duplicate":
                await app.publish("orders", payload, **arguments)
        async with working(app):
            await quiet(app, told, "orders")

        total = sum(sent.values()) + sent["duplicate"]
        dead = sum(sent[kind] for kind in ("permanent", "undecodable", "expired", "base", "cancel", "huge"))
        assert dead == len(await letters(app)) == told.count("delivery.dead_lettered")
        assert sent["duplicate"] == told.count("delivery.duplicate")
        assert total == told.count("deliveries.processed") + dead + told.count("delivery.duplicate")
        assert 0 == told.count("delivery.lease_lost") == told.count("delivery.unsettled")
        assert await depth(app, "orders") == 0
        reasons = Counter(letter.reason.code for letter in await letters(app))
        assert sent["huge"] == reasons["PAYLOAD_TOO_LARGE"]
        assert sent["expired"] == reasons["EXPIRED"]
        assert sent["undecodable"] == reasons["MALFORMED_PAYLOAD"]
