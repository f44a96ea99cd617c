"""GroupStoreContract: letters of one fingerprint are one problem, counted as they come, move and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest
import pytest_asyncio

from redrive.core.letters.groups import (
    GROUP_TRANSITIONS,
    HOUR_MS,
    MAX_NAMED,
    Group,
    GroupChange,
    GroupState,
    GroupWork,
    Ignored,
)
from redrive.core.letters.letter import ReviewState
from redrive.core.letters.review import CLOSED_BY
from redrive.core.letters.selection import Selection
from redrive.core.ports import Clock, GroupStore, LetterStore, ReviewChange
from redrive.core.units import UnixMs
from redrive.errors import ConfigurationError
from redrive.testing.contracts.base import Contract
from redrive.testing.samples import HARD_NAMES, letter, message

DIED_AT: Final[UnixMs] = 1_700_000_000_000 - 1_700_000_000_000 % HOUR_MS
FAR: Final[UnixMs] = DIED_AT + 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupParts:
    """The group store under test and the letters it counts."""

    groups: GroupStore
    letters: LetterStore


class GroupStoreContract(Contract):
    """Subclass, say how to `make` the two stores, inherit the tests."""

    def make(self, clock: Clock) -> AbstractAsyncContextManager[GroupParts]:
        """Fresh, empty stores, opened."""
        raise AssertionError(f"{type(self).__name__} has to say how to make a group store on {clock}")

    @pytest_asyncio.fixture
    async def parts(self, clock: Clock) -> AsyncIterator[GroupParts]:
        async with self.make(clock) as parts:
            yield parts

    @pytest.fixture
    def groups(self, parts: GroupParts) -> GroupStore:
        return parts.groups

    @pytest.fixture
    def letters(self, parts: GroupParts) -> LetterStore:
        return parts.letters

    async def only(self, groups: GroupStore, fingerprint: str = "fp-1") -> Group:
        """A group that must be there."""
        found = await groups.group(fingerprint)
        assert found is not None
        return found[0]

    async def die(self, letters: LetterStore, name: str, *, after_ms: int = 0, **changes: Any) -> None:
        """One more letter; of the same group unless the changes say otherwise."""
        await letters.put([letter(name, died_at=DIED_AT + after_ms, **changes)])

    async def move(self, letters: LetterStore, name: str, *states: ReviewState, actor: str = "ann") -> None:
        """Bring a letter through these states."""
        for state in states:
            change = ReviewChange(letter_id=name, to=state, actor=actor, at=FAR)
            assert await letters.review([change]) == [None]

    async def change(self, groups: GroupStore, **changes: Any) -> str | None:
        """Change the group of plain letters."""
        return (await groups.change([GroupChange(fingerprint="fp-1", actor="ann", at=FAR, **changes)]))[0]

    # ------------------------------------------------------------------------------------------- counts

    async def test_no_letters_no_groups(self, groups: GroupStore) -> None:
        page = await groups.groups(limit=10)

        assert page.groups == ()
        assert page.cursor is None
        assert await groups.group("fp-1") is None
        assert await groups.hours("fp-1", since=0) == []

    async def test_letters_of_one_fingerprint_are_one_group(self, groups: GroupStore, letters: LetterStore) -> None:
        await self.die(letters, "a")
        await self.die(letters, "b", after_ms=5)
        await self.die(letters, "c", after_ms=2, fingerprint="fp-2", group_title="other")

        group = await self.only(groups)

        assert ("fp-1", "TimeoutError: no answer", "orders") == (group.fingerprint, group.title, group.queue)
        assert ("TIMEOUT_EXHAUSTED", "TimeoutError", "TIMEOUT") == (
            group.reason_code, group.error_type, group.error_code,
        )  # fmt: skip
        assert (2, 2, 2) == (group.count, group.waiting, group.seen)
        assert (DIED_AT, DIED_AT + 5) == (group.first_seen, group.last_seen)
        assert GroupWork() == group.work
        assert group.success_rate is None
        assert ["fp-1", "fp-2"] == [each.fingerprint for each in (await groups.groups(limit=10)).groups]

    async def test_a_letter_that_is_stored_twice_counts_once(self, groups: GroupStore, letters: LetterStore) -> None:
        await letters.put([letter("a"), letter("a")])
        await letters.put([letter("a")])

        assert (1, 1) == ((await self.only(groups)).count, (await self.only(groups)).seen)

    async def test_letters_stored_side_by_side_all_count(self, groups: GroupStore, letters: LetterStore) -> None:
        await asyncio.gather(*(self.die(letters, f"l{number}", after_ms=number) for number in range(40)))

        group = await self.only(groups)

        assert (40, 40) == (group.count, group.waiting)
        assert (DIED_AT, DIED_AT + 39) == (group.first_seen, group.last_seen)

    async def test_what_was_closed_waits_no_more(self, groups: GroupStore, letters: LetterStore) -> None:
        for name in ("a", "b", "c"):
            await self.die(letters, name)
        await self.move(letters, "a", ReviewState.REVIEWED)
        await self.move(letters, "b", ReviewState.REVIEWED, ReviewState.CLOSED)

        group = await self.only(groups)

        assert (3, 2, 3) == (group.count, group.waiting, group.seen)
        assert (0, 0, 0) == (group.redriven, group.succeeded, group.returned)

    async def test_a_closed_letter_that_is_restored_waits_again(self, groups: GroupStore, letters: LetterStore) -> None:
        await self.die(letters, "a")
        await self.move(letters, "a", ReviewState.CLOSED, ReviewState.PENDING)

        assert 1 == (await self.only(groups)).waiting

    async def test_sends_are_followed_to_their_end(self, groups: GroupStore, letters: LetterStore) -> None:
        for name in ("a", "b", "c", "d"):
            await self.die(letters, name)
            await self.move(letters, name, ReviewState.REPLAYED)
        await self.move(letters, "a", ReviewState.CLOSED, actor=CLOSED_BY)
        await self.move(letters, "b", ReviewState.CLOSED, actor=CLOSED_BY)
        await self.die(letters, "c2", previous="c")

        group = await self.only(groups)

        assert (4, 2, 1) == (group.redriven, group.succeeded, group.returned)
        assert pytest.approx(2 / 3) == group.success_rate

    async def test_what_returned_and_is_closed_by_hand_did_not_succeed(
        self, groups: GroupStore, letters: LetterStore
    ) -> None:
        await self.die(letters, "a")
        await self.move(letters, "a", ReviewState.REPLAYED)
        await self.die(letters, "a2", previous="a")
        await self.move(letters, "a", ReviewState.CLOSED)

        assert (0, 1) == ((await self.only(groups)).succeeded, (await self.only(groups)).returned)

    async def test_a_return_counts_for_the_group_it_was_sent_from(
        self, groups: GroupStore, letters: LetterStore
    ) -> None:
        await self.die(letters, "a")
        await self.move(letters, "a", ReviewState.REPLAYED)
        await self.die(letters, "a2", previous="a", fingerprint="fp-2")
        await self.die(letters, "x", previous="never seen", fingerprint="fp-2")

        assert (1, 0) == ((await self.only(groups)).returned, (await self.only(groups, "fp-2")).returned)

    async def test_a_group_goes_with_its_last_letter(self, groups: GroupStore, letters: LetterStore) -> None:
        await self.die(letters, "a")
        await self.die(letters, "b")
        gone = Selection(ids=("a",))
        await letters.prune(now=FAR, limit=10, selection=gone)

        assert (1, 1, 2) == (
            (await self.only(groups)).count, (await self.only(groups)).waiting, (await self.only(groups)).seen,
        )  # fmt: skip

        await letters.prune(now=FAR, limit=10, selection=Selection())

        assert await groups.group("fp-1") is None

    async def test_a_group_somebody_wrote_on_outlives_its_letters(
        self, groups: GroupStore, letters: LetterStore
    ) -> None:
        await self.die(letters, "a")
        assert await self.change(groups, note="the relay was down", assignee="bob") is None
        await letters.prune(now=FAR, limit=10, selection=Selection())

        group = await self.only(groups)

        assert (0, 0, 1) == (group.count, group.waiting, group.seen)
        assert ("the relay was down", "bob") == (group.work.note, group.work.assignee)

    async def test_tenants_and_versions_are_counted(self, groups: GroupStore, letters: LetterStore) -> None:
        for number in range(MAX_NAMED + 2):
            await self.die(letters, f"t{number:02}", message=message(f"m{number}", tenant=f"tenant-{number:02}"))
        await self.die(letters, "x", message=message("x", tenant="tenant-05"), version="1.0")
        await self.die(letters, "y", message=message("y"), version="1.0")
        await self.die(letters, "z", message=message("z", tenant=HARD_NAMES[6]), version="1.1")

        group = await self.only(groups)

        assert MAX_NAMED + 4 == group.tenants
        assert ("tenant-05", 2) == group.top_tenants[0]
        assert MAX_NAMED == len(group.top_tenants)
        assert (("1.0", 2), ("1.1", 1)) == group.versions

    async def test_deaths_are_counted_by_the_hour(self, groups: GroupStore, letters: LetterStore) -> None:
        for name, after_ms in (("a", 0), ("b", HOUR_MS - 1), ("c", HOUR_MS), ("d", 5 * HOUR_MS)):
            await self.die(letters, name, after_ms=after_ms)

        hours = await groups.hours("fp-1", since=DIED_AT + HOUR_MS + 5)
        everything = await groups.hours("fp-1", since=0)

        assert [(DIED_AT + HOUR_MS, 1), (DIED_AT + 5 * HOUR_MS, 1)] == [(each.at, each.count) for each in hours]
        assert [2, 1, 1] == [each.count for each in everything]

    async def test_recounting_finds_nothing_wrong_and_changes_nothing(
        self, groups: GroupStore, letters: LetterStore
    ) -> None:
        for name in ("a", "b"):
            await self.die(letters, name, version="1.0")
        await self.move(letters, "a", ReviewState.REPLAYED, ReviewState.CLOSED, actor=CLOSED_BY)
        assert await self.change(groups, to=GroupState.ACKNOWLEDGED) is None
        before = await self.only(groups)

        assert await groups.recount() == 0
        assert before == await self.only(groups)

    # ------------------------------------------------------------------------------------------- lists

    async def test_the_list_is_by_waiting_letters_and_walks_page_by_page(
        self, groups: GroupStore, letters: LetterStore
    ) -> None:
        for number in range(7):
            for copy in range(1 + number % 3):
                await self.die(letters, f"l{number}-{copy}", fingerprint=f"fp-{number}")
        whole = await groups.groups(limit=100)

        walked: list[Group] = []
        cursor = None
        while True:
            page = await groups.groups(limit=3, cursor=cursor)
            walked += page.groups
            cursor = page.cursor
            if cursor is None:
                break

        assert whole.groups == tuple(walked)
        assert ["fp-2", "fp-5", "fp-1", "fp-4", "fp-0", "fp-3", "fp-6"] == [each.fingerprint for each in walked]

    async def test_a_cursor_that_no_page_had_is_refused(self, groups: GroupStore) -> None:
        with pytest.raises(ConfigurationError):
            await groups.groups(limit=3, cursor="x")

    async def test_the_list_takes_states_and_a_queue(self, groups: GroupStore, letters: LetterStore) -> None:
        await self.die(letters, "a")
        await self.die(letters, "b", fingerprint="fp-2", queue="billing", dead_letter_queue="billing.dead")
        await self.change(groups, to=GroupState.ACKNOWLEDGED)

        async def found(**wanted: Any) -> list[str]:
            return [each.fingerprint for each in (await groups.groups(limit=10, **wanted)).groups]

        assert ["fp-1"] == await found(states=[GroupState.ACKNOWLEDGED])
        assert ["fp-2"] == await found(states=[GroupState.OPEN, GroupState.RESOLVED])
        assert ["fp-2"] == await found(queue="billing")
        assert ["fp-2"] == await found(queue="billing.dead")
        assert [] == await found(queue="billing", states=[GroupState.ACKNOWLEDGED])

    # ------------------------------------------------------------------------------------------- people

    @pytest.mark.parametrize("start", list(GroupState))
    @pytest.mark.parametrize("to", list(GroupState))
    async def test_a_group_moves_only_as_the_table_says(
        self, groups: GroupStore, letters: LetterStore, start: GroupState, to: GroupState
    ) -> None:
        await self.die(letters, "a")
        if start is not GroupState.OPEN:
            assert await self.change(groups, to=start) is None
        before = await groups.group("fp-1")

        why = await self.change(groups, to=to, note="because")

        is_legal = to in GROUP_TRANSITIONS[start]
        assert is_legal == (why is None)
        after = await groups.group("fp-1")
        assert after is not None
        if is_legal:
            assert (to, "ann", FAR) == (after[0].work.state, after[0].work.changed_by, after[0].work.changed_at)
            assert (str(to), "ann", "because") == (after[1][-1].action, after[1][-1].actor, after[1][-1].note)
        else:
            assert before == after

    async def test_changes_keep_what_they_do_not_name(self, groups: GroupStore, letters: LetterStore) -> None:
        await self.die(letters, "a")
        await self.change(groups, note="first", assignee="bob")
        await self.change(groups, to=GroupState.IGNORED, ignored=Ignored(until=FAR * 2, more=5))
        await self.change(groups, assignee="")

        work = (await self.only(groups)).work

        assert (GroupState.IGNORED, "first", None) == (work.state, work.note, work.assignee)
        assert Ignored(until=FAR * 2, more=5) == work.ignored
        found = await groups.group("fp-1")
        assert found is not None
        assert ["assigned", "ignored", "assigned"] == [entry.action for entry in found[1]]

    async def test_a_group_that_is_not_there_is_refused_and_the_others_are_changed(
        self, groups: GroupStore, letters: LetterStore
    ) -> None:
        await self.die(letters, "a")
        wanted = GroupChange(fingerprint="fp-1", actor="ann", at=FAR, to=GroupState.ACKNOWLEDGED)

        answers = await groups.change([replace(wanted, fingerprint="nobody"), wanted])

        assert answers[0] is not None
        assert answers[1] is None
        assert GroupState.ACKNOWLEDGED is (await self.only(groups)).work.state

    # ------------------------------------------------------------------------------------------- new failures

    async def test_a_new_failure_reopens_what_was_resolved(self, groups: GroupStore, letters: LetterStore) -> None:
        await self.die(letters, "a", version="1.1")
        await self.change(groups, to=GroupState.RESOLVED, resolved_in="1.2")
        await self.die(letters, "b", version="1.1")
        assert GroupState.RESOLVED is (await self.only(groups)).work.state

        await self.die(letters, "c", version="1.2")

        found = await groups.group("fp-1")
        assert found is not None
        assert GroupState.OPEN is found[0].work.state
        assert ("open", "redrive") == (found[1][-1].action, found[1][-1].actor)
        assert "1.2" in found[1][-1].note

    async def test_an_acknowledged_group_stays_so(self, groups: GroupStore, letters: LetterStore) -> None:
        await self.die(letters, "a")
        await self.change(groups, to=GroupState.ACKNOWLEDGED)
        await self.die(letters, "b")

        assert GroupState.ACKNOWLEDGED is (await self.only(groups)).work.state

    @pytest.mark.parametrize(
        ("ignored", "stays", "reopens"),
        [
            (Ignored(until=DIED_AT + 100), (99,), 100),
            (Ignored(more=2), (1, 2), 3),
            (Ignored(rate=2, per_ms=10), (0, 5, 20, 25), 27),
        ],
    )
    async def test_an_ignored_group_comes_back_past_its_bound(
        self, groups: GroupStore, letters: LetterStore, ignored: Ignored, stays: tuple[int, ...], reopens: int
    ) -> None:
        await self.die(letters, "first", after_ms=-1_000)
        await self.change(groups, to=GroupState.IGNORED, ignored=ignored)
        for after_ms in stays:
            await self.die(letters, f"l{after_ms}", after_ms=after_ms)
            assert GroupState.IGNORED is (await self.only(groups)).work.state

        await self.die(letters, f"l{reopens}", after_ms=reopens)

        assert GroupState.OPEN is (await self.only(groups)).work.state

    async def test_a_group_ignored_without_a_bound_stays_ignored(
        self, groups: GroupStore, letters: LetterStore
    ) -> None:
        await self.die(letters, "a")
        await self.change(groups, to=GroupState.IGNORED)
        for number in range(20):
            await self.die(letters, f"l{number}", after_ms=number)

        assert GroupState.IGNORED is (await self.only(groups)).work.state
