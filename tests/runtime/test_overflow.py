"""More dead letters than allowed: the oldest go into a file, none is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from redrive import ConfigurationError, Redrive, Retry
from redrive.core.letters.letter import Letter
from redrive.core.letters.selection import Selection
from redrive.runtime.archive import letters_in
from redrive.runtime.overflow import Overflow
from redrive.service import Service
from tests.runtime.conftest import MakeApp
from tests.runtime.stage import Told, letters, working


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
