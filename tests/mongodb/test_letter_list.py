"""The packed list of letters: two processes agree, merging changes nothing, and what a kill left out is mended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from pymongo import monitoring
from pymongo.asynchronous.collection import AsyncCollection

from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.ports import ReviewChange
from redrive.core.units import UnixMs
from redrive.runtime.clock import SystemClock
from redrive.stores.mongodb import letter_list
from redrive.stores.mongodb.groups import sends_in
from redrive.stores.mongodb.letters import MongoLetterStore
from redrive.stores.mongodb.link import Link
from redrive.stores.mongodb.own_states import OwnStates
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


async def own_state(store: MongoLetterStore, name: str) -> str:
    """What other tools read, once it is written."""
    if store._own_states._writing is not None:
        await store._own_states._writing
    document = await store.letters.find_one({"_id": name})
    assert document is not None
    return str(document["reviewState"])


class Killed(BaseException):
    """Ends the process, as far as the code under test can tell."""


def killed(*_: object, **__: object) -> None:
    raise Killed


@pytest.mark.parametrize("step", [(letter_list.LetterList, "add"), (OwnStates, "write")])
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
    assert "closed" == await own_state(other, "dl_0")
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


class Asked(monitoring.CommandListener):
    """The collections that were asked or changed, with the command."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.calls.append((event.command_name, str(event.command[event.command_name])))

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


@pytest_asyncio.fixture
async def watched(url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MongoLetterStore]:
    """A store whose calls are listened to (`asked`)."""
    monkeypatch.setattr(letter_list, "TIDY_EVERY", 1 << 60)
    link = Link(url)
    made = link._made
    monkeypatch.setattr(link, "_made", lambda client: made(partial(client, event_listeners=[asked(store)])))
    store = MongoLetterStore(link, clock=clock)
    store.asked = Asked()  # type: ignore[attr-defined]
    yield store
    await store.close()


def asked(store: MongoLetterStore) -> Asked:
    found: Asked = store.asked  # type: ignore[attr-defined]
    return found


async def test_a_letter_is_closed_without_a_look_at_the_letters(
    stores: tuple[MongoLetterStore, MongoLetterStore], watched: MongoLetterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = stores
    await one.put([letter("dl_0"), letter("dl_1")])
    await watched.open()
    later: list[dict[str, Any]] = []
    with monkeypatch.context() as patch:
        patch.setattr(watched._own_states, "write", later.append)
        asked(watched).calls.clear()

        await close(watched, "dl_0")

        calls = asked(watched).calls
    assert 5 == len(calls), calls
    assert not any(collection == "dead_letter_events" for _, collection in calls)
    assert [("dl_0", "closed"), ("dl_1", "pending")] == await shown(one)
    assert "pending" == await own_state(watched, "dl_0")
    watched._own_states.write(later[0])
    assert "closed" == await own_state(watched, "dl_0")


async def test_a_store_that_is_closed_has_written_the_states_of_its_letters(url: str, clock: FakeClock) -> None:
    store = MongoLetterStore(Link(url), clock=clock)
    await store.open()
    await store.put([letter(f"dl_{number}") for number in range(5)])
    await close(store, *(f"dl_{number}" for number in range(5)))

    await store.close()

    await store.open()
    assert ["closed"] * 5 == [each["reviewState"] async for each in store.letters.find()]
    await store.close()


async def test_a_recount_brings_the_letters_own_states_up_to_their_moves(
    stores: tuple[MongoLetterStore, MongoLetterStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stores
    await one.put([letter("dl_0"), letter("dl_1")])
    with monkeypatch.context() as patch:
        patch.setattr(OwnStates, "write", killed)
        with pytest.raises(Killed):
            await close(one, "dl_0")

    wrong = await other.groups.recount()

    assert 0 == wrong
    assert ["closed", "pending"] == [await own_state(one, name) for name in ("dl_0", "dl_1")]


async def test_what_a_letter_has_been_through_is_counted_as_by_its_moves(
    stores: tuple[MongoLetterStore, MongoLetterStore],
) -> None:
    one, other = stores
    await one.put([letter("dl_0")])
    for to in (ReviewState.REPLAYED, ReviewState.PENDING, ReviewState.REPLAYED, ReviewState.CLOSED):
        await one.review([ReviewChange(letter_id="dl_0", to=to, actor="ada", at=NOW)])

    found = await other.groups.group("fp-1")

    assert found is not None
    expected = sends_in(await one._trail((await one._list.lives())["dl_0"]))
    assert expected == (found[0].redriven, found[0].succeeded)
    assert expected[0] > 0


async def test_a_letter_that_is_pruned_while_it_is_closed_is_missing(
    stores: tuple[MongoLetterStore, MongoLetterStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stores
    await one.put([letter("dl_0"), letter("dl_1")])
    look = one._list.one

    async def slow_look(name: str) -> dict[str, Any] | None:
        found = await look(name)
        await other.prune(now=NOW, limit=1, selection=Selection(ids=(name,)))
        return found

    monkeypatch.setattr(one._list, "one", slow_look)

    answer = await one.review([ReviewChange(letter_id="dl_0", to=ReviewState.CLOSED, actor="ada", at=NOW)])

    assert ['no dead letter has the id "dl_0"'] == answer
    assert [("dl_1", "pending")] == await shown(one) == await shown(other)
    assert 0 == await one._moves.count_documents({})


async def test_the_first_page_after_opening_reads_only_what_is_new(
    stores: tuple[MongoLetterStore, MongoLetterStore], watched: MongoLetterStore
) -> None:
    one, _ = stores
    await one.put([letter(f"dl_{number}", died_at=NOW + number) for number in range(5)])
    await watched.open()
    asked(watched).calls.clear()

    page = await watched.find(Selection(), limit=2)

    assert ["dl_0", "dl_1"] == [each.id for each in page.letters]
    assert not any(collection == "redrive_letter_entries" for _, collection in asked(watched).calls)


async def all_told(store: MongoLetterStore) -> set[str]:
    """Every letter of which a summary stands anywhere, in the list or not."""
    pieces = [each async for each in store._list._pieces.find({})]
    return {entry["_id"] for piece in pieces for entry in letter_list._entries(piece) if "redrive" in entry
            and "message_id" in entry["redrive"]}  # fmt: skip


async def test_of_a_letter_that_is_removed_the_list_tells_nothing_at_once(
    stores: tuple[MongoLetterStore, MongoLetterStore],
) -> None:
    one, other = stores
    await one.put([letter(f"dl_{number}", died_at=NOW + number) for number in range(5)])
    await close(other, "dl_1")

    await other.prune(now=NOW, limit=5, selection=Selection(ids=("dl_1", "dl_3")))

    assert {"dl_0", "dl_2", "dl_4"} == await all_told(one)
    assert ["dl_0", "dl_2", "dl_4"] == [name for name, _ in await shown(one)]


class Paused:
    """A step of one store's list that waits before it begins."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: MongoLetterStore, name: str) -> None:
        self.is_reached, self.goes_on = asyncio.Event(), asyncio.Event()
        step = getattr(store._list, name)

        async def wait(*arguments: object) -> object:
            self.is_reached.set()
            await self.goes_on.wait()
            return await step(*arguments)

        monkeypatch.setattr(store._list, name, wait)


async def test_a_merge_that_has_a_removed_letter_in_hand_does_not_bring_it_back(
    stores: tuple[MongoLetterStore, MongoLetterStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stores
    monkeypatch.setattr(letter_list, "TIDY_EVERY", 1 << 60)
    for number in range(4):
        await one.put([letter(f"dl_{number}", died_at=NOW + number)])
    paused = Paused(monkeypatch, one, "_insert")
    merging = asyncio.create_task(one._list.tidy())
    await paused.is_reached.wait()

    await other.prune(now=NOW, limit=1, selection=Selection(ids=("dl_1",)))
    paused.goes_on.set()
    await merging

    assert {"dl_0", "dl_2", "dl_3"} == await all_told(other)
    assert (
        ["dl_0", "dl_2", "dl_3"] == [name for name, _ in await shown(one)] == [name for name, _ in await shown(other)]
    )


@pytest.mark.parametrize("is_late", [False, True], ids=["after the other", "before the other removes"])
async def test_two_merges_at_once_bring_no_letter_back(
    stores: tuple[MongoLetterStore, MongoLetterStore],
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    is_late: bool,
) -> None:
    one, other = stores
    monkeypatch.setattr(letter_list, "TIDY_EVERY", 1 << 60)
    monkeypatch.setattr(letter_list, "BUCKET", 4)
    for number in range(4):
        await one.put([letter(f"dl_{number}", died_at=NOW + number)])
    with monkeypatch.context() as patch:
        # Killed before the summaries are out of the list: one merge will see those, and another what it says of them.
        patch.setattr(letter_list.LetterList, "_whole", killed)
        with pytest.raises(Killed):
            await one.prune(now=NOW, limit=2, selection=Selection(ids=("dl_1", "dl_2")))
    await clock.advance(letter_list.KEPT_GONE_MS + 1)
    paused = Paused(monkeypatch, one, "_insert")
    merging = asyncio.create_task(one._list.tidy())
    await paused.is_reached.wait()
    look = other._list._listed
    looks = 0

    async def look_and_let_the_first_go_on() -> set[str]:
        nonlocal looks
        found = await look()
        looks += 1
        if is_late and looks == 2:
            paused.goes_on.set()
            await merging
        return found

    monkeypatch.setattr(other._list, "_listed", look_and_let_the_first_go_on)
    monkeypatch.setattr(letter_list, "BUCKET", -100)  # all that there is is merged

    await other._list.tidy()
    paused.goes_on.set()
    await merging
    newcomer = MongoLetterStore(one._link, clock=clock)
    await newcomer.open()

    assert [("dl_0", "pending"), ("dl_3", "pending")] == await shown(newcomer) == await shown(one)
    await newcomer.close()


async def test_a_merge_that_is_killed_while_it_removes_brings_no_letter_back(
    stores: tuple[MongoLetterStore, MongoLetterStore], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stores
    monkeypatch.setattr(letter_list, "TIDY_EVERY", 1 << 60)
    await one.put([letter("dl_0"), letter("dl_1")])
    before = await one._list._listed()
    with monkeypatch.context() as patch:
        patch.setattr(letter_list.LetterList, "_whole", killed)
        with pytest.raises(Killed):
            await one.prune(now=NOW, limit=1, selection=Selection(ids=("dl_1",)))
    await clock.advance(letter_list.KEPT_GONE_MS + 1)
    monkeypatch.setattr(letter_list, "BUCKET", -100)
    delete = AsyncCollection.delete_one

    async def killed_at_the_letters(self: object, wanted: dict[str, Any]) -> object:
        if wanted["_id"] in before:
            raise Killed
        return await delete(self, wanted)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(AsyncCollection, "delete_one", killed_at_the_letters)
        read = other._list._read

        async def said_last(found: set[str]) -> dict[str, Any]:
            pieces = await read(found)
            return {name: pieces[name] for name in sorted(pieces, key=lambda each: each in before)}

        patch.setattr(other._list, "_read", said_last)
        with pytest.raises(Killed):
            await other._list.tidy()
    newcomer = MongoLetterStore(one._link, clock=clock)
    await newcomer.open()

    assert [("dl_0", "pending")] == await shown(newcomer)
    await newcomer.close()
