"""The runbooks, tried: every command of the page runs on a file with dead letters, in the page's order."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.settlement import Reason
from redrive.runtime.app import Redrive
from redrive.service import Service
from redrive.testing.samples import letter, message
from tests.docs.pages import ROOT, Page
from tests.surfaces.conftest import Cli

PAGE = Page(ROOT / "docs" / "how-to" / "runbooks.md")
DAY = 86_400_000


@pytest.fixture
async def morning(shop: Redrive) -> Redrive:
    """What somebody on call finds: two problems, one old letter nobody looked at, one that was closed, one of somebody
    who wants to be forgotten, one that was set aside.
    """
    now = shop.clock.now()
    lost = Reason(code="WORKER_LOST", text="the worker died three times")
    aside = Reason(code="QUARANTINED", text="the tenant was set aside yesterday")
    await shop.backend.letters.put(
        [
            letter(
                "dl_4f2a8c0d9e1b", died_at=now - 60_000, fingerprint="9c1e2f", message=message("m-1", tenant="acme")
            ),
            letter("dl_2", died_at=now - 120_000, fingerprint="9c1e2f", message=message("m-2", tenant="acme")),
            letter("dl_3", died_at=now - 7_200_000, reason=lost, message=message("m-3", tenant="bolt")),
            letter("dl_4", died_at=now - 40 * DAY, message=message("m-4")),
            letter("dl_5", died_at=now - 41 * DAY, message=message("m-5")),
            letter("dl_6", died_at=now - 5_000, message=message("m-6", tenant="carl")),
            letter("dl_7", died_at=now - 4_000, reason=aside, message=message("m-7", tenant="acme")),
        ]
    )
    await Service(shop).review(Selection(ids=("dl_5",)), ReviewState.CLOSED, actor="ann")
    return shop


async def test_every_command_of_the_runbooks_works_as_written(cli: Cli, morning: Redrive, here: Path) -> None:
    printed: dict[str, str] = {}
    url = f"sqlite:///{here / 'shop.db'}"

    for command in PAGE.commands():
        words = shlex.split(command)[1:]
        if any(word.startswith("redis://") for word in words):
            continue  # bullmq/test_checkup.py, on a real server
        ran = cli(*words, REDRIVE_BROKER=url)
        assert 0 == ran.code, f"{command}: {ran.err}"
        printed[command] = ran.out

    assert "TIMEOUT_EXHAUSTED" in printed["redrive dlq stats"]
    assert "acme" in printed["redrive dlq stats"]
    assert "WORKER_LOST" not in printed["redrive dlq stats --since 1h"]
    assert 2 == len(json.loads(printed["redrive dlq list --group 9c1e2f --json"])["letters"])
    assert "2 letters sent" in printed["redrive dlq redrive --group 9c1e2f --rate 50/s --yes"]
    assert "orders" in printed["redrive queues list"]
    assert "dl_3" in printed["redrive dlq list --reason WORKER_LOST"]
    assert 3 == len((here / "acme.jsonl").read_text().splitlines())
    assert ["dl_5", "dl_4"] == [json.loads(line)["id"] for line in (here / "old.jsonl").read_text().splitlines()]
    assert "dead letters 6" in printed["redrive top --once"]
    assert '"orders" is paused by' in printed['redrive queues pause orders --note "their API is down" --yes']
    assert "acme" in printed["redrive queues quarantine orders"]
    assert (
        "dlq redrive orders --reason QUARANTINED --tenant acme"
        in printed["redrive queues release orders --tenant acme --yes"]
    )
    assert "1 letter sent" in printed["redrive dlq redrive orders --reason QUARANTINED --tenant acme --yes"]
    assert "Would erase 1 letter" in printed["redrive dlq erase --tenant carl --dry-run"]
    left = {found.id for found in (await morning.backend.letters.find(Selection(), limit=10)).letters}
    assert {"dl_2", "dl_3", "dl_4", "dl_5", "dl_7", "dl_4f2a8c0d9e1b"} == left, "the archive was loaded again"
