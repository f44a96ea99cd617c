"""More dead letters than allowed: the oldest go into a file, none is lost."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from redrive import ConfigurationError, Redrive, Retry
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.selection import Selection
from redrive.runtime import overflow as overflow_module
from redrive.runtime.archive import letters_in
from redrive.runtime.overflow import Overflow
from redrive.service import Service
from redrive.testing.samples import letter, message
from tests.runtime.conftest import MakeApp
from tests.runtime.stage import Told, letters, working

ROOT = Path(__file__).resolve().parents[2]


def failing(app: Redrive, *, max_letters: int) -> None:
    @app.consumer("orders", retry=Retry(1), max_letters=max_letters, concurrency=1, breaker=None)
    async def handle(order: dict[str, Any]) -> None:
        raise ValueError(order["n"])


def numbers(found: list[Letter]) -> list[int]:
    return sorted(json.loads(letter.message.body)["n"] for letter in found)


def archived(folder: Path) -> list[Letter]:
    return [letter for file in sorted(folder.glob("*.jsonl")) for letter in letters_in(file)]


async def test_the_oldest_go_into_a_file_and_can_be_loaded_again(make_app: MakeApp, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    app = make_app(archive=str(folder))
    failing(app, max_letters=10)
    told = Told(app)

    async with working(app):
        await app.publish_many("orders", [({"n": n}, {"message_id": f"m-{n}"}) for n in range(25)])
        await told.until_true(lambda: sum(each["count"] for each in told.named("letters.archived")) == 15)
        left = await letters(app)

    assert list(range(15, 25)) == numbers(left)
    assert list(range(15)) == numbers(archived(folder))
    for told_of in told.named("letters.archived"):
        assert ("orders.dead", 10) == (told_of["queue"], told_of["max_letters"])
        assert Path(told_of["file"]).is_file()


async def test_what_was_archived_is_exact_and_loading_it_twice_is_loading_it_once(
    make_app: MakeApp, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    app = make_app(archive=str(folder))
    failing(app, max_letters=2)
    told = Told(app)
    async with working(app):
        await app.publish_many("orders", [({"n": n}, {"headers": {"h": b"\x00\xff"}}) for n in range(5)])
        await told.until_true(lambda: sum(each["count"] for each in told.named("letters.archived")) == 3)
        service = Service(app)
        added = [await service.take_in(archived(folder)) for _ in range(2)]
        loaded = [(await service.letter(letter.id)).letter for letter in archived(folder)]

    assert [3, 0] == added
    assert archived(folder) == loaded


async def test_letters_from_before_count_and_so_do_those_sent_back(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app(archive=str(tmp_path / "archive"))
    failing(app, max_letters=3)
    told = Told(app)
    async with working(app, name="w"):
        await app.publish_many("orders", [{"n": n} for n in range(3)])
        await told.until("delivery.dead_lettered", 3)
        overflow = Overflow(app, [app.consumers["orders"]], owner="w")
        assert 0 == await overflow.look("orders.dead")
        await app.publish("orders", {"n": 3})
        await told.until("letters.archived")

        assert [1, 2, 3] == numbers(await letters(app))


async def test_where_the_file_cannot_be_written_the_letters_stay_and_it_is_told(
    make_app: MakeApp, tmp_path: Path
) -> None:
    (tmp_path / "archive").write_text("a file, no folder")
    app = make_app(archive=str(tmp_path / "archive"))
    failing(app, max_letters=1)
    told = Told(app)

    async with working(app):
        await app.publish_many("orders", [{"n": n} for n in range(3)])
        await told.until("letters.not_archived")
        await told.until("delivery.dead_lettered", 3)
        assert [0, 1, 2] == numbers(await letters(app))
        assert 3 == (await Service(app).stats(Selection(queue="orders"))).total


@pytest.mark.parametrize("wrong", [0, -1, True, "10", 1.5])
def test_a_maximum_is_a_whole_number_above_0(wrong: Any) -> None:
    app = Redrive("shop", broker="memory://")

    with pytest.raises(ConfigurationError, match="max_letters"):

        @app.consumer("orders", max_letters=wrong)
        async def handle(order: dict[str, Any]) -> None: ...


DAY_MS = 86_400_000


async def over_their_time(app: Redrive) -> None:
    """Letters of every state, over their time; one that is not, and one that never is."""
    now = app.clock.now()
    old = {"died_at": now - 91 * DAY_MS, "expires_at": now - DAY_MS}
    made = [
        letter(state, dead_letter_queue="orders.dead", message=message(f"m-{state}"), state=ReviewState(state), **old)
        for state in ReviewState
    ]
    made += [letter("held", dead_letter_queue="orders.dead", message=message("m-held"), outstanding_job="rd_1", **old)]
    made += [letter("young", dead_letter_queue="orders.dead", message=message("m-young"), expires_at=now + DAY_MS)]
    made += [letter("kept", dead_letter_queue="orders.dead", message=message("m-kept"), expires_at=None)]
    await app.backend.letters.put(made)


async def ids_left(app: Redrive) -> set[str]:
    return {each.id for each in (await app.backend.letters.find(Selection(), limit=500)).letters}


async def test_letters_that_nobody_decided_about_are_archived_when_their_time_is_over(
    make_app: MakeApp, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    app = make_app(archive=str(folder))
    failing(app, max_letters=1_000)
    told = Told(app)
    async with app:
        await over_their_time(app)
        given = {name: await app.backend.letters.get(name) for name in ("pending", "reviewed")}
        overflow = Overflow(app, [app.consumers["orders"]], owner="w")

        gone = [await overflow.expire("orders.dead") for _ in range(2)]
        after = await ids_left(app)
        await app.backend.letters.prune(now=app.clock.now(), limit=100)
        pruned = await ids_left(app)

    assert [2, 0] == gone
    assert {"replayed", "closed", "held", "young", "kept"} == after
    assert {"held", "young", "kept"} == pruned
    assert {name: each[0] for name, each in given.items() if each} == {each.id: each for each in archived(folder)}
    assert [("orders.dead", 2)] == [(each["queue"], each["count"]) for each in told.named("letters.expired")]


async def test_what_was_archived_and_is_loaded_again_has_its_time_once_more(make_app: MakeApp, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    app = make_app(archive=str(folder))
    failing(app, max_letters=1_000)
    async with app:
        await over_their_time(app)
        overflow = Overflow(app, [app.consumers["orders"]], owner="w")
        await overflow.expire("orders.dead")
        (found, *_) = archived(folder)
        added = await Service(app).take_in(archived(folder))
        again = await overflow.expire("orders.dead")
        loaded = (await Service(app).letter(found.id)).letter

    assert (2, 0) == (added, again)
    assert loaded.expires_at is not None
    assert loaded.expires_at >= app.clock.now() + 89 * DAY_MS
    assert found == replace(loaded, expires_at=found.expires_at), "nothing else is changed"


async def test_a_walk_for_what_is_over_sees_all_whatever_lies_before_it(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(archive=str(tmp_path / "archive"))
    failing(app, max_letters=1_000)
    monkeypatch.setattr(overflow_module, "BATCH", 3)
    monkeypatch.setattr(overflow_module, "MAX_PAGES", 2)
    async with app:
        now = app.clock.now()
        for n in range(20):
            expires_at = now - 1 if n % 5 == 4 else now + DAY_MS
            made = letter(f"dl_{n}", died_at=n + 1, dead_letter_queue="orders.dead", expires_at=expires_at)
            await app.backend.letters.put([replace(made, message=message(f"m-{n}"))])
        overflow = Overflow(app, [app.consumers["orders"]], owner="w")

        gone = [await overflow.expire("orders.dead") for _ in range(4)]

    assert 4 == sum(gone)
    assert 2 > max(gone[:1])


KILLED = """
import asyncio, os, signal, sys
from redrive import Redrive
from redrive.runtime.overflow import Overflow

app = Redrive("shop", sys.argv[1], settings={"archive": sys.argv[2]})

@app.consumer("orders", max_letters=1000)
async def handle(order: dict) -> None: ...

async def main():
    async with app:
        async def prune(**_):
            os.kill(os.getpid(), signal.SIGKILL)
        app.backend.letters.prune = prune
        await Overflow(app, [app.consumers["orders"]], owner="w").expire("orders.dead")

asyncio.run(main())
"""


async def test_killed_between_the_file_and_the_removal_letters_are_in_both_and_loaded_once(tmp_path: Path) -> None:
    folder, url = tmp_path / "archive", f"sqlite:////{tmp_path}/app.db"
    app = Redrive("shop", url, settings={"archive": str(folder)})
    failing(app, max_letters=1_000)
    async with app:
        await over_their_time(app)
        before = await ids_left(app)

        ran = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", KILLED, url, str(folder)], cwd=ROOT, check=False, timeout=60
        )
        killed = await ids_left(app)
        added = await Service(app).take_in(archived(folder))
        gone = await Overflow(app, [app.consumers["orders"]], owner="w2").expire("orders.dead")

    assert -signal.SIGKILL == ran.returncode
    assert before == killed
    assert (0, 2) == (added, gone)
    assert {"pending", "reviewed"} == {each.id for each in archived(folder)}
