"""A worker carries out its app's AutoRedrive."""

from __future__ import annotations

from pathlib import Path

import pytest

from redrive import AutoRedrive, Fixed, Redrive, Retry
from tests.runtime.stage import Told, working

pytestmark = pytest.mark.asyncio


async def test_what_died_of_a_passing_cause_is_processed_without_a_person(tmp_path: Path) -> None:
    app = Redrive(
        "shop",
        broker=f"sqlite:///{tmp_path / 'shop.db'}",
        settings={"upkeep_interval": "50ms"},
        auto_redrive=[AutoRedrive(error_code="ECONNREFUSED", after="10ms", canary=1, rate=None)],
    )
    is_back = [False]

    @app.consumer("orders", retry=Retry(max_attempts=1, backoff=Fixed("1ms")))
    async def handle(_order: dict[str, int]) -> None:
        if not is_back[0]:
            raise ConnectionRefusedError("the bank is away")

    told = Told(app)
    async with working(app):
        app.events.subscribe(lambda event: is_back.__setitem__(0, is_back[0] or event.name == "delivery.dead_lettered"))
        await app.publish("orders", b'{"n": 1}')
        await told.until("delivery.dead_lettered")
        await told.until("deliveries.processed")

    assert "redrive (policy)" in {fields["actor"] for fields in told.named("redrive.job_changed")}
