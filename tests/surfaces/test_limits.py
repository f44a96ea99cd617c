"""`redrive queues limits | tenants`: what they change, show and refuse."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from redrive import Fair
from redrive.runtime.app import Redrive
from tests.surfaces.conftest import Cli, Process

APP = ("--app", "shop:app")


async def test_limits_are_set_shown_and_taken_back(cli: Cli, shop: Redrive) -> None:
    nothing = cli("queues", "limits", *APP)
    first = cli("queues", "limits", "orders", "--batch", "5", "--yes", "--actor", "ann", *APP, "--json")
    cli("queues", "limits", "orders", "--rate", "acme=10/min", "--rate", "*=5/s", "--note", "slow", "--yes", *APP)
    shown, listed = cli("queues", "limits", *APP), cli("queues", "limits", "orders", *APP, "--json")
    cli("queues", "limits", "orders", "--reset", "--yes", *APP)
    after = cli("queues", "limits", *APP, "--json")

    assert "No limits are set" in nothing.err
    assert ("orders", 5, {}, "ann") == tuple(
        first.json["limits"][0][name] for name in ("queue", "batch", "rates", "actor")
    )
    assert (5, {"acme": "10/min", "*": "5/s"}) == (listed.json["limits"][0]["batch"], listed.json["limits"][0]["rates"])
    assert "rate of acme" in shown.out
    assert [] == after.json["limits"]


async def test_a_dry_run_changes_nothing(cli: Cli, shop: Redrive) -> None:
    looked = cli("queues", "limits", "orders", "--batch", "5", "--dry-run", *APP)

    assert "Would change the limits" in looked.out
    assert [] == cli("queues", "limits", *APP, "--json").json["limits"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--batch", "5"), "Whose limits?"),
        (("orders", "--batch", "0"), "--batch"),
        (("orders", "--batch", "99999"), "99999"),
        (("orders", "--rate", "acme"), "TENANT=RATE"),
        (("orders", "--rate", "acme=fast"), 'tenant "acme"'),
        (("orders", "--reset", "--batch", "5"), "--reset"),
        (("orders", "--batch", "5"), "no terminal to ask on"),
    ],
)
async def test_what_cannot_be_is_refused(cli: Cli, shop: Redrive, given: tuple[str, ...], says: str) -> None:
    refused = cli("queues", "limits", *given, *APP)

    assert 2 == refused.code
    assert says in refused.err
    assert [] == cli("queues", "limits", *APP, "--json").json["limits"]


@pytest.fixture
async def mail(here: Path) -> AsyncIterator[Redrive]:
    """A fair queue with a backlog: one tenant had two starts, one had one, one has a rate and is held."""
    app = Redrive("mail", f"sqlite:///{here / 'mail.db'}")

    @app.consumer("mail", fair_by=Fair(batch=2, rate={"held": "1/h"}))
    async def send(mail: dict[str, Any]) -> None: ...

    async with app:
        for tenant, count in (("busy", 5), ("held", 3), ("quiet", 1)):
            for n in range(count):
                await app.publish("mail", {"n": n}, tenant=tenant)
        await app.backend.broker.receive("mail", limit=4, lease_ms=60_000, worker="w", wait_ms=0)
        yield app


async def test_tenants_are_shown_by_who_waits_and_who_gets_most(cli: Cli, mail: Redrive, here: Path) -> None:
    where = ("--broker", f"sqlite:///{here / 'mail.db'}")

    text, answer = cli("queues", "tenants", "mail", *where), cli("queues", "tenants", "mail", *where, "--json")

    found = {tenant["tenant"]: tenant for tenant in answer.json["tenants"]}
    assert {"busy": 3, "held": 2, "quiet": 0} == {name: tenant["waiting"] for name, tenant in found.items()}
    assert {"busy": 2, "held": 1, "quiet": 1} == {name: tenant["totalProcessed"] for name, tenant in found.items()}
    assert {"busy", "held"} == set(answer.json["starved"])
    assert "busy" == answer.json["monopolising"][0]
    assert 0.5 == found["busy"]["share"]
    assert {"lastProcessedAt", "roundsWithoutProcessing", "currentPriority", "totalProcessed"} <= set(found["busy"])
    assert "waits longest" in text.out
    assert "gets most" in text.out


async def test_a_queue_that_is_not_fair_has_no_tenants(cli: Cli, shop: Redrive) -> None:
    shown, answer = cli("queues", "tenants", "orders", *APP), cli("queues", "tenants", "orders", *APP, "--json")

    assert "not a fair queue" in shown.err
    assert ([], [], []) == tuple(answer.json[name] for name in ("tenants", "starved", "monopolising"))


FAIR_APP = """
from redrive import Fair, Redrive

app = Redrive("mail", broker="sqlite:///mail.db")


@app.consumer("mail", fair_by=Fair(batch=2))
async def send(mail: dict) -> None: ...
"""


async def test_workers_in_other_processes_follow(cli: Cli, here: Path, start: Callable[..., Process]) -> None:
    (here / "mail.py").write_text(FAIR_APP)
    workers = start("work", "mail:app"), start("work", "mail:app")
    for worker in workers:
        await worker.event("worker.started")

    changed = cli(
        "queues", "limits", "mail", "--batch", "7", "--actor", "ann", "--yes", "--broker", "sqlite:///mail.db"
    )
    for worker in workers:
        await worker.event("queue.limits_changed", queue="mail", batch=7, actor="ann")
    late = start("work", "mail:app")
    await late.event("queue.limits_changed", queue="mail", batch=7)
    back = cli("queues", "limits", "mail", "--reset", "--yes", "--broker", "sqlite:///mail.db")
    for worker in (*workers, late):
        await worker.event("queue.limits_changed", queue="mail", batch=2, actor=None)

    assert (0, 0) == (changed.code, back.code)
