"""The packed list of letters: two processes agree, merging changes nothing, and what a kill left out is mended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from pymongo.asynchronous.collection import AsyncCollection

from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.ports import ReviewChange
from redrive.core.units import UnixMs
from redrive.runtime.clock import SystemClock
from redrive.stores.mongodb import letter_list
from redrive.stores.mongodb.letters import MongoLetterStore
from redrive.stores.mongodb.link import Link
from redrive.testing.clock import FakeClock
from redrive.testing.samples import letter, message
from tests.mongodb.server import database_url

NOW: UnixMs = 1_700_000_000_000


@pytest.fixture
def url() -> str:
    return database_url()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest_asyncio.fixture
async def stores(url: str, clock: FakeClock) -> AsyncIterator[tuple[MongoLetterStore, MongoLetterStore]]:
    """As two processes have them."""
    one, other = (MongoLetterStore(Link(url), clock=clock) for _ in range(2))
    await one.open()
    await other.open()
    yield one, other
    await one.close()
    await other.close()


async def shown(store: MongoLetterStore, selection: Selection | None = None) -> list[tuple[str, str]]:
    page = await store.find(selection or Selection(), limit=1_000)
    return [(each.id, str(each.state)) for each in page.letters]


async def close(store: MongoLetterStore, *names: str) -> None:
    changes = [ReviewChange(letter_id=name, to=ReviewState.CLOSED, actor="ada", at=NOW) for name in names]
    assert [None] * len(names) == await store.review(changes)


def names(store: MongoLetterStore) -> object:
    return store._link.collection(store._link.own("letter_list"))


async def entries(store: MongoLetterStore) -> list[dict[str, Any]]:
    """All that stands in the list."""
    pieces = await store._list._read(await store._list._listed())
    return [entry for piece in pieces.values() for entry in letter_list._entries(piece)]


async def test_each_process_sees_what_the_others_do(stores: tuple[MongoLetterStore, MongoLetterStore]) -> None:
    one, other = stores
    await one.put([letter(f"dl_{number}", died_at=NOW + number) for number in range(5)])
    assert 5 == len(await shown(other))

    await close(other, "dl_1")
    await one.prune(now=NOW, limit=1, selection=Selection(ids=("dl_3",)))
    await other.put([letter("dl_3", died_at=NOW + 9)])

    expected = [("dl_0", "pending"), ("dl_1", "closed"), ("dl_2", "pending"), ("dl_4", "pending"), ("dl_3", "pending")]
    assert expected == await shown(one) == await shown(other)


async def test_merging_changes_nothing_that_is_shown(
    stores: tuple[MongoLetterStore, MongoLetterStore], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stores
    for number in range(12):
        await one.put([letter(f"dl_{number}", died_at=NOW + number)])
    await close(one, "dl_1", "dl_2")
    await one.prune(now=NOW, limit=1, selection=Selection(ids=("dl_7",)))
    before, documents = await shown(one), await names(one).count_documents({})  # type: ignore[attr-defined]

    await one._list.tidy()
    merged = await names(one).count_documents({})  # type: ignore[attr-defined]
    await close(other, "dl_4")
    await clock.advance(2 * letter_list.KEPT_GONE_MS)
    monkeypatch.setattr(letter_list, "BUCKET", 2)
    await asyncio.gather(one._list.tidy(), other._list.tidy(), other.put([letter("dl_new", died_at=NOW + 99)]))
    await one._list.tidy()
    newcomer = MongoLetterStore(one._link, clock=clock)
    await newcomer.open()

    expected = [(name, "closed" if name == "dl_4" else state) for name, state in before] + [("dl_new", "pending")]
    assert merged < documents
    assert 11 == len(before)
    assert expected == await shown(newcomer) == await shown(one) == await shown(other)
    await newcomer.close()


async def test_a_letter_whose_process_was_killed_before_it_was_listed_is_listed_by_its_next_delivery(
    stores: tuple[MongoLetterStore, MongoLetterStore], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody merges what this test takes apart.
    monkeypatch.setattr(letter_list, "TIDY_EVERY", 1 << 60)
    one, other = stores
    await one.put([letter("dl_0")])
    kept = {each["_id"] async for each in names(one).find({})}  # type: ignore[attr-defined]
    await one.put([letter("dl_lost", died_at=NOW + 1)])
    async for each in names(one).find({}):  # type: ignore[attr-defined]
        if each["_id"] not in kept:
            await names(one).delete_one(each)  # type: ignore[attr-defined]
    assert [("dl_0", "pending")] == await shown(other)
    assert await other.get("dl_lost") is not None

    await other.put([letter("dl_lost", died_at=NOW + 1)])

    assert [("dl_0", "pending"), ("dl_lost", "pending")] == await shown(other)


class Killed(BaseException):
    """Ends the process, as far as the code under test can tell."""


async def killed(*_: object, **__: object) -> None:
    raise Killed


@pytest.mark.parametrize("step", [(letter_list.LetterList, "add"), (AsyncCollection, "update_one")])
async def test_a_kill_between_a_move_and_its_entry_is_mended_by_a_look(
    stores: tuple[MongoLetterStore, MongoLetterStore], monkeypatch: pytest.MonkeyPatch, step: tuple[type, str]
) -> None:
    one, other = stores
    key = message("m", key="k")
    await one.put([letter("dl_0", died_at=NOW, expires_at=NOW + 1, message=key), letter("dl_1", died_at=NOW + 1)])
    await one.put([letter("dl_2", died_at=NOW + 2, message=key)])
    assert 3 == len(await shown(other))
    with monkeypatch.context() as patch:
        patch.setattr(*step, killed)
        with pytest.raises(Killed):
            await close(one, "dl_0")

    looked_at = await other.get("dl_0")

    assert looked_at is not None
    assert ReviewState.CLOSED == looked_at[0].state
    assert [("dl_0", "closed"), ("dl_1", "pending"), ("dl_2", "pending")] == await shown(other) == await shown(one)
    assert {} == await other.earlier(["dl_2"], job_id=None)
    assert 1 == await other.prune(now=NOW + 2, limit=10)


async def test_a_recount_mends_the_list(
    stores: tuple[MongoLetterStore, MongoLetterStore], clock: FakeClock, url: str
) -> None:
    one, other = stores
    await one.put([letter(f"dl_{number}", died_at=NOW + number) for number in range(3)])
    by_index = MongoLetterStore(Link(url, is_scanned=False), clock=clock)
    await by_index.open()
    await by_index.put([letter("dl_unlisted", died_at=NOW + 9, fingerprint="fp-2")])
    await close(by_index, "dl_0")
    await by_index.prune(now=NOW, limit=1, selection=Selection(ids=("dl_1",)))
    stale = await shown(other)

    wrong = await one.groups.recount()

    assert [("dl_0", "pending"), ("dl_1", "pending"), ("dl_2", "pending")] == stale
    assert 2 == wrong
    expected = [("dl_0", "closed"), ("dl_2", "pending"), ("dl_unlisted", "pending")]
    assert expected == await shown(one) == await shown(other) == await shown(by_index)
    assert expected[1:] == await shown(one, Selection(states=OPEN_STATES))
    assert 0 == await one.groups.recount()
    await by_index.close()


async def test_letters_from_before_there_was_a_list_are_listed_once(url: str) -> None:
    before = MongoLetterStore(Link(url, is_scanned=False), clock=SystemClock())
    await before.open()
    await before.put([letter(f"dl_{number}", died_at=NOW + number) for number in range(4)])
    await before.close()

    store = MongoLetterStore(Link(url), clock=SystemClock())
    await store.open()

    assert ["dl_0", "dl_1", "dl_2", "dl_3"] == [name for name, _ in await shown(store)]
    await store.close()


async def test_what_is_gone_does_not_come_back_by_a_late_merge(
    stores: tuple[MongoLetterStore, MongoLetterStore],
) -> None:
    one, other = stores
    await one.put([letter("dl_0"), letter("dl_1")])
    late = [each for each in await other._list.all() if each["_id"] == "dl_1"]
    await one.prune(now=NOW, limit=1, selection=Selection(ids=("dl_1",)))

    await other._list.add(late)
    seen = await shown(one), await shown(other)
    await one._list.tidy()
    newcomer = MongoLetterStore(one._link, clock=SystemClock())
    await newcomer.open()

    assert ([("dl_0", "pending")], [("dl_0", "pending")]) == seen
    assert [("dl_0", "pending")] == await shown(newcomer)
    await newcomer.close()


async def test_who_has_not_read_for_long_lists_nothing_that_is_gone(
    stores: tuple[MongoLetterStore, MongoLetterStore], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stores
    monkeypatch.setattr(letter_list, "BUCKET", 4)
    key = message("m", key="k")
    await one.put([letter(f"dl_{number}", died_at=NOW + number, message=key) for number in range(40)])
    ids = tuple(f"dl_{number}" for number in range(40))
    await one.review([ReviewChange(letter_id=each, to=ReviewState.REVIEWED, actor="ada", at=NOW) for each in ids])
    assert 40 == len(await shown(other))
    await one.prune(now=NOW, limit=39, selection=Selection(ids=ids[:39]))
    await clock.advance(letter_list.KEPT_GONE_MS + 1)
    await one._list.tidy()
    assert not any("gone" in each for each in await entries(one))

    seen = await shown(other)

    assert [("dl_39", "reviewed")] == seen == await shown(one)
    assert {} == await other.earlier(["dl_39"], job_id=None)
    assert len(other._list._gone) == 0
