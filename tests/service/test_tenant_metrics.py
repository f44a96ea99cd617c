"""The metrics of the tenants of a fair queue, under the names of system E."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from redrive import Fair, Redrive
from redrive.runtime.metrics import TENANTS_SHOWN
from redrive.testing.clock import FakeClock
from redrive.web import probes_app
from redrive.web.probes import DEPTHS_EVERY_MS


def value(page: str, name: str, company: str) -> float:
    series = f'redrive_{name}{{company="{company}"}} '
    return float(next(line for line in page.splitlines() if line.startswith(series)).rpartition(" ")[2])


async def test_tenants_show_who_is_behind_and_who_runs_in_a_row(tmp_path: Path) -> None:
    clock = FakeClock()
    app = Redrive("mail", broker=f"sqlite:///{tmp_path}/mail.db", settings={"durability": "normal"}, clock=clock)

    @app.consumer("mail", fair_by=Fair(rate={"held": "1/h"}, base_priority=8, priority_increment=2, top_priority=2))
    async def handle(mail: dict[str, Any]) -> None: ...

    async def take(count: int) -> None:
        for _ in range(count):
            assert await app.backend.ledger.take("mail", limit=1, lease_ms=60_000, worker="w", wait_ms=0, claims=True)

    async with app, httpx.AsyncClient(transport=httpx.ASGITransport(probes_app(app)), base_url="http://mail") as client:
        await app.publish_many("mail", [{"n": n} for n in range(20)], tenant="held")
        await app.publish_many("mail", [{"n": n} for n in range(20)], tenant="free")
        await take(8)
        page = (await client.get("/metrics")).text
        # The quiet ones come last and would push the two out of the few that are shown, were not the worst shown first.
        for number in range(2 * TENANTS_SHOWN):
            await app.publish("mail", {}, tenant=f"quiet-{number}")
        await clock.advance(DEPTHS_EVERY_MS)
        later = (await client.get("/metrics")).text

    assert 4 <= value(page, "tenant_rounds_without_processing", "held") <= 7
    assert 2 == value(page, "tenant_current_priority", "held")
    assert 0 == value(page, "tenant_consecutive_batch", "held")
    assert 8 == value(page, "tenant_current_priority", "free")
    assert 6 <= value(page, "tenant_consecutive_batch", "free") <= 8
    assert value(page, "tenant_rounds_without_processing", "held") == value(
        later, "tenant_rounds_without_processing", "held"
    )
    assert 0 == value(later, "tenant_rounds_without_processing", "other")
    assert TENANTS_SHOWN + 1 == later.count("redrive_tenant_current_priority{")


async def test_without_a_fair_queue_there_is_nothing_to_tell(tmp_path: Path) -> None:
    app = Redrive("mail", broker=f"sqlite:///{tmp_path}/mail.db")

    async with app, httpx.AsyncClient(transport=httpx.ASGITransport(probes_app(app)), base_url="http://mail") as client:
        page = (await client.get("/metrics")).text

    assert "redrive_tenant_current_priority{" not in page
