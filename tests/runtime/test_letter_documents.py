"""A dead letter in a broker's own dead-letter queue, in the system's own words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redrive import Letter, Redrive, Retry
from redrive.core.letters.selection import Selection
from redrive.service import Service
from tests.runtime.stage import Told, letters, redrive_all, working

DEAD = "orders.dead"


def app_with(document: Any) -> Redrive:
    app = Redrive("shop", broker="memory://")

    @app.consumer("orders", retry=Retry(1), letter_document=document)
    async def handle(order: dict[str, Any]) -> None:
        raise ValueError(order["n"])

    return app


async def test_the_entry_is_what_the_systems_own_function_makes_of_the_letter() -> None:
    app = app_with(lambda letter: {"order": json.loads(letter.message.body)["n"], "why": letter.reason.code})
    told = Told(app)

    async with working(app):
        await app.publish("orders", {"n": 7})
        await told.until("delivery.dead_lettered")
        [entry] = await app.backend.broker.peek(DEAD, limit=10)
        assert {"order": 7, "why": "VALUE_ERROR_EXHAUSTED"} == json.loads(entry.body)

        await redrive_all(app)
        await told.until("delivery.dead_lettered", 2)
        await Service(app).remove(Selection(queue="orders"), actor="test")
        assert [] == await app.backend.broker.peek(DEAD, limit=10)


def broken(letter: Letter) -> dict[str, Any]:
    raise KeyError(letter.id)


@pytest.mark.parametrize("document", [broken, lambda _: {"x": object()}, lambda _: {"x": float("nan")}])
async def test_a_function_that_fails_loses_no_letter_and_no_entry(document: Any) -> None:
    app = app_with(document)
    told = Told(app)

    async with working(app):
        await app.publish("orders", {"n": 7})
        await told.until("delivery.dead_lettered")
        [entry] = await app.backend.broker.peek(DEAD, limit=10)
        [letter] = await letters(app)

    assert letter.id == json.loads(entry.body)["id"]
