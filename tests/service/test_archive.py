"""Letters out into files, back from them, and away: nothing goes before it is on disk, nothing comes back changed."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.selection import Selection
from redrive.errors import ConfigurationError, InvalidMessageError, NotFoundError, SchemaTooNewError
from redrive.runtime.app import Redrive
from redrive.runtime.archive import Archive, letters_in, line_of
from redrive.service import Service
from redrive.testing.samples import HARD_BODIES, hard_letter, letter, message
from tests.service.conftest import DIED_AT, put_letters, states


async def test_an_archive_gives_back_every_letter_exactly(app: Redrive, service: Service, tmp_path: Path) -> None:
    given = [hard_letter(), *(letter(f"dl_{n}", message=message(body=b)) for n, b in enumerate(HARD_BODIES.values()))]
    await app.backend.letters.put(given)
    file = tmp_path / "letters.jsonl"

    with Archive(file) as archive:
        archive.write([found async for found in service.whole(Selection())])

    assert sorted(given, key=lambda found: found.id) == sorted(letters_in(file), key=lambda found: found.id)


async def test_what_is_removed_is_in_the_archive_and_loads_again(
    app: Redrive, service: Service, tmp_path: Path
) -> None:
    ids = await put_letters(app, 250)
    file = tmp_path / "letters.jsonl"

    with Archive(file) as archive:
        removed = await service.remove(Selection(until=DIED_AT + 240), actor="ann", archive=archive)
    left = await states(app)
    kept = list(letters_in(file))
    added = [await service.take_in(kept) for _ in range(2)]

    assert 239 == removed == len(kept)
    assert set(ids[239:]) == set(left)
    assert [239, 0] == added
    assert set(ids) == set(await states(app))


async def test_nothing_is_removed_that_could_not_be_archived(app: Redrive, service: Service) -> None:
    class FullDisk(Archive):
        def write(self, letters: Sequence[Letter]) -> None:
            raise OSError(28, "No space left on device")

    await put_letters(app, 5)

    with pytest.raises(OSError, match="No space"):
        await service.remove(Selection(), actor="ann", archive=FullDisk(Path(os.devnull)))

    assert 5 == len(await states(app))


async def test_a_letter_that_a_job_holds_stays(app: Redrive, service: Service) -> None:
    ids = await put_letters(app, 3)
    view = await service.redrive(Selection(ids=(ids[0],)), actor="ann", run=False)
    running = await app.backend.jobs.acquire(view.job.id, owner="w", lease_ms=60_000)
    assert running is not None
    await app.backend.jobs.stage(running, limit=10)

    removed = await service.remove(Selection(), actor="ann")

    assert 2 == removed
    assert [ids[0]] == list(await states(app))


@pytest.mark.parametrize("url", ["memory://"])
async def test_what_is_closed_or_removed_leaves_the_dead_letter_queue(app: Redrive, service: Service) -> None:
    """Where other tools look: on the embedded file the letter itself is what lies there."""
    ids = await put_letters(app, 4)
    kept = [(await service.letter(id_)).letter for id_ in ids]
    await app.backend.ledger._dead_letter_queues.put(kept)  # type: ignore[attr-defined]

    await service.review(Selection(ids=(ids[0],)), ReviewState.CLOSED, actor="ann")
    after_close = await app.backend.broker.peek("orders.dead", limit=10)
    await service.remove(Selection(ids=tuple(ids[:2])), actor="ann")
    after_removal = await app.backend.broker.peek("orders.dead", limit=10)

    assert ids[1:] == [entry.id for entry in after_close]
    assert ids[2:] == [entry.id for entry in after_removal]


async def test_an_imported_letter_keeps_its_state_and_is_held_by_nobody(service: Service, app: Redrive) -> None:
    given = letter("dl_1", state=ReviewState.REVIEWED, outstanding_job="rd_elsewhere")

    await service.take_in([given])

    found = (await service.letter("dl_1")).letter
    assert (ReviewState.REVIEWED, None) == (found.state, found.outstanding_job)


async def test_a_letter_that_is_there_is_not_changed_by_an_import(service: Service, app: Redrive) -> None:
    (first,) = await put_letters(app, 1)
    await service.review(Selection(ids=(first,)), ReviewState.CLOSED, actor="ann")

    added = await service.take_in([letter(first, attempt_count=99)])

    assert 0 == added
    assert ReviewState.CLOSED == (await service.letter(first)).letter.state


def test_a_line_that_is_no_letter_is_named(tmp_path: Path) -> None:
    file = tmp_path / "letters.jsonl"
    good = line_of(letter()).decode()
    newer = json.dumps({**json.loads(good), "schema": 99})
    for bad, error in (("{", InvalidMessageError), ("[]", InvalidMessageError), (newer, SchemaTooNewError)):
        file.write_text(good + "\n" + bad + "\n")

        with pytest.raises(error, match=r"letters\.jsonl:3"):
            list(letters_in(file))
    with pytest.raises(NotFoundError):
        list(letters_in(tmp_path / "nothing"))


@pytest.mark.parametrize("left", [1, 12, -1])
def test_what_is_written_behind_a_line_that_was_cut_off_is_not_lost(tmp_path: Path, left: int) -> None:
    """A full disk, or a kill: the torn letter was not removed, so it is only in the way."""
    file = tmp_path / "letters.jsonl"
    file.write_bytes(line_of(letter("dl_1")) + line_of(letter("dl_2"))[:-1][:left])

    with Archive(file) as archive:
        archive.write([letter("dl_3")])

    assert ["dl_1", "dl_3"] == [found.id for found in letters_in(file)]


def test_a_last_line_that_is_whole_or_somebodys_own_stays(tmp_path: Path) -> None:
    file = tmp_path / "letters.jsonl"
    for last in (line_of(letter("dl_1"))[:-1], b"# a note", b'{"mine": 1'):
        file.write_bytes(line_of(letter("dl_0")) + last)

        with Archive(file) as archive:
            archive.write([letter("dl_2")])

        assert last == file.read_bytes().splitlines()[1]
        assert line_of(letter("dl_2")).strip() == file.read_bytes().splitlines()[2]


def test_a_file_that_another_one_writes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "letters.jsonl"

    with Archive(file) as first:
        with pytest.raises(ConfigurationError, match="Nothing was written and nothing removed"):
            Archive(file).__enter__()
        first.write([letter("dl_1")])

    assert ["dl_1"] == [found.id for found in letters_in(file)]
