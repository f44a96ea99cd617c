"""One person's letters leave the store and the archives, whole; everybody else's stay, byte for byte."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from redrive.core.idempotency import Acquired, ClaimState
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.meant import is_meant
from redrive.core.letters.selection import Selection
from redrive.core.ports import ClaimEnd
from redrive.errors import ConfigurationError
from redrive.runtime import archive as archives
from redrive.runtime.app import Redrive
from redrive.runtime.archive import Archive, archive_files, described, letters_in, line_of
from redrive.runtime.erasing import erase_from
from redrive.service import Service
from redrive.testing.samples import hard_letter, letter, message
from tests.service.conftest import states

SECRET = "alice@example.org"
ROOT = Path(__file__).resolve().parents[2]


def of(name: str, who: str, **changes: Any) -> Letter:
    """A letter about somebody: in its key, a header, its body and its reason."""
    return letter(
        name,
        message=message(f"m-{name}", key=f"user:{who}", headers={"email": who}, body=who.encode()),
        **changes,
    )


@pytest.fixture
def folder(app: Redrive, tmp_path: Path) -> Path:
    made = tmp_path / "archive"
    made.mkdir()
    app.settings = replace(app.settings, archive=str(made))
    return made


def archived(path: Path, *found: Letter) -> bytes:
    with Archive(path) as file:
        file.write(found)
    return path.read_bytes()


async def test_a_persons_letters_go_everywhere_and_nobody_elses(
    app: Redrive, service: Service, folder: Path, tmp_path: Path
) -> None:
    await app.backend.letters.put([of("dl_1", SECRET), of("dl_2", "bob"), of("dl_3", SECRET), hard_letter()])
    await service.review(Selection(ids=("dl_1",)), ReviewState.CLOSED, actor="ann", note=f"called {SECRET}")
    archived(folder / "a.jsonl", of("dl_4", SECRET), of("dl_5", "bob"), of("dl_6", SECRET))
    untouched = archived(folder / "b.jsonl", of("dl_7", "bob"))
    archived(tmp_path / "own.jsonl", of("dl_8", SECRET), hard_letter())
    selection, own = Selection(key=f"user:{SECRET}"), [tmp_path / "own.jsonl"]

    looked = await service.to_erase(selection, files=own)
    before = await states(app)
    erased = await service.erase(selection, actor="ann", files=own)
    again = await service.erase(selection, actor="ann", files=own)

    assert (2, 0, 3, 2, 0) == (looked.letters, looked.held, looked.archived, looked.files, looked.unreadable)
    assert 4 == len(before), "looking changes nothing"
    assert looked == erased
    assert (0, 0) == (again.letters, again.archived)
    assert {"dl_2", "dl_hard"} == set(await states(app))
    assert line_of(of("dl_5", "bob")) == (folder / "a.jsonl").read_bytes()
    assert untouched == (folder / "b.jsonl").read_bytes()
    assert [hard_letter()] == list(letters_in(own[0]))
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.suffix == ".jsonl":
            assert SECRET not in path.read_text(), path


async def test_the_keys_of_dead_letters_go_and_those_of_what_was_processed_are_told(
    app: Redrive, service: Service, folder: Path
) -> None:
    claims, key = app.backend.claims, f"user:{SECRET}"
    ends = {"orders": ClaimState.DEAD_LETTERED, "bills": ClaimState.PROCESSED, "mails": ClaimState.DEAD_LETTERED}
    for queue, state in [*ends.items(), ("others", ClaimState.DEAD_LETTERED)]:
        owner = "user:bob" if queue == "others" else key
        (claimed,) = await claims.claim([(queue, owner)], lease_ms=60_000, owner="w1")
        assert isinstance(claimed, Acquired)
        await claims.finish([ClaimEnd(ref=claimed.ref, state=state)])
    await app.backend.letters.put(
        [of("dl_1", SECRET), of("dl_2", SECRET, queue="bills"), of("dl_3", "bob", queue="others")]
    )
    archived(folder / "a.jsonl", of("dl_4", SECRET, queue="mails"))

    looked = await service.to_erase(Selection(key=key))
    before = await claims.get("orders", key)
    erased = await service.erase(Selection(key=key), actor="ann")

    assert (2, 1) == (looked.claims, looked.claims_kept) == (erased.claims, erased.claims_kept)
    assert before is not None, "looking changes nothing"
    assert [None, None] == [await claims.get(queue, key) for queue in ("orders", "mails")]
    processed = await claims.get("bills", key)
    assert processed is not None
    assert ClaimState.PROCESSED is processed.state
    assert await claims.get("others", "user:bob") is not None


async def test_it_is_recorded_without_what_was_erased(app: Redrive, service: Service, folder: Path) -> None:
    await app.backend.letters.put([of("dl_1", SECRET)])

    await service.erase(Selection(text=SECRET), actor="ann")

    begun, done = [json.loads(line) for line in (folder / archives.ERASURES).read_text().splitlines()]
    assert ("begun", "done") == (begun["state"], done["state"])
    assert begun["id"] == done["id"]
    assert ("ann", 1, 0) == (done["actor"], done["letters"], done["archived"])
    assert archives.ERASURES not in [path.name for path in archive_files(folder)]


async def test_a_header_tells_whose_it_is(app: Redrive, service: Service, folder: Path) -> None:
    await app.backend.letters.put([of("dl_1", SECRET), of("dl_2", "bob")])

    erased = await service.erase(Selection(headers=(("email", SECRET),)), actor="ann")

    assert 1 == erased.letters
    assert {"dl_2"} == set(await states(app))


async def test_what_a_redrive_job_holds_stays_and_is_told(app: Redrive, service: Service, folder: Path) -> None:
    await app.backend.letters.put([of("dl_1", SECRET), of("dl_2", SECRET)])
    view = await service.redrive(Selection(ids=("dl_1",)), actor="ann", run=False)
    running = await app.backend.jobs.acquire(view.job.id, owner="w", lease_ms=60_000)
    assert running is not None
    await app.backend.jobs.stage(running, limit=10)

    erased = await service.erase(Selection(key=f"user:{SECRET}"), actor="ann")

    assert (1, 1) == (erased.letters, erased.held)
    assert {"dl_1"} == set(await states(app))


async def test_nothing_is_erased_without_a_filter_or_from_a_file_that_is_not_there(
    app: Redrive, service: Service, folder: Path
) -> None:
    await app.backend.letters.put([of("dl_1", SECRET)])

    for selection, files in ((Selection(), []), (Selection(key="k"), [folder / "nothing"])):
        with pytest.raises(ConfigurationError, match="Nothing was erased"):
            await service.to_erase(selection, files=files)
    with pytest.raises(ConfigurationError, match="Nothing was erased"):
        await service.erase(Selection(), actor="ann")

    assert ["dl_1"] == list(await states(app))


async def test_archives_are_listed(service: Service, folder: Path) -> None:
    archived(folder / "a.jsonl", of("dl_1", "bob", died_at=5), of("dl_2", "bob", died_at=3))
    with (folder / "a.jsonl").open("ab") as file:
        file.write(b"# no letter\n")

    (found,) = await service.archives()

    assert (folder / "a.jsonl", 2, 1, 3, 5) == (
        found.path,
        found.letters,
        found.unreadable,
        found.oldest_at,
        found.newest_at,
    )
    assert (folder / "a.jsonl").stat().st_size == found.size_bytes


def test_lines_that_nobody_can_read_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    torn = b'{"schema":1,"id":"dl_'
    path.write_bytes(b"# a note\n" + line_of(of("dl_1", SECRET)) + torn)
    path.chmod(0o600)

    gone = erase_from(path, lambda _: True)

    assert 1 == gone
    assert b"# a note\n" + torn == path.read_bytes()
    assert 0o600 == path.stat().st_mode & 0o777


def test_a_file_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    before = archived(path, of("dl_1", SECRET))

    with Archive(path), pytest.raises(ConfigurationError, match="another process"):
        erase_from(path, lambda _: True)

    assert before == path.read_bytes()


def test_who_opened_the_file_before_it_was_rewritten_writes_into_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    archived(path, of("dl_1", SECRET), of("dl_2", "bob"))
    lock, rewritten = archives._lock, []

    def late(file: BinaryIO, of_path: Path) -> None:
        if not rewritten:
            rewritten.append(True)
            monkeypatch.setattr(archives, "_lock", lock)
            erase_from(path, lambda each: each.id == "dl_1")
        lock(file, of_path)

    monkeypatch.setattr(archives, "_lock", late)
    archived(path, of("dl_3", "bob"))

    assert ["dl_2", "dl_3"] == [each.id for each in letters_in(path)]


CHILD = """
import sys
from pathlib import Path
from redrive.runtime.erasing import erase_from
path = Path(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
erase_from(path, lambda letter: letter.id.endswith("7"))
print("done", flush=True)
"""


def test_killed_anywhere_a_file_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    old = archived(path, *(of(f"dl_{n}", "bob") for n in range(3_000)))
    new = b"".join(line_of(of(f"dl_{n}", "bob")) for n in range(3_000) if n % 10 != 7)
    chance, seen = random.Random(7), set()

    for turn in range(8):
        path.write_bytes(old)
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        child.stdin.write(b"go\n")
        child.stdin.flush()
        if turn < 7:
            time.sleep(chance.uniform(0.0, 0.4))  # sleep: the moment of the kill is random
            child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdin.close()
        child.stdout.close()
        found = path.read_bytes()
        assert found in (old, new)
        seen.add(found == new)
        assert described(path).letters in (3_000, 2_700)
        assert 300 == erase_from(path, lambda each: each.id.endswith("7")) or found == new
        assert new == path.read_bytes()
        assert [path] == list(tmp_path.iterdir()), "nothing is left beside it"

    assert {True} <= seen, "the last one was let go on to its end"


KILLED_AT = """
import os, signal, sys
from pathlib import Path
from redrive.runtime import erasing

def killed(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

at = sys.argv[2]
if at == "before the disk":
    os.fsync = killed
elif at == "before the name":
    Path.replace = killed
else:
    erasing._sync_folder = killed
erasing.erase_from(Path(sys.argv[1]), lambda letter: letter.id == "dl_1")
"""


@pytest.mark.parametrize(
    ("at", "left"),
    [
        ("before the disk", ["dl_1", "dl_2"]),
        ("before the name", ["dl_1", "dl_2"]),
        ("before the folder is on disk", ["dl_2"]),
    ],
)
def test_killed_right_there_a_file_is_whole(tmp_path: Path, at: str, left: list[str]) -> None:
    path = tmp_path / "a.jsonl"
    archived(path, of("dl_1", SECRET), of("dl_2", "bob"))

    ran = subprocess.run([sys.executable, "-c", KILLED_AT, str(path), at], cwd=ROOT, check=False, timeout=60)
    found = [each.id for each in letters_in(path)]
    erase_from(path, lambda each: each.id == "dl_1")

    assert -signal.SIGKILL == ran.returncode
    assert left == found
    assert ["dl_2"] == [each.id for each in letters_in(path)]
    assert [path] == list(tmp_path.iterdir()), "nothing is left beside it"


def test_who_is_meant_is_the_same_in_files_and_stores() -> None:
    found = hard_letter()
    for yes in (
        Selection(queue=found.queue),
        Selection(ids=(found.id,)),
        Selection(states=frozenset({found.state})),
        Selection(reason_code=found.reason.code),
        Selection(tenant=found.message.tenant),
        Selection(message_id=found.message.id),
        Selection(since=found.dead_lettered_at, until=found.dead_lettered_at + 1),
    ):
        assert is_meant(yes, found), yes
    for no in (
        Selection(queue="other"),
        Selection(ids=("other",)),
        Selection(states=frozenset({ReviewState.CLOSED})),
        Selection(until=found.dead_lettered_at),
        Selection(since=found.dead_lettered_at + 1),
        Selection(text="nowhere to be found"),
        Selection(headers=(("not there", "x"),)),
    ):
        assert not is_meant(no, found), no


KILLED_BETWEEN = """
import asyncio, os, signal, sys
from redrive import Redrive
from redrive.core.letters.selection import Selection
from redrive.service import Service, erasing

erasing.erase_from = lambda *_: os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with Redrive("shop", sys.argv[1], settings={"archive": sys.argv[2]}) as app:
        await Service(app).erase(Selection(text=sys.argv[3]), actor="ann")

asyncio.run(main())
"""


async def test_killed_between_store_and_archives_the_same_command_does_the_rest(tmp_path: Path) -> None:
    url, folder = f"sqlite:////{tmp_path}/app.db", tmp_path / "archive"
    folder.mkdir()
    archived(folder / "a.jsonl", of("dl_1", SECRET), of("dl_2", "bob"))
    async with Redrive("shop", url, settings={"archive": str(folder)}) as app:
        await app.backend.letters.put([of("dl_3", SECRET), of("dl_4", "bob")])

        ran = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", KILLED_BETWEEN, url, str(folder), SECRET],
            cwd=ROOT,
            check=False,
            timeout=60,
        )
        between = set(await states(app)), [each.id for each in letters_in(folder / "a.jsonl")]
        rest = await Service(app).erase(Selection(text=SECRET), actor="ann")

    record = [json.loads(line)["state"] for line in (folder / archives.ERASURES).read_text().splitlines()]
    assert -signal.SIGKILL == ran.returncode
    assert ({"dl_4"}, ["dl_1", "dl_2"]) == between
    assert (0, 1) == (rest.letters, rest.archived)
    assert ["dl_2"] == [each.id for each in letters_in(folder / "a.jsonl")]
    assert ["begun", "begun", "done"] == record
