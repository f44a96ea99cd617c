"""`redrive dlq redrive --canary` and `dlq pause` on a real file."""

from __future__ import annotations

from pathlib import Path

from redrive.runtime.app import Redrive
from tests.surfaces.conftest import Cli, put

APP = ("--app", "shop:app")


async def test_a_canary_nobody_processes_pauses_the_job_and_says_how_to_go_on(cli: Cli, shop: Redrive) -> None:
    await put(shop, 9)

    held = cli("dlq", "redrive", "orders", *APP, "--canary", "3", "--canary-watch", "10ms", "--yes", "--json")
    text = cli("dlq", "jobs", held.json["job"]["id"], *APP)

    assert held.code == 1
    assert ("paused", 3, 6) == tuple(held.json["job"][name] for name in ("state", "sent", "pending"))
    assert {"sent": 3, "succeeded": 0, "failed_again": 0, "waiting": 3, "unknown": 0} == held.json["outcomes"]
    assert "Is the consumer running?" in text.err
    assert "redrive dlq resume" in text.err


async def test_a_waiting_job_is_paused_with_who_and_why(cli: Cli, shop: Redrive) -> None:
    await put(shop, 2)
    job = cli("dlq", "redrive", "orders", *APP, "--detach", "--yes", "--json").json["job"]["id"]

    paused = cli("dlq", "pause", job, *APP, "--actor", "ann", "--note", "not yet", "--json").json["job"]
    again = cli("dlq", "pause", job, *APP)
    resumed = cli("dlq", "resume", job, *APP, "--json").json["job"]

    assert ("paused", "paused by ann: not yet") == (paused["state"], paused["error"])
    assert again.code == 1
    assert ("done", 2) == (resumed["state"], resumed["sent"])


async def test_an_edit_is_shown_first_and_then_made(cli: Cli, shop: Redrive, here: Path) -> None:
    await put(shop, 1)
    (here / "patch.json").write_text('[{"op": "add", "path": "/fixed", "value": true}]')
    (here / "broken.json").write_text("[")
    edit = ("dlq", "redrive", "orders", *APP, "--edit", "patch.json")

    shown = cli(*edit, "--dry-run")
    sent = cli(*edit, "--yes", "--json")
    refused = cli("dlq", "redrive", "orders", *APP, "--edit", "broken.json", "--yes")
    missing = cli("dlq", "redrive", "orders", *APP, "--edit", "nowhere.json", "--yes")

    assert '+  "fixed": true' in shown.out
    assert sent.json["job"]["sent"] == 1
    assert [b'"fixed":true' in each.body for each in await shop.backend.broker.peek("orders", limit=9)] == [True]
    assert (2, 2) == (refused.code, missing.code)
    assert "not JSON" in refused.err
