"""`redrive dlq export | import | prune` on a real file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import Selection
from redrive.runtime.app import Redrive
from redrive.runtime.archive import line_of
from redrive.service import Service, looking
from redrive.testing.samples import hard_letter, letter, message
from tests.surfaces.conftest import Cli, put

APP = ("--app", "shop:app")


async def ids_of(shop: Redrive) -> list[str]:
    return [found.id for found in (await shop.backend.letters.find(Selection(), limit=1_000)).letters]


async def test_letters_go_out_and_come_back(cli: Cli, shop: Redrive, here: Path) -> None:
    await shop.backend.letters.put([hard_letter()])
    ids = ["dl_hard", *await put(shop, 3)]

    exported = cli("dlq", "export", "out.jsonl", *APP, "--json")
    again = cli("dlq", "export", "out.jsonl", *APP)
    cli("dlq", "prune", *APP, "--all", "--archive", "all.jsonl", "--yes")
    emptied = await ids_of(shop)
    looked = cli("dlq", "import", "out.jsonl", *APP, "--dry-run", "--json")
    asked = cli("dlq", "import", "out.jsonl", *APP)
    loaded = [cli("dlq", "import", "out.jsonl", *APP, "--yes", "--json").json["added"] for _ in range(2)]

    assert {"file": "out.jsonl", "letters": 4} == exported.json
    assert (2, True) == (again.code, "exists already" in again.err)
    assert [] == emptied
    assert (here / "out.jsonl").read_bytes() == (here / "all.jsonl").read_bytes()
    assert {"dry_run": True, "file": "out.jsonl", "letters": 4} == looked.json
    assert 2 == asked.code
    assert [4, 0] == loaded
    assert ids == await ids_of(shop)
    found = await shop.backend.letters.get("dl_hard")
    assert found is not None
    assert found[0].expires_at is not None
    assert found[0].expires_at > shop.clock.now(), "its time was over: it has it once more"
    assert hard_letter() == replace(found[0], expires_at=hard_letter().expires_at)


async def test_a_letter_the_store_cannot_hold_is_named_and_the_others_are_loaded(
    cli: Cli, shop: Redrive, here: Path
) -> None:
    """SQLite has numbers of 64 bits."""
    lines = [json.loads(line_of(letter(f"dl_{number}"))) for number in range(3)]
    lines[1]["redrive_count"] = 2**70
    (here / "out.jsonl").write_text("\n\n".join(map(json.dumps, lines)))

    loaded = cli("dlq", "import", "out.jsonl", *APP, "--yes", "--json")
    told = cli("dlq", "import", "out.jsonl", *APP, "--yes")

    assert (1, 3, 2, 1) == (loaded.code, *(loaded.json[name] for name in ("letters", "added", "refused")))
    assert [(3, "dl_1")] == [(each["line"], each["id"]) for each in loaded.json["refusals"]]
    assert (1, "0 letters loaded; 2 were there already.") == (told.code, told.out.strip())
    assert "Line 3 (dl_1) was refused: " in told.err
    assert ["dl_0", "dl_2"] == await ids_of(shop)


async def test_letters_go_to_standard_output_one_a_line(cli: Cli, shop: Redrive) -> None:
    ids = await put(shop, 3)

    printed = cli("dlq", "export", "-", *APP, "--limit", "2")

    assert ids[:2] == [json.loads(line)["id"] for line in printed.out.splitlines()]


async def test_old_letters_nobody_has_decided_about_stay_unless_they_are_archived(
    cli: Cli, shop: Redrive, here: Path
) -> None:
    now = shop.clock.now()
    day = 86_400_000
    await shop.backend.letters.put(
        [
            letter("old-open", died_at=now - 8 * day),
            letter("old-closed", died_at=now - 8 * day, message=message("m-2")),
            letter("young-closed", died_at=now - 6 * day, message=message("m-3")),
        ]
    )
    await Service(shop).review(Selection(ids=("old-closed", "young-closed")), ReviewState.CLOSED, actor="ann")

    looked = cli("dlq", "prune", "--older-than", "7d", *APP, "--dry-run", "--json")
    refused = cli("dlq", "prune", "--older-than", "7d", *APP)
    nothing = cli("dlq", "prune", *APP, "--yes")
    untouched = await ids_of(shop)
    pruned = cli("dlq", "prune", "--older-than", "7d", *APP, "--yes")
    archived = cli("dlq", "prune", "--older-than", "7d", *APP, "--archive", "old.jsonl", "--yes", "--json")

    assert {"dry_run": True, "letters": 1, "spared": 1, "archive": None} == looked.json
    assert (2, 2) == (refused.code, nothing.code)
    assert "Which letters to prune?" in nothing.err
    assert 3 == len(untouched)
    assert "1 letter removed." in pruned.out
    assert "1 letter that nobody has decided about stay" in pruned.err
    assert {"dry_run": False, "removed": 1, "spared": 0, "archive": "old.jsonl"} == archived.json
    assert ["young-closed"] == await ids_of(shop)
    assert ["old-open"] == [json.loads(line)["id"] for line in (here / "old.jsonl").read_text().splitlines()]


async def test_stats_tell_the_last_hour(cli: Cli, shop: Redrive) -> None:
    await put(shop, 2)
    await shop.backend.letters.put([letter("older", died_at=shop.clock.now() - 3_700_000)])

    text, answer = cli("dlq", "stats", *APP), cli("dlq", "stats", *APP, "--json")

    assert (3, 2, False) == tuple(answer.json[name] for name in ("total", "last_hour", "last_hour_is_at_least"))
    assert "in the last hour  2" in text.out


async def test_of_very_many_that_died_in_the_last_hour_not_all_are_counted(
    cli: Cli, shop: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(shop, 3)
    monkeypatch.setattr(looking, "COUNTED", 2)

    text, answer = cli("dlq", "stats", *APP), cli("dlq", "stats", *APP, "--json")
    overview = json.loads(cli("top", *APP, "--json").out)

    assert (2, True) == (answer.json["last_hour"], answer.json["last_hour_is_at_least"])
    assert (2, True) == (overview["last_hour"], overview["last_hour_is_at_least"])
    assert "in the last hour  at least 2" in text.out


async def test_one_persons_letters_are_erased_after_the_count_was_seen(cli: Cli, shop: Redrive, here: Path) -> None:
    mine = message("m-1", key="user:alice", headers={"customer": 4711})
    await shop.backend.letters.put([letter("dl_1", message=mine), letter("dl_2", message=message("m-2"))])
    cli("dlq", "export", "own.jsonl", *APP)
    (here / "redrive-archive").mkdir()
    cli("dlq", "prune", *APP, "--all", "--archive", "redrive-archive/a.jsonl", "--dry-run")
    cli("dlq", "export", "redrive-archive/a.jsonl", *APP)
    who = ("--header", "customer=4711", "--archive", "own.jsonl")

    listed = cli("dlq", "archives", *APP, "--json")
    looked = cli("dlq", "erase", *who, *APP, "--dry-run", "--json")
    asked = cli("dlq", "erase", *who, *APP)
    wrong = cli("dlq", "erase", "--header", "customer", *APP, "--yes")
    nobody = cli("dlq", "erase", *APP, "--yes")
    before = await ids_of(shop)
    erased = cli("dlq", "erase", *who, *APP, "--yes", "--actor", "ann")

    assert [("redrive-archive/a.jsonl", 2)] == [(each["file"], each["letters"]) for each in listed.json["archives"]]
    assert {
        "dry_run": True, "letters": 1, "archived": 2, "files": 2, "held": 0, "unreadable": 0, "claims": 0,
        "claims_kept": 0,
    } == looked.json  # fmt: skip
    assert (2, True) == (asked.code, "Erase 1 letter, and 2 in 2 archives, for good?" in asked.err)
    assert (2, 2) == (wrong.code, nobody.code)
    assert "Whose letters?" in nobody.err
    assert {"dl_1", "dl_2"} == set(before)
    assert "Erased 1 letter, and 2 in 2 archives." in erased.out
    assert ["dl_2"] == await ids_of(shop)
    for file in ("own.jsonl", "redrive-archive/a.jsonl"):
        assert ["dl_2"] == [json.loads(line)["id"] for line in (here / file).read_text().splitlines()]
    assert "alice" not in (here / "redrive-archive" / "erasures.jsonl").read_text()
