"""JobStoreContract: a redrive job is stored before it starts, run by one at a time, and goes on where it stopped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio

from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.ports import Clock, JobStore, LetterStore, ReviewChange
from redrive.core.redrive import ItemState, Job, JobCounts, JobOptions, JobState, Outcomes
from redrive.core.refusals import WAIVABLE
from redrive.errors import LeaseLostError
from redrive.testing.clock import FAKE_EPOCH
from redrive.testing.contracts.base import Contract
from redrive.testing.samples import QUEUE, hard_letter, job, letter, message

OVER = (JobState.DONE, JobState.ABORTED, JobState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobParts:
    """The job store under test and the letters it works on."""

    jobs: JobStore
    letters: LetterStore


class JobStoreContract(Contract):
    """Subclass, say how to `make` a job store, inherit the tests."""

    def make(self, clock: Clock) -> AbstractAsyncContextManager[JobParts]:
        """A fresh, empty store, opened, with its letters."""
        raise AssertionError(f"{type(self).__name__} has to say how to make a job store on {clock}")

    @pytest_asyncio.fixture
    async def parts(self, clock: Clock) -> AsyncIterator[JobParts]:
        async with self.make(clock) as parts:
            yield parts

    @pytest.fixture
    def jobs(self, parts: JobParts) -> JobStore:
        return parts.jobs

    @pytest.fixture
    def letters(self, parts: JobParts) -> LetterStore:
        return parts.letters

    async def acquire(self, jobs: JobStore, job_id: str | None = "job-1", *, owner: str = "r1") -> Job:
        """Take over a job that must be free."""
        taken = await jobs.acquire(job_id, owner=owner, lease_ms=self.lease_ms)
        assert taken is not None
        return taken

    async def started(self, jobs: JobStore, **changes: Any) -> Job:
        """A job made and taken over."""
        made = await jobs.create(job(**changes))
        return await self.acquire(jobs, made.id)

    async def holder(self, letters: LetterStore, letter_id: str) -> str | None:
        """The job that holds this letter."""
        found = await letters.get(letter_id)
        assert found is not None
        return found[0].outstanding_job

    async def put(self, letters: LetterStore, count: int, *, first: int = 0) -> list[str]:
        """So many letters, each dead a little later than the one before."""
        names = [f"dl_{number:03}" for number in range(first, first + count)]
        died_at = FAKE_EPOCH - 90_000 + first
        await letters.put([letter(name, died_at=died_at + place) for place, name in enumerate(names)])
        return names

    # ------------------------------------------------------------------------------------------------- keeping

    async def test_a_job_comes_back_as_it_was_made(self, jobs: JobStore) -> None:
        given = job(
            selection=Selection(
                ids=("a", "b"), queue=QUEUE, states=OPEN_STATES, reason_code="R", error_type="T", error_code="C",
                fingerprint="f", tenant="t", key="k", message_type="m", since=1, until=2, text="x%",
            ),
            options=JobOptions(limit=7, rate_per_s=0.5, keep_attempts=True, keep_ttl=True, target_queue="other",
                               force=True, max_redrives=9, even_if=WAIVABLE),
            note="after the fix", request_key="r-1",
        )  # fmt: skip

        made = await jobs.create(given)

        assert given == made
        assert given == await jobs.get(given.id)

    async def test_one_request_key_makes_one_job(self, jobs: JobStore) -> None:
        made = await asyncio.gather(*(jobs.create(job(f"job-{number}", request_key="click-1")) for number in range(20)))

        assert 1 == len({found.id for found in made})
        assert 1 == len(await jobs.list())

    async def test_jobs_without_a_request_key_are_many(self, jobs: JobStore) -> None:
        for number in range(3):
            await jobs.create(job(f"job-{number}", created_at=FAKE_EPOCH + number))

        assert ["job-2", "job-1", "job-0"] == [found.id for found in await jobs.list()]
        assert ["job-2", "job-1"] == [found.id for found in await jobs.list(limit=2)]

    async def test_an_unknown_id_is_no_job(self, jobs: JobStore) -> None:
        assert await jobs.get("never seen") is None
        assert [] == await jobs.items("never seen", state=None, limit=10)
        assert await jobs.acquire("never seen", owner="r1", lease_ms=self.lease_ms) is None

    # ------------------------------------------------------------------------------------------------- one runner

    async def test_a_job_taken_over_runs_and_belongs_to_one(self, jobs: JobStore) -> None:
        made = await jobs.create(job())

        taken = await self.acquire(jobs)
        again = await jobs.acquire("job-1", owner="r2", lease_ms=self.lease_ms)

        assert (JobState.RUNNING, "r1") == (taken.state, taken.owner)
        assert taken.token > made.token
        assert again is None
        assert await jobs.acquire(None, owner="r2", lease_ms=self.lease_ms) is None

    async def test_of_many_runners_at_one_moment_one_gets_the_job(self, jobs: JobStore) -> None:
        await jobs.create(job())

        taken = await asyncio.gather(
            *(jobs.acquire(None, owner=f"r{number}", lease_ms=self.lease_ms) for number in range(20))
        )

        assert 1 == sum(found is not None for found in taken)

    async def test_a_job_whose_runner_died_is_taken_over_after_its_lease(self, jobs: JobStore, clock: Clock) -> None:
        await jobs.create(job())
        dead = await self.acquire(jobs)
        await self.pass_time(clock, self.lease_ms)

        heir = await self.acquire(jobs, None, owner="r2")

        assert ("job-1", "r2") == (heir.id, heir.owner)
        assert heir.token > dead.token
        assert not await jobs.save(replace(dead, state=JobState.DONE), lease_ms=0)
        assert not await jobs.record(dead, [])

    async def test_saving_renews_the_lease(self, jobs: JobStore, clock: Clock) -> None:
        running = await self.started(jobs)
        await self.pass_time(clock, self.lease_ms // 2)
        assert await jobs.save(running, lease_ms=self.lease_ms)
        await self.pass_time(clock, self.lease_ms // 2)

        assert await jobs.acquire("job-1", owner="r2", lease_ms=self.lease_ms) is None

    async def test_a_lease_given_up_lets_the_next_runner_in_at_once(self, jobs: JobStore) -> None:
        running = await self.started(jobs)

        assert await jobs.save(running, lease_ms=0)

        assert "r2" == (await self.acquire(jobs, None, owner="r2")).owner

    async def test_the_oldest_waiting_job_comes_first(self, jobs: JobStore) -> None:
        for number in (2, 1, 3):
            await jobs.create(job(f"job-{number}", created_at=FAKE_EPOCH + number))

        taken = [(await self.acquire(jobs, None)).id for _ in range(3)]

        assert ["job-1", "job-2", "job-3"] == taken
        assert await jobs.acquire(None, owner="r1", lease_ms=self.lease_ms) is None

    @pytest.mark.parametrize("state", OVER, ids=str)
    async def test_a_job_that_is_over_waits_for_nobody(self, jobs: JobStore, state: JobState) -> None:
        running = await self.started(jobs)

        assert await jobs.save(replace(running, state=state, error="why"), lease_ms=self.lease_ms)

        ended = await jobs.get("job-1")
        assert ended is not None
        assert (state, "why") == (ended.state, ended.error)
        assert await jobs.acquire(None, owner="r2", lease_ms=self.lease_ms) is None
        resumed = await jobs.acquire("job-1", owner="r2", lease_ms=self.lease_ms)
        assert (state is JobState.DONE) == (resumed is None)
        assert resumed is None or resumed.state is JobState.RUNNING

    async def test_a_person_may_abort_and_the_runner_is_told(self, jobs: JobStore, letters: LetterStore) -> None:
        (name,) = await self.put(letters, 1)
        running = await jobs.stage(await self.started(jobs), limit=10)
        seen = await jobs.get("job-1")
        assert seen is not None

        assert await jobs.save(replace(seen, state=JobState.ABORTED), lease_ms=0)

        assert not await jobs.save(running, lease_ms=self.lease_ms)
        (item,) = await jobs.items("job-1", state=None, limit=10)
        assert not await jobs.record(running, [replace(item, state=ItemState.SENT)])
        aborted = await jobs.get("job-1")
        assert aborted is not None
        assert JobState.ABORTED == aborted.state
        assert await self.holder(letters, name) is None

    # ------------------------------------------------------------------------------------------------- staging

    async def test_staging_copies_the_selection_in_order_of_death(self, jobs: JobStore, letters: LetterStore) -> None:
        await letters.put([letter(name, died_at=FAKE_EPOCH - ms) for name, ms in (("c", 1), ("a", 300), ("b", 20))])
        await letters.put([letter("elsewhere", queue="billing", dead_letter_queue="billing.dead")])

        staged = await jobs.stage(await self.started(jobs), limit=10)

        items = await jobs.items("job-1", state=None, limit=10)
        assert [(0, "a"), (1, "b"), (2, "c")] == [(item.position, item.letter_id) for item in items]
        assert {ItemState.PENDING} == {item.state for item in items}
        assert staged.is_staged
        assert JobCounts(selected=3, pending=3) == staged.counts
        assert "job-1" == await self.holder(letters, "a")
        assert await self.holder(letters, "elsewhere") is None

    async def test_staging_goes_on_where_it_stopped_whoever_goes_on(
        self, jobs: JobStore, letters: LetterStore, clock: Clock
    ) -> None:
        names = await self.put(letters, 7)
        first = await jobs.stage(await self.started(jobs), limit=3)
        await self.pass_time(clock, self.lease_ms)
        running = await self.acquire(jobs, None, owner="r2")

        while not running.is_staged:
            running = await jobs.stage(running, limit=3)

        assert not first.is_staged
        assert names == [item.letter_id for item in await jobs.items("job-1", state=None, limit=10)]
        stored = await jobs.get("job-1")
        assert stored is not None
        assert (True, JobCounts(selected=7, pending=7)) == (stored.is_staged, stored.counts)

    async def test_what_died_after_the_job_was_made_is_not_part_of_it(
        self, jobs: JobStore, letters: LetterStore
    ) -> None:
        names = await self.put(letters, 3)
        running = await self.started(jobs)
        await letters.put([letter("later", died_at=running.created_at + 1)])

        running = await jobs.stage(running, limit=2)
        await letters.put([letter("later still", died_at=running.created_at + 2)])
        while not running.is_staged:
            running = await jobs.stage(running, limit=2)

        assert names == [item.letter_id for item in await jobs.items("job-1", state=None, limit=10)]

    async def test_a_letter_held_by_another_job_is_skipped_and_says_by_which(
        self, jobs: JobStore, letters: LetterStore
    ) -> None:
        await self.put(letters, 3)
        await jobs.stage(await self.started(jobs, selection=Selection(ids=("dl_000", "dl_001"))), limit=10)
        second = await self.started(jobs, name="job-2", selection=Selection(ids=("dl_000", "dl_000", "dl_002")))

        second = await jobs.stage(second, limit=10)

        items = await jobs.items("job-2", state=None, limit=10)
        assert [("dl_000", ItemState.SKIPPED), ("dl_002", ItemState.PENDING)] == [
            (item.letter_id, item.state) for item in items
        ]
        assert "job-1" in (items[0].why or "")
        assert JobCounts(selected=2, pending=1, skipped=1) == second.counts
        assert "job-1" == await self.holder(letters, "dl_000")

    async def test_a_letter_that_may_not_be_sent_is_skipped_with_the_reason(
        self, jobs: JobStore, letters: LetterStore
    ) -> None:
        await letters.put([letter("closed", died_at=1), letter("often", died_at=2, redrive_count=3), letter("fine")])
        await letters.review(
            [
                ReviewChange(letter_id="closed", to=state, actor="ann", at=2)
                for state in (ReviewState.REVIEWED, ReviewState.REPLAYED, ReviewState.CLOSED)
            ]
        )

        await jobs.stage(await self.started(jobs), limit=10)

        items = await jobs.items("job-1", state=None, limit=10)
        assert [("closed", True), ("often", True), ("fine", False)] == [
            (item.letter_id, bool(item.why)) for item in items
        ]
        assert await self.holder(letters, "often") is None

    async def test_a_letter_that_a_job_holds_is_not_pruned(self, jobs: JobStore, letters: LetterStore) -> None:
        await self.put(letters, 3)
        await jobs.stage(await self.started(jobs, selection=Selection(ids=("dl_000",))), limit=10)

        gone = await letters.prune(now=0, limit=10, selection=Selection())

        assert 2 == gone
        assert "job-1" == await self.holder(letters, "dl_000")

    async def test_force_takes_letters_redriven_often(self, jobs: JobStore, letters: LetterStore) -> None:
        await letters.put([hard_letter(), letter("often", redrive_count=50)])

        staged = await jobs.stage(await self.started(jobs, options=JobOptions(force=True)), limit=10)

        assert JobCounts(selected=2, pending=2) == staged.counts

    async def test_a_limit_takes_the_oldest(self, jobs: JobStore, letters: LetterStore) -> None:
        names = await self.put(letters, 9)
        running = await self.started(jobs, options=JobOptions(limit=5))

        while not running.is_staged:
            running = await jobs.stage(running, limit=2)

        assert names[:5] == [item.letter_id for item in await jobs.items("job-1", state=None, limit=10)]

    async def test_a_selection_of_nothing_is_staged_at_once(self, jobs: JobStore) -> None:
        staged = await jobs.stage(await self.started(jobs), limit=10)

        assert (True, JobCounts()) == (staged.is_staged, staged.counts)

    async def test_a_stale_runner_stages_nothing(self, jobs: JobStore, letters: LetterStore, clock: Clock) -> None:
        (name,) = await self.put(letters, 1)
        stale = await self.started(jobs)
        await self.pass_time(clock, self.lease_ms)
        await self.acquire(jobs, None, owner="r2")

        with contextlib.suppress(LeaseLostError):
            await jobs.stage(stale, limit=10)

        assert [] == await jobs.items("job-1", state=None, limit=10)
        assert await self.holder(letters, name) is None

    # ------------------------------------------------------------------------------------------------- order of a key

    async def put_of_keys(self, letters: LetterStore, keys: str, *, queue: str = QUEUE) -> None:
        """A letter for each of these one-letter keys ("-": none), dead one after the other: dl_000, dl_001, …"""
        await letters.put(
            [
                letter(
                    f"dl_{queue[0]}{place:02}", died_at=FAKE_EPOCH - 90_000 + place, queue=queue,
                    message=message(f"m-{place}", key=None if key == "-" else key),
                )
                for place, key in enumerate(keys)
            ]
        )  # fmt: skip

    async def test_a_letter_overtakes_the_first_open_one_of_its_key(self, letters: LetterStore) -> None:
        await self.put_of_keys(letters, "ab-ab-a")
        await self.put_of_keys(letters, "aaa", queue="billing")
        names = [f"dl_o{place:02}" for place in range(7)]

        found = await letters.earlier([*names, "never seen"], job_id=None)

        assert {"dl_o03": "dl_o00", "dl_o04": "dl_o01", "dl_o06": "dl_o00"} == found
        assert {} == await letters.earlier([], job_id=None)

    async def test_a_letter_that_is_sent_or_closed_holds_nobody_up(self, letters: LetterStore) -> None:
        await self.put_of_keys(letters, "aaaa")
        for name, state in (("dl_o00", ReviewState.CLOSED), ("dl_o01", ReviewState.REPLAYED)):
            assert [None] == await letters.review([ReviewChange(letter_id=name, to=state, actor="ann", at=1)])
        assert [None] == await letters.review(
            [ReviewChange(letter_id="dl_o02", to=ReviewState.REVIEWED, actor="ann", at=1)]
        )

        assert {"dl_o03": "dl_o02"} == await letters.earlier(["dl_o01", "dl_o02", "dl_o03"], job_id=None)

    async def test_what_the_job_holds_goes_before_and_what_another_holds_does_not(
        self, jobs: JobStore, letters: LetterStore
    ) -> None:
        await self.put_of_keys(letters, "aaa")
        await jobs.stage(await self.started(jobs, selection=Selection(ids=("dl_o00", "dl_o02"))), limit=10)

        assert {"dl_o02": "dl_o01"} == await letters.earlier(["dl_o00", "dl_o01", "dl_o02"], job_id="job-1")
        assert {"dl_o02": "dl_o00"} == await letters.earlier(["dl_o02"], job_id="job-2")

    async def test_of_letters_that_died_at_one_moment_the_first_stored_is_the_first(self, letters: LetterStore) -> None:
        given = [letter(f"dl_{name}", message=message(name, key="k\x00é\ud800")) for name in "cab"]
        await letters.put(given)

        found = await letters.earlier(["dl_a", "dl_b", "dl_c"], job_id=None)

        assert {"dl_a": "dl_c", "dl_b": "dl_c"} == found

    # ------------------------------------------------------------------------------------------------- items

    async def test_items_are_listed_by_position_and_state(self, jobs: JobStore, letters: LetterStore) -> None:
        await self.put(letters, 6)
        running = await jobs.stage(await self.started(jobs), limit=10)
        items = await jobs.items("job-1", state=None, limit=10)
        await jobs.record(running, [replace(items[1], state=ItemState.SENT)])

        assert [2, 3] == [item.position for item in await jobs.items("job-1", state=None, limit=2, after=1)]
        pending = await jobs.items("job-1", state=ItemState.PENDING, limit=3)
        assert [0, 2, 3] == [item.position for item in pending]
        assert [1] == [item.position for item in await jobs.items("job-1", state=ItemState.SENT, limit=3)]
        assert [] == await jobs.items("job-1", state=None, limit=3, after=5)

    async def test_recording_moves_pending_items_once_and_frees_their_letters(
        self, jobs: JobStore, letters: LetterStore
    ) -> None:
        await self.put(letters, 3)
        running = await jobs.stage(await self.started(jobs), limit=10)
        sent, skipped, _ = await jobs.items("job-1", state=None, limit=10)

        moved = [replace(sent, state=ItemState.SENT), replace(skipped, state=ItemState.SKIPPED, why="it is closed")]
        assert await jobs.record(running, moved)
        assert await jobs.record(running, [replace(sent, state=ItemState.SKIPPED, why="told again")])

        items = await jobs.items("job-1", state=None, limit=10)
        assert [("sent", None), ("skipped", "it is closed"), ("pending", None)] == [
            (str(item.state), item.why) for item in items
        ]
        stored = await jobs.get("job-1")
        assert stored is not None
        assert JobCounts(selected=3, pending=1, sent=1, skipped=1) == stored.counts
        assert [None, None, "job-1"] == [await self.holder(letters, item.letter_id) for item in items]

    @pytest.mark.parametrize("state", OVER, ids=str)
    async def test_a_job_that_ended_holds_no_letter(
        self, jobs: JobStore, letters: LetterStore, state: JobState
    ) -> None:
        names = await self.put(letters, 3)
        running = await jobs.stage(await self.started(jobs), limit=10)

        await jobs.save(replace(running, state=state), lease_ms=0)

        assert [None] * 3 == [await self.holder(letters, name) for name in names]
        other = await jobs.stage(await self.started(jobs, name="job-2"), limit=10)
        assert JobCounts(selected=3, pending=3) == other.counts

    async def test_a_resumed_job_holds_its_pending_letters_again(self, jobs: JobStore, letters: LetterStore) -> None:
        names = await self.put(letters, 3)
        running = await jobs.stage(await self.started(jobs), limit=10)
        first, *_ = await jobs.items("job-1", state=None, limit=1)
        await jobs.record(running, [replace(first, state=ItemState.SENT)])
        await jobs.save(replace(running, state=JobState.FAILED), lease_ms=0)

        resumed = await self.acquire(jobs)

        assert [None, "job-1", "job-1"] == [await self.holder(letters, name) for name in names]
        assert JobCounts(selected=3, pending=2, sent=1) == resumed.counts

    async def test_a_letter_another_job_took_meanwhile_stays_with_it(
        self, jobs: JobStore, letters: LetterStore
    ) -> None:
        (name,) = await self.put(letters, 1)
        first = await jobs.stage(await self.started(jobs), limit=10)
        await jobs.save(replace(first, state=JobState.ABORTED), lease_ms=0)
        await jobs.stage(await self.started(jobs, name="job-2"), limit=10)

        await self.acquire(jobs)

        assert "job-2" == await self.holder(letters, name)

    # ------------------------------------------------------------------------------- paused, progress, outcomes

    async def test_what_a_runner_keeps_is_there_for_the_next(self, jobs: JobStore, letters: LetterStore) -> None:
        await letters.put([letter("a")])
        await jobs.create(job())
        taken = await self.acquire(jobs)
        assert await jobs.save(replace(taken, progress='{"a": [1, "\\u0000 界"]}'), lease_ms=self.lease_ms)
        staged = await jobs.stage(replace(taken, progress=None), limit=10)
        assert staged.progress == '{"a": [1, "\\u0000 界"]}'
        assert await jobs.save(replace(staged, state=JobState.ABORTED), lease_ms=0)

        again = await self.acquire(jobs, owner="r2")

        assert '{"a": [1, "\\u0000 界"]}' == again.progress

    async def test_a_paused_job_keeps_its_letters_and_waits_for_a_person(
        self, jobs: JobStore, letters: LetterStore
    ) -> None:
        await letters.put([letter("a"), letter("b")])
        await jobs.create(job())
        staged = await jobs.stage(await self.acquire(jobs), limit=10)

        assert await jobs.save(replace(staged, state=JobState.PAUSED, error="paused by ann"), lease_ms=0)

        assert not await jobs.save(staged, lease_ms=self.lease_ms)
        assert await jobs.acquire(None, owner="r2", lease_ms=self.lease_ms) is None
        assert ["job-1", "job-1"] == [
            each.outstanding_job for each in (await letters.find(Selection(), limit=9)).letters
        ]
        other = await jobs.create(job("job-2"))
        skipped = await jobs.stage(await self.acquire(jobs, other.id), limit=10)
        assert 2 == skipped.counts.skipped
        resumed = await self.acquire(jobs, owner="r2")
        assert (JobState.RUNNING, 2, None) == (resumed.state, resumed.counts.pending, resumed.error)

    async def test_a_paused_job_that_is_aborted_frees_its_letters(self, jobs: JobStore, letters: LetterStore) -> None:
        await letters.put([letter("a")])
        await jobs.create(job())
        staged = await jobs.stage(await self.acquire(jobs), limit=10)
        assert await jobs.save(replace(staged, state=JobState.PAUSED), lease_ms=0)
        paused = await jobs.get("job-1")
        assert paused is not None

        assert await jobs.save(replace(paused, state=JobState.ABORTED), lease_ms=0)

        assert [None] == [each.outstanding_job for each in (await letters.find(Selection(), limit=9)).letters]

    async def test_what_became_of_sent_letters_is_told(self, jobs: JobStore, letters: LetterStore) -> None:
        names = ("a", "b", "c", "d")
        await letters.put([letter(name, died_at=FAKE_EPOCH - 10 + at) for at, name in enumerate(names)])
        await jobs.create(job(created_at=FAKE_EPOCH))
        staged = await jobs.stage(await self.acquire(jobs), limit=10)
        items = await jobs.items("job-1", state=None, limit=10)
        assert await jobs.record(staged, [replace(item, state=ItemState.SENT) for item in items[:3]])
        for name, state in (("a", ReviewState.CLOSED), ("b", ReviewState.REPLAYED), ("c", ReviewState.REPLAYED)):
            change = ReviewChange(letter_id=name, to=state, actor="redrive", at=FAKE_EPOCH)
            assert await letters.review([change]) == [None]
        await letters.put(
            [
                letter("b2", died_at=FAKE_EPOCH + 5, previous="b"),
                letter("x2", died_at=FAKE_EPOCH + 5, previous="another"),
                letter("c1", died_at=FAKE_EPOCH - 5, previous="c"),
            ]
        )

        whole = await jobs.outcomes("job-1")
        some = await jobs.outcomes("job-1", positions=[1, 2])
        nobody = await jobs.outcomes("never made")

        assert Outcomes(sent=3, succeeded=1, failed_again=1) == whole
        assert Outcomes(sent=2, succeeded=0, failed_again=1) == some
        assert Outcomes() == nobody
