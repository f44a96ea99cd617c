"""ForwardContract: a redriven letter is sent once, by one job, and stays where it is when it cannot be sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from redrive.core import settlement
from redrive.core.idempotency import Acquired, ClaimState, Duplicate
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.redriven import redriven_message
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.message import HEADER_LETTER, HEADER_REDRIVEN_BATCH, HEADER_REDRIVEN_COUNT
from redrive.core.ports import Clock, Forward, Outgoing, ReviewChange
from redrive.core.redrive import Item, ItemState, Job, JobCounts, JobOptions, JobState
from redrive.errors import LeaseLostError, QueueNotFoundError
from redrive.testing.contracts.ledger import DEAD, LedgerBase, LedgerParts
from redrive.testing.samples import QUEUE, job, outgoing

ALL_ITEMS = 1_000


class ForwardContract(LedgerBase):
    """Subclass, say how to `make` a ledger, inherit the tests."""

    async def started(self, parts: LedgerParts, name: str = "job-1", **changes: Any) -> Job:
        """A job over all open letters of the queue, made, taken over and staged."""
        given = {"selection": Selection(queue=QUEUE, states=OPEN_STATES), "created_at": 1_800_000_000_000, **changes}
        made = await parts.jobs.create(job(name, **given))
        taken = await parts.jobs.acquire(made.id, owner=f"runner of {name}", lease_ms=self.lease_ms)
        assert taken is not None
        while not taken.is_staged:
            taken = await parts.jobs.stage(taken, limit=3)
        return taken

    async def forwards(self, parts: LedgerParts, job: Job, clock: Clock) -> list[Forward]:
        """What is still to be sent for this job."""
        items = await parts.jobs.items(job.id, state=ItemState.PENDING, limit=ALL_ITEMS)
        return [await self.forward(parts, job, item, clock=clock) for item in items]

    async def forward(self, parts: LedgerParts, job: Job, item: Item, *, clock: Clock) -> Forward:
        """One item to carry out."""
        letter = await self.kept(parts, item.letter_id)
        copy = redriven_message(letter, job, now=clock.now())
        return Forward(
            item=item,
            outgoing=Outgoing(queue=job.options.target_queue or letter.queue, message=copy),
            actor=job.actor,
            at=clock.now(),
            keep_attempts=job.options.keep_attempts,
        )

    async def run(self, parts: LedgerParts, job: Job, clock: Clock) -> list[str | None]:
        """Send everything and end the job."""
        answers = await parts.ledger.forward(job, await self.forwards(parts, job, clock))
        assert await parts.jobs.save(replace(job, state=JobState.DONE), lease_ms=0)
        return answers

    async def states(self, parts: LedgerParts, letters: Sequence[Letter]) -> list[ReviewState]:
        """Where the letters stand."""
        return [(await self.kept(parts, letter.id)).state for letter in letters]

    async def job_counts(self, parts: LedgerParts, name: str = "job-1") -> JobCounts:
        """The counts as stored."""
        stored = await parts.jobs.get(name)
        assert stored is not None
        return stored.counts

    # ------------------------------------------------------------------------------------------------- sending

    async def test_a_redriven_letter_is_sent_replayed_and_recorded(self, parts: LedgerParts, clock: Clock) -> None:
        (dead,) = await self.kill(parts, "m-1")
        running = await self.started(parts)

        answers = await self.run(parts, running, clock)

        assert [None] == answers
        assert JobCounts(selected=1, sent=1) == await self.job_counts(parts)
        found = await parts.letters.get(dead.id)
        assert found is not None
        assert ReviewState.REPLAYED == found[0].state
        assert [("ann", "reviewed"), ("ann", "replayed")] == [(entry.actor, entry.action) for entry in found[1]]
        assert ClaimState.RECEIVED == (await self.record(parts)).state
        assert (0, 0, 0) == await self.depth(parts, DEAD)
        taken = await self.take_one(parts.ledger)
        assert "m-1" == taken.received.message.id
        assert isinstance(taken.verdict, Acquired)
        assert (1, 1) == (taken.verdict.attempts, taken.verdict.cycle)
        headers = taken.received.message.headers
        assert (dead.id, "job-1", 1) == (
            headers[HEADER_LETTER], headers[HEADER_REDRIVEN_BATCH], headers[HEADER_REDRIVEN_COUNT],
        )  # fmt: skip

    async def test_letters_are_sent_in_order_of_death(self, parts: LedgerParts, clock: Clock) -> None:
        names = [f"m-{number}" for number in range(8)]
        await self.kill(parts, *names)

        await self.run(parts, await self.started(parts), clock)

        assert names == [taken.received.message.id for taken in await self.take(parts.ledger)]

    async def test_sending_twice_is_sending_once(self, parts: LedgerParts, clock: Clock) -> None:
        await self.kill(parts, "m-1", "m-2")
        running = await self.started(parts)
        batch = await self.forwards(parts, running, clock)

        first = await parts.ledger.forward(running, batch)
        second = await parts.ledger.forward(running, batch)

        assert [None, None] == first == second
        assert (2, 0, 0) == await self.depth(parts)
        assert JobCounts(selected=2, sent=2) == await self.job_counts(parts)

    async def test_a_replay_and_a_new_send_run_again_and_a_further_copy_does_not(
        self, parts: LedgerParts, clock: Clock
    ) -> None:
        await self.kill(parts, "replayed", "sent again")
        running = await self.started(parts, selection=Selection(key="replayed"))
        await self.run(parts, running, clock)
        await parts.ledger.publish([replace(outgoing("sent again"), once=True)])

        taken = await self.take(parts.ledger)
        await parts.ledger.commit([self.end(found) for found in taken])
        await parts.ledger.publish([outgoing("replayed"), outgoing("sent again")])
        copies = await self.take(parts.ledger)

        assert [Acquired, Acquired] == [type(found.verdict) for found in taken]
        assert [Duplicate, Duplicate] == [type(found.verdict) for found in copies]

    async def test_a_replayed_letter_that_dies_again_is_a_new_letter(self, parts: LedgerParts, clock: Clock) -> None:
        (first,) = await self.kill(parts, "m-1")
        await self.run(parts, await self.started(parts), clock)
        taken = await self.take_one(parts.ledger)

        end = self.end(taken, settlement.DeadLetter(reason=first.reason))
        assert [True] == await parts.ledger.commit([end])

        assert end.letter is not None
        assert first.id != end.letter.id
        assert [ReviewState.REPLAYED, ReviewState.PENDING] == await self.states(parts, [first, end.letter])

    async def test_letters_without_a_key_are_sent_too(self, parts: LedgerParts, clock: Clock) -> None:
        await self.kill(parts, "same", "same", key=None)

        assert [None, None] == await self.run(parts, await self.started(parts), clock)

        assert (2, 0, 0) == await self.depth(parts)

    async def test_another_target_queue_gets_the_copies(self, parts: LedgerParts, clock: Clock) -> None:
        await self.kill(parts, "m-1")
        await parts.ledger.publish([outgoing("first", queue="repaired")])
        running = await self.started(parts, options=JobOptions(target_queue="repaired"))

        await self.run(parts, running, clock)

        assert (0, 0, 0) == await self.depth(parts)
        assert (2, 0, 0) == await self.depth(parts, "repaired")

    async def test_force_sends_a_replayed_letter_again(self, parts: LedgerParts, clock: Clock) -> None:
        (dead,) = await self.kill(parts, "m-1", key=None)
        await self.run(parts, await self.started(parts), clock)
        everything: dict[str, Any] = {"selection": Selection(ids=(dead.id,)), "created_at": 1_900_000_000_000}
        refused = await self.started(parts, "job-2", **everything)
        await self.run(parts, refused, clock)

        forced = await self.started(parts, "job-3", **everything, options=JobOptions(force=True))
        await self.run(parts, forced, clock)

        assert JobCounts(selected=1, skipped=1) == await self.job_counts(parts, "job-2")
        assert JobCounts(selected=1, sent=1) == await self.job_counts(parts, "job-3")
        assert (2, 0, 0) == await self.depth(parts)

    # ------------------------------------------------------------------------------------------------- refusing

    async def test_what_a_person_closed_meanwhile_is_not_sent(self, parts: LedgerParts, clock: Clock) -> None:
        closed, fine = await self.kill(parts, "m-1", "m-2")
        running = await self.started(parts)
        batch = await self.forwards(parts, running, clock)
        change = ReviewChange(letter_id=closed.id, to=ReviewState.CLOSED, actor="bob", at=clock.now())
        assert [None] == await parts.letters.review([change])

        answers = await parts.ledger.forward(running, batch)

        assert [True, False] == [bool(why) for why in answers]
        assert [ReviewState.CLOSED, ReviewState.REPLAYED] == await self.states(parts, [closed, fine])
        assert (1, 0, 0) == await self.depth(parts)
        assert JobCounts(selected=2, sent=1, skipped=1) == await self.job_counts(parts)
        (skipped,) = await parts.jobs.items("job-1", state=ItemState.SKIPPED, limit=10)
        assert answers[0] == skipped.why

    async def test_a_stale_runner_sends_nothing(self, parts: LedgerParts, clock: Clock) -> None:
        (dead,) = await self.kill(parts, "m-1")
        stale = await self.started(parts)
        batch = await self.forwards(parts, stale, clock)
        await self.pass_time(clock, self.lease_ms)
        heir = await parts.jobs.acquire(stale.id, owner="r2", lease_ms=self.lease_ms)

        with pytest.raises(LeaseLostError):
            await parts.ledger.forward(stale, batch)

        assert (0, 0, 0) == await self.depth(parts)
        assert [ReviewState.PENDING] == await self.states(parts, [dead])
        assert heir is not None
        assert [None] == await self.run(parts, heir, clock)

    async def test_an_aborted_job_sends_nothing_more(self, parts: LedgerParts, clock: Clock) -> None:
        await self.kill(parts, "m-1")
        running = await self.started(parts)
        batch = await self.forwards(parts, running, clock)
        seen = await parts.jobs.get("job-1")
        assert seen is not None
        await parts.jobs.save(replace(seen, state=JobState.ABORTED), lease_ms=0)

        with pytest.raises(LeaseLostError):
            await parts.ledger.forward(running, batch)

        assert (0, 0, 0) == await self.depth(parts)

    async def test_a_target_that_is_not_there_leaves_the_letters_and_a_resume_sends_the_rest(
        self, parts: LedgerParts, clock: Clock
    ) -> None:
        letters = await self.kill(parts, *(f"m-{number}" for number in range(10)))
        running = await self.started(parts)
        batch = await self.forwards(parts, running, clock)
        await parts.ledger.forward(running, batch[:4])
        lost = [replace(forward, outgoing=replace(forward.outgoing, queue="nowhere")) for forward in batch[4:]]

        with pytest.raises(QueueNotFoundError, match="nowhere"):
            await parts.ledger.forward(running, lost)

        assert JobCounts(selected=10, pending=6, sent=4) == await self.job_counts(parts)
        assert [ReviewState.REPLAYED] * 4 + [ReviewState.PENDING] * 6 == await self.states(parts, letters)
        assert "nowhere" not in {depth.queue for depth in await parts.broker.depths()}
        await parts.jobs.save(replace(running, state=JobState.FAILED, error="nowhere not found"), lease_ms=0)
        resumed = await parts.jobs.acquire("job-1", owner="r2", lease_ms=self.lease_ms)
        assert resumed is not None
        assert [None] * 6 == await self.run(parts, resumed, clock)
        names = [taken.received.message.id for taken in await self.take(parts.ledger)]
        assert [f"m-{number}" for number in range(10)] == names

    async def test_a_double_click_sends_once(self, parts: LedgerParts, clock: Clock) -> None:
        one, two, three = await self.kill(parts, "m-1", "m-2", "m-3")
        clicks: list[dict[str, Any]] = [
            {"selection": Selection(ids=(one.id, two.id)), "request_key": "click"},
            {"selection": Selection(ids=(one.id, two.id))},
        ]
        first, second = await asyncio.gather(
            *(self.started(parts, f"job-{number}", **click) for number, click in enumerate(clicks, start=1))
        )
        third = await self.started(parts, "job-3", selection=Selection(ids=(one.id, one.id, three.id)))

        for running in (first, second, third):
            await self.run(parts, running, clock)
        again = await parts.jobs.create(job("job-4", **clicks[0]))

        assert "job-1" == again.id
        taken = [taken.received.message.id for taken in await self.take(parts.ledger)]
        assert ["m-1", "m-2", "m-3"] == sorted(taken)
        assert JobCounts(selected=2, sent=1, skipped=1) == await self.job_counts(parts, "job-3")

    async def test_redriving_all_leaves_closed_letters_out(self, parts: LedgerParts, clock: Clock) -> None:
        letters = await self.kill(parts, *(f"m-{number}" for number in range(9)))
        await parts.letters.review([
            ReviewChange(letter_id=letter.id, to=ReviewState.CLOSED, actor="bob", at=clock.now())
            for letter in letters[:4]
        ])  # fmt: skip

        answers = await self.run(parts, await self.started(parts), clock)
        chosen = await self.started(
            parts, "job-2", selection=Selection(ids=(letters[0].id,)), created_at=1_900_000_000_000
        )

        assert [None] * 5 == answers
        assert (5, 0, 0) == await self.depth(parts)
        (refused,) = await parts.jobs.items(chosen.id, state=None, limit=5)
        assert ItemState.SKIPPED == refused.state
        assert refused.why
        restore = ReviewChange(letter_id=letters[0].id, to=ReviewState.PENDING, actor="bob", at=clock.now())
        assert [None] == await parts.letters.review([restore])
        assert [None] == await self.run(parts, await self.started(parts, "job-3", created_at=1_900_000_000_001), clock)

    async def test_keeping_attempts_goes_on_counting(self, parts: LedgerParts, clock: Clock) -> None:
        await parts.ledger.publish([outgoing()])
        taken = await self.take_one(parts.ledger)
        end = self.end(taken, settlement.DeadLetter(reason=settlement.Reason(code="X", text="x")))
        assert end.letter is not None
        await parts.ledger.commit([replace(end, letter=replace(end.letter, attempt_count=3))])

        await self.run(parts, await self.started(parts, options=JobOptions(keep_attempts=True)), clock)

        again = await self.take_one(parts.ledger)
        assert isinstance(again.verdict, Acquired)
        assert 4 == again.verdict.attempts

    async def test_an_empty_batch_does_nothing(self, parts: LedgerParts) -> None:
        running = await self.started(parts)

        assert [] == await parts.ledger.forward(running, [])
