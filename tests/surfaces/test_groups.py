"""`redrive dlq groups`, `dlq group …` and `--filter` on a real file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import Selection
from redrive.runtime.app import Redrive
from redrive.testing.samples import letter, message
from tests.surfaces.conftest import Cli, put

APP = ("--app", "shop:app")
HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold red]x[/]"


async def one_more(shop: Redrive, name: str = "dl_other", **changes: object) -> None:
    await shop.backend.letters.put([letter(name, died_at=shop.clock.now(), **changes)])


async def test_groups_are_listed_with_what_waits(cli: Cli, shop: Redrive) -> None:
    await put(shop, 3)
    await one_more(shop, fingerprint="fp-2", group_title=HOSTILE)

    page = cli("dlq", "groups", *APP, "--json").json
    text = cli("dlq", "groups", *APP).out

    assert [("fp-1", 3), ("fp-2", 1)] == [(group["group"], group["waiting"]) for group in page["groups"]]
    assert "fp-1" in text
    assert "\x1b" not in text


async def test_groups_go_page_by_page(cli: Cli, shop: Redrive) -> None:
    for number in range(3):
        await one_more(shop, f"dl_{number}", fingerprint=f"fp-{number}")

    first = cli("dlq", "groups", *APP, "--limit", "2", "--json").json
    second = cli("dlq", "groups", *APP, "--limit", "2", "--cursor", first["cursor"], "--json").json

    assert ["fp-0", "fp-1", "fp-2"] == [group["group"] for group in first["groups"] + second["groups"]]
    assert second["cursor"] is None


async def test_a_group_is_worked_on_and_comes_back(cli: Cli, shop: Redrive) -> None:
    await put(shop, 2)

    assert cli("dlq", "group", "acknowledge", "fp-1", *APP, "--actor", "ann", "--note", "ticket 4711").code == 0
    assert cli("dlq", "group", "assign", "fp-1", "bob", *APP, "--actor", "ann").code == 0
    assert cli("dlq", "group", "resolve", "fp-1", *APP, "--actor", "bob", "--in", "1.4.2").code == 0
    listed = cli("dlq", "groups", *APP, "--state", "resolved", "--json").json
    await one_more(shop, "dl_old", version="1.4.1")
    still = cli("dlq", "group", "show", "fp-1", *APP, "--json").json
    await one_more(shop, "dl_new", version="1.4.2")
    back = cli("dlq", "group", "show", "fp-1", *APP, "--json").json

    assert "1.4.2" in cli("dlq", "show", "dl_new", *APP).out
    assert ["fp-1"] == [group["group"] for group in listed["groups"]]
    assert ("resolved", "1.4.2", "bob") == (still["state"], still["resolved_in"], still["assignee"])
    assert ("open", 4) == (back["state"], back["waiting"])
    assert ["acknowledged", "assigned", "resolved", "open"] == [entry["action"] for entry in back["audit"]]
    assert sum(each["count"] for each in back["hours"]) == back["seen"]
    assert "fp-1" in cli("dlq", "group", "show", "fp-1", *APP).out


async def test_ignoring_has_bounds(cli: Cli, shop: Redrive) -> None:
    await put(shop, 1)

    done = cli("dlq", "group", "ignore", "fp-1", *APP, "--more", "2", "--rate", "5", "--per", "10m", "--json").json
    reopened = cli("dlq", "group", "reopen", "fp-1", *APP, "--json").json
    noted = cli("dlq", "group", "note", "fp-1", "the relay restarts", *APP, "--json").json

    assert {"until": None, "more": 2, "rate": 5, "per_ms": 600_000} == done["ignored"]
    assert (None, "open") == (reopened["ignored"], reopened["state"])
    assert noted["note"] == "the relay restarts"


async def test_what_is_not_legal_is_refused_and_changes_nothing(cli: Cli, shop: Redrive) -> None:
    await put(shop, 1)

    refused = cli("dlq", "group", "reopen", "fp-1", *APP)
    unknown = cli("dlq", "group", "show", "fp-none", *APP)

    assert refused.code == 1
    assert "open already" in refused.err
    assert unknown.code == 1
    assert "redrive dlq groups" in unknown.err


async def test_a_filter_is_one_line(cli: Cli, shop: Redrive) -> None:
    await put(shop, 2)
    odd = message("m-x", tenant="acme inc", key="k-x", headers={"x-region": "eu"})
    await one_more(shop, "dl_odd", message=odd)

    def found(line: str) -> list[str]:
        return [each["id"] for each in cli("dlq", "list", *APP, "--filter", line, "--json").json["letters"]]

    assert ["dl_odd"] == found('queue:orders tenant:"acme inc" since:1h')
    assert ["dl_odd"] == found("header:x-region=eu message:m-x state:pending")
    assert [] == found("tenant:nobody")
    assert cli("dlq", "list", *APP, "--filter", "queue:orders", "--tenant", "acme inc", "--json").json["letters"]


@pytest.mark.parametrize("line", ["queu:orders", "queue:orders queue:refunds", '"open'])
async def test_a_filter_that_means_nothing_is_refused(cli: Cli, shop: Redrive, line: str) -> None:
    await put(shop, 1)

    refused = cli("dlq", "list", *APP, "--filter", line)

    assert refused.code == 2
    assert "Filter, at" in refused.err


async def test_what_matches_a_filter_is_closed_and_nothing_else(cli: Cli, shop: Redrive) -> None:
    await put(shop, 2)
    await one_more(shop, "dl_odd", message=message("m-x", tenant="acme"))

    tried = cli("dlq", "close", *APP, "--filter", "tenant:acme", "--dry-run", "--json").json
    closed = cli("dlq", "close", *APP, "--filter", "tenant:acme", "--yes", "--json")

    assert tried["letters"] == 1
    assert closed.code == 0
    states = {each.id: each.state for each in (await shop.backend.letters.find(Selection(), limit=10)).letters}
    assert ["dl_odd"] == [name for name, state in states.items() if state is ReviewState.CLOSED]


async def test_counts_that_went_wrong_are_found_and_corrected(cli: Cli, shop: Redrive, here: Path) -> None:
    await put(shop, 2)
    with closing(sqlite3.connect(here / "shop.db")) as file, file:
        file.execute("UPDATE redrive_group SET pending = 7")

    wrong = cli("dlq", "groups", *APP, "--json").json["groups"][0]["waiting"]
    corrected = cli("dlq", "stats", *APP, "--recount")
    again = cli("dlq", "stats", *APP, "--recount")

    assert wrong == 7
    assert "1 group" in corrected.err
    assert "Counts are right" in again.err
    assert cli("dlq", "groups", *APP, "--json").json["groups"][0]["waiting"] == 2
