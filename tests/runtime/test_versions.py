"""The app's version stands on its dead letters."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import DeadLetter, Redrive
from tests.runtime.stage import Told, letters, working

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"version": "1.4.2"}, "1.4.2"),
        ({"settings": {"version": "1.4.1"}}, "1.4.1"),
        ({"version": "1.4.2", "settings": {"version": "1.4.1"}}, "1.4.2"),
        ({}, None),
    ],
)
async def test_a_dead_letter_tells_which_version_gave_it_up(given: dict[str, Any], expected: str | None) -> None:
    app = Redrive("shop", broker="memory://", **given)

    @app.consumer("orders")
    async def handle(_order: dict[str, int]) -> None:
        raise DeadLetter("no")

    told = Told(app)
    async with working(app):
        await app.publish("orders", b"{}")
        await told.until("delivery.dead_lettered")
        found = await letters(app)

    assert [expected] == [letter.version for letter in found]
