"""`redrive queues pause | resume | quarantine | release`, with real workers that are killed in between."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable

import pytest

from redrive.core.letters.selection import Selection
from redrive.runtime.app import Redrive
from tests.surfaces.conftest import PATIENCE_S, Cli, Process

APP = ("--app", "shop:app")
PAUSE = ("queues", "pause", "orders", "--note", "their API is down", "--actor", "ann", "--yes", *APP)


async def test_a_pause_outlives_workers_that_are_killed(cli: Cli, shop: Redrive, start: Callable[..., Process]) -> None:
    first = start("work", "shop:app")
    await first.event("worker.started")

    paused = cli(*PAUSE)
    await first.event("queue.paused", queue="orders", actor="ann", note="their API is down")
    cli("publish", "orders", '{"id": 1}', *APP)
    first.popen.kill()
    second = start("work", "shop:app", "--processes", "2")
    await second.event("queue.paused", queue="orders")
    listed, as_json = cli("queues", "list", *APP), cli("queues", "list", *APP, "--json")
    waits = {queue["queue"]: queue for queue in as_json.json["queues"]}["orders"]
    resumed = cli("queues", "resume", "orders", "--yes", *APP)
    await second.until(lambda: "handled" in second.text())

    assert '"orders" is paused by ann' in paused.out
    assert "paused by ann" in listed.out
    assert (1, "ann", "their API is down") == (waits["ready"], waits["paused"]["actor"], waits["paused"]["note"])
    assert '"orders" is not paused.' in resumed.out
    assert "handled" not in first.text()


async def test_a_tenant_is_set_aside_and_comes_back_with_the_command_that_is_printed(
    cli: Cli, shop: Redrive, start: Callable[..., Process]
) -> None:
    cli(*PAUSE)
    aside = cli("queues", "quarantine", "orders", "--tenant", "a cme", "--until", "2h", "--note", "x", "--yes", *APP)
    for n in range(5):
        cli("publish", "orders", f'{{"id": {n}}}', "--tenant", "a cme", "--message-id", f"a-{n}", *APP)
    cli("publish", "orders", '{"id": 9}', "--tenant", "bolt", "--message-id", "b-1", *APP)
    cli("queues", "resume", "orders", "--yes", *APP)
    worker = start("work", "shop:app")
    await worker.event("delivery.dead_lettered", reason_code="QUARANTINED")
    worker.popen.kill()
    worker = start("work", "shop:app")
    await worker.event("queue.quarantine_changed", count=1)

    async def lying() -> int:
        return (await shop.backend.letters.stats(Selection(reason_code="QUARANTINED"))).total

    async with asyncio.timeout(PATIENCE_S):
        while await lying() < 5:
            await asyncio.sleep(0.05)  # sleep: another process works
    shown = cli("queues", "quarantine", "orders", *APP)
    released = cli("queues", "release", "orders", "--tenant", "a cme", "--yes", *APP)
    await worker.event("queue.quarantine_changed", count=0)
    command = next(line for line in released.out.splitlines() if "Send back: " in line).split("Send back: redrive ")[1]
    cli(*shlex.split(command), "--yes", *APP)
    await worker.until(lambda: all(f"handled a-{n}" in worker.text() for n in range(5)))

    assert "a cme" in aside.out
    assert "a cme" in shown.out
    assert 'tenant "a cme": released; 5 letters aside.' in released.out
    assert [f"handled a-{n} 1" for n in range(5)] == sorted(
        line for line in worker.text().splitlines() if line.startswith("handled a-")
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("pause", "ordres", "--yes"), 'no queue "ordres"'),
        (("pause", "orders"), "no terminal to ask on"),
        (("quarantine", "orders", "--until", "2h", "--yes"), "Whose messages?"),
        (("quarantine", "orders", "--tenant", "a"), "no terminal to ask on"),
        (("release", "orders", "--key", "k", "--yes"), "is not set aside"),
    ],
)
async def test_what_cannot_be_is_refused(cli: Cli, shop: Redrive, given: tuple[str, ...], says: str) -> None:
    refused = cli("queues", *given, *APP)

    assert refused.code in (1, 2)
    assert says in refused.err
    assert [] == cli("queues", "limits", *APP, "--json").json["limits"]


async def test_a_dry_run_changes_nothing(cli: Cli, shop: Redrive) -> None:
    ran = [
        cli("queues", *words, "--dry-run", *APP)
        for words in (
            ("pause", "orders"),
            ("resume", "orders"),
            ("quarantine", "orders", "--tenant", "acme"),
            ("release", "orders"),
        )
    ]

    assert ["Nothing was changed" in each.err for each in ran] == [True] * 4
    assert [] == cli("queues", "limits", *APP, "--json").json["limits"]
