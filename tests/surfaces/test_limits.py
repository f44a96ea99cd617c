"""`redrive queues limits`: what it changes, shows and refuses."""

from __future__ import annotations

import pytest

from redrive.runtime.app import Redrive
from tests.surfaces.conftest import Cli

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
