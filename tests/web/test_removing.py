"""Prune, erase and archives over HTTP: a dry run changes nothing, and nothing goes before it is on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from redrive.core.access import RedactRule, Role
from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.message import Properties
from redrive.runtime.app import Redrive
from redrive.runtime.archive import letters_in
from redrive.service import Service
from redrive.testing.samples import QUEUE, hard_letter, letter, message
from redrive.web.admin.answers import Erased
from tests.web.conftest import DIED_AT, Api, code, put_letters

PRUNE, ERASE, ARCHIVES = "/api/v1/letters/prune", "/api/v1/letters/erase", "/api/v1/archives"


async def left(app: Redrive) -> list[str]:
    page = await app.backend.letters.find(Selection(), limit=100)
    return [each.id for each in page.letters]


async def closed(app: Redrive, ids: list[str]) -> None:
    await Service(app).review(Selection(ids=tuple(ids)), ReviewState.CLOSED, actor="ann")


async def test_a_prune_spares_what_nobody_has_decided_about(api: Api, app: Redrive) -> None:
    ids = await put_letters(app, 5)
    await closed(app, ids[:2])

    dry = (await api.post(PRUNE, {"all": True, "dry_run": True}, role=Role.ADMIN)).json()
    before = await left(app)
    done = (await api.post(PRUNE, {"all": True}, role=Role.ADMIN)).json()

    assert {"dry_run": True, "letters": 2, "removed": None, "spared": 3, "archive": None} == dry
    assert ids == before
    assert {"dry_run": False, "letters": 2, "removed": 2, "spared": 3, "archive": None} == done
    assert ids[2:] == await left(app)


async def test_a_prune_by_age_and_number(api: Api, app: Redrive, clock: object) -> None:
    ids = await put_letters(app, 5)
    await closed(app, ids)
    age_ms = app.clock.now() - (DIED_AT + 4)

    done = (await api.post(PRUNE, {"older_than_ms": age_ms, "limit": 2}, role=Role.ADMIN)).json()

    assert 2 == done["removed"]
    assert ids[2:] == await left(app)
    assert 1 == (await api.post(PRUNE, {"older_than_ms": age_ms}, role=Role.ADMIN)).json()["removed"]
    assert ids[3:] == await left(app)


async def test_nothing_selected_prunes_and_erases_nothing(api: Api, app: Redrive) -> None:
    ids = await put_letters(app, 2)

    assert 422 == code(await api.post(PRUNE, {}, role=Role.ADMIN))[0]
    assert 422 == code(await api.post(ERASE, {}, role=Role.ADMIN))[0]
    assert 422 == code(await api.post(ERASE, {"selection": {}, "headers": {}}, role=Role.ADMIN))[0]
    assert ids == await left(app)


async def test_what_is_pruned_into_an_archive_comes_back(api: Api, app: Redrive) -> None:
    await app.backend.letters.put([hard_letter(died_at=app.clock.now()), letter("dl_1", died_at=DIED_AT)])
    whole = [each async for each in Service(app).whole(Selection())]

    pruned = (await api.post(PRUNE, {"all": True, "archive": True}, role=Role.ADMIN)).json()
    gone = await left(app)
    [listed] = (await api.get(ARCHIVES, Role.OPERATOR)).json()["archives"]
    path = f"{ARCHIVES}/{listed['file']}"
    dry = (await api.post(f"{path}/restore", {"dry_run": True}, role=Role.ADMIN)).json()
    still = await left(app)
    restored = [(await api.post(f"{path}/restore", role=Role.ADMIN)).json() for _ in range(2)]

    assert (2, 0, []) == (pruned["removed"], pruned["spared"], gone)
    assert (pruned["archive"], 2) == (listed["file"], listed["letters"])
    assert ({"dry_run": True, "letters": 2, "added": 0, "refused": 0, "refusals": [], "unreadable": 0}, []) == (
        dry,
        still,
    )
    assert [2, 0] == [each["added"] for each in restored]
    assert whole == [each async for each in Service(app).whole(Selection())]


@pytest.mark.parametrize("name", ["none.jsonl", "..%2Fshop.db", "%2Fetc%2Fpasswd", "erasures.jsonl"])
async def test_no_name_leads_out_of_the_folder(api: Api, app: Redrive, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "archive"
    folder.mkdir()
    (folder / "erasures.jsonl").write_text("{}\n")

    assert 404 == code(await api.get(f"{ARCHIVES}/{name}", Role.ADMIN))[0]
    assert 404 == code(await api.post(f"{ARCHIVES}/{name}/restore", role=Role.ADMIN))[0]


async def test_a_line_that_is_no_letter_is_counted_and_passed_over(api: Api, app: Redrive, tmp_path: Path) -> None:
    await put_letters(app, 2)
    file = (await api.post(PRUNE, {"all": True, "archive": True}, role=Role.ADMIN)).json()["archive"]
    with (tmp_path / "archive" / file).open("ab") as archive:
        archive.write(b'{"schema":1,"id":"dl_9"')

    answer = (await api.post(f"{ARCHIVES}/{file}/restore", role=Role.ADMIN)).json()

    assert (2, 2, 1) == (answer["letters"], answer["added"], answer["unreadable"])


async def test_an_erasure_takes_the_person_from_store_and_archives(api: Api, app: Redrive, tmp_path: Path) -> None:
    mine = [letter(f"dl_{n}", died_at=DIED_AT, message=message(f"m-{n}", headers={"customer": "4711"})) for n in (1, 2)]
    other = letter("dl_3", died_at=DIED_AT, message=message("m-3", headers={"customer": "1"}))
    await app.backend.letters.put([*mine, other])
    ask = {"selection": {"ids": ["dl_1"]}, "all": True, "archive": True}
    file = (await api.post(PRUNE, ask, role=Role.ADMIN)).json()["archive"]

    person = {"headers": {"customer": "4711"}}
    dry = (await api.post(ERASE, {**person, "dry_run": True}, role=Role.ADMIN)).json()
    before = await left(app)
    done = (await api.post(ERASE, person, role=Role.ADMIN)).json()

    none = {"held": 0, "unreadable": 0, "claims": 0, "claims_kept": 0}
    assert {"dry_run": True, "letters": 1, "archived": 1, "files": 1, **none} == dry
    assert set(Erased.__struct_fields__) == set(dry)
    assert ["dl_2", "dl_3"] == before
    assert {**dry, "dry_run": False} == done
    assert ["dl_3"] == await left(app)
    assert [] == list(letters_in(tmp_path / "archive" / file))


@pytest.mark.parametrize("redact", [(RedactRule(type="pay.*", role=Role.OPERATOR, fields=("payload.card",)),)])
async def test_an_archive_shows_what_the_role_may_see(api: Api, app: Redrive, tmp_path: Path) -> None:
    paid = message("m-1", body=b'{"card": "4111", "n": 1}', properties=Properties(type="pay.done"))
    await app.backend.letters.put([letter("dl_1", died_at=DIED_AT, message=paid), letter("dl_2", died_at=DIED_AT + 1)])
    file = (await api.post(PRUNE, {"all": True, "archive": True}, role=Role.ADMIN)).json()["archive"]
    path = tmp_path / "archive" / file
    with path.open("ab") as archive:
        archive.write(b"4111\n")

    operator = (await api.get(f"{ARCHIVES}/{file}", Role.OPERATOR)).content
    admin = (await api.get(f"{ARCHIVES}/{file}", Role.ADMIN)).content

    assert path.read_bytes() == admin
    assert b"4111" not in operator
    assert ["dl_1", "dl_2"] == [json.loads(line)["id"] for line in operator.splitlines()]
    assert operator.splitlines()[1] == admin.splitlines()[1]


async def test_a_folder_that_cannot_be_written_is_told(api: Api, app: Redrive, tmp_path: Path) -> None:
    ids = await put_letters(app, 2)
    (tmp_path / "archive").write_text("in the way")

    answer = await api.post(PRUNE, {"all": True, "archive": True}, role=Role.ADMIN)

    assert (503, "files_unavailable") == code(answer)
    assert ids == await left(app)
    assert QUEUE in {each.queue for each in (await app.backend.letters.find(Selection(), limit=1)).letters}
