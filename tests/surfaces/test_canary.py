"""`redrive dlq redrive --canary` and `dlq pause` on a real file."""

from __future__ import annotations

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
