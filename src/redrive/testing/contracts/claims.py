"""ClaimStoreContract: of all deliveries of one key, one runs at a time, and none runs again once it is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Final

import pytest
import pytest_asyncio

from redrive.core.idempotency import (
    TRANSITIONS,
    Acquired,
    ClaimEvent,
    ClaimRecord,
    ClaimRef,
    ClaimState,
    Duplicate,
    InProgress,
    LostStart,
    Verdict,
)
from redrive.core.ports import ClaimEnd, ClaimStore, Clock, Published, Registration
from redrive.core.units import Millis
from redrive.testing.clock import FakeClock
from redrive.testing.contracts.base import Contract
from redrive.testing.samples import HARD_NAMES, QUEUE

KEY: Final = "m-1"
DAY_MS: Final = 86_400_000
FIRST_DIGEST, OTHER_DIGEST = "a" * 64, "b" * 64

FINISH_EVENTS: Final[dict[ClaimState, tuple[ClaimEvent, ...]]] = {
    ClaimState.PROCESSED: (ClaimEvent.SUCCEED,),
    ClaimState.FAILED: (ClaimEvent.FAIL,),
    ClaimState.RECEIVED: (ClaimEvent.RELEASE,),
    ClaimState.DEAD_LETTERED: (ClaimEvent.FAIL, ClaimEvent.DEAD_LETTER),
}
"""What finishing a claim in a state means in events; a dead letter passes through FAILED."""


def is_legal_end(state: ClaimState, end: ClaimState) -> bool:
    """Whether the transition table lets a record in `state` end so."""
    events = FINISH_EVENTS[end]
    if state is ClaimState.FAILED and end is ClaimState.DEAD_LETTERED:
        events = events[1:]
    for event in events:
        following = TRANSITIONS[state].get(event)
        if following is None:
            return False
        state = following
    return True


class ClaimStoreContract(Contract):
    """Subclass, say how to `make` a claim store, inherit the tests."""

    def make(self, clock: Clock) -> AbstractAsyncContextManager[ClaimStore]:
        """A fresh, empty store, not yet opened."""
        raise AssertionError(f"{type(self).__name__} has to say how to make a claim store on {clock}")

    @pytest_asyncio.fixture
    async def claims(self, clock: Clock) -> AsyncIterator[ClaimStore]:
        async with self.make(clock) as claims:
            await claims.open()
            yield claims
            await claims.close()

    async def claim(self, claims: ClaimStore, key: str = KEY, *, queue: str = QUEUE, owner: str = "w1") -> Verdict:
        """Claim one key."""
        (verdict,) = await claims.claim([(queue, key)], lease_ms=self.lease_ms, owner=owner)
        return verdict

    async def acquire(self, claims: ClaimStore, key: str = KEY, *, queue: str = QUEUE) -> Acquired:
        """Claim one key that must be free."""
        verdict = await self.claim(claims, key, queue=queue)
        assert isinstance(verdict, Acquired)
        return verdict

    async def finish(
        self, claims: ClaimStore, ref: ClaimRef, state: ClaimState, *, expires_at: int | None = None
    ) -> bool:
        """End one claim."""
        (answer,) = await claims.finish([ClaimEnd(ref=ref, state=state, expires_at=expires_at)])
        return answer

    async def bring_to(self, claims: ClaimStore, state: ClaimState) -> ClaimRef:
        """Bring the record of KEY to `state`; the ref of its last claim."""
        if state is ClaimState.RECEIVED:
            await claims.register([Registration(queue=QUEUE, key=KEY)])
            return ClaimRef(queue=QUEUE, key=KEY, token=0)
        ref = (await self.acquire(claims)).ref
        if state is not ClaimState.PROCESSING:
            assert await self.finish(claims, ref, state)
        return ref

    async def record(self, claims: ClaimStore, key: str = KEY) -> ClaimRecord:
        """The record, which must be there."""
        record = await claims.get(QUEUE, key)
        assert record is not None
        return record

    # ------------------------------------------------------------------------------------------------- claiming

    async def test_the_first_claim_runs_and_the_second_is_told_in_progress(
        self, claims: ClaimStore, clock: Clock
    ) -> None:
        first = await self.claim(claims)
        second = await self.claim(claims, owner="w2")

        assert isinstance(first, Acquired)
        assert (QUEUE, KEY, 1, 0) == (first.ref.queue, first.ref.key, first.attempts, first.cycle)
        assert isinstance(second, InProgress)
        if isinstance(clock, FakeClock):
            assert clock.now() + self.lease_ms == second.lease_until
        record = await self.record(claims)
        assert (ClaimState.PROCESSING, 1, "w1") == (record.state, record.attempts, record.owner)

    async def test_of_fifty_claims_at_one_moment_one_runs(self, claims: ClaimStore) -> None:
        first = await asyncio.gather(*(self.claim(claims, owner=f"w{number}") for number in range(50)))
        (winner,) = [verdict for verdict in first if isinstance(verdict, Acquired)]
        await self.finish(claims, winner.ref, ClaimState.PROCESSED)

        second = await asyncio.gather(*(self.claim(claims, owner=f"w{number}") for number in range(49)))

        assert 49 == sum(isinstance(verdict, InProgress) for verdict in first)
        assert [Duplicate()] * 49 == second
        assert 1 == (await self.record(claims)).attempts

    async def test_being_told_in_progress_costs_no_attempt(self, claims: ClaimStore) -> None:
        winner = await self.acquire(claims)

        for _ in range(20):
            await self.claim(claims, owner="loser")

        await self.finish(claims, winner.ref, ClaimState.FAILED)
        assert 2 == (await self.acquire(claims)).attempts

    async def test_a_claim_whose_lease_ended_is_a_lost_start(self, claims: ClaimStore, clock: Clock) -> None:
        lost = await self.acquire(claims)
        if isinstance(clock, FakeClock):
            await clock.advance(self.lease_ms - 1)
            assert isinstance(await self.claim(claims, owner="w2"), InProgress)
        await self.pass_time(clock, 1 if isinstance(clock, FakeClock) else self.lease_ms)

        again = await self.acquire(claims)

        assert 2 == again.attempts
        assert again.ref.token > lost.ref.token

    async def test_a_crash_after_the_claim_blocks_until_the_lease_ends_and_done_lasts_for_its_retention(
        self, claims: ClaimStore, clock: Clock
    ) -> None:
        if not isinstance(clock, FakeClock):
            return
        start = clock.now()
        await claims.claim([(QUEUE, KEY)], lease_ms=30_000, owner="crashed")

        await clock.advance_to(start + 29_000)
        at_29_s = await self.claim(claims)
        await clock.advance_to(start + 31_000)
        at_31_s = await self.acquire(claims)
        await clock.advance_to(start + 40_000)
        await self.finish(claims, at_31_s.ref, ClaimState.PROCESSED, expires_at=clock.now() + DAY_MS)
        await clock.advance_to(start + 23 * 3_600_000)
        at_23_h = await self.claim(claims)
        await clock.advance_to(start + DAY_MS + 41_000)
        at_24_h = await self.acquire(claims)

        assert isinstance(at_29_s, InProgress)
        assert 2 == at_31_s.attempts
        assert isinstance(at_23_h, Duplicate)
        assert (1, 0) == (at_24_h.attempts, at_24_h.cycle)
        assert at_24_h.ref.token > at_31_s.ref.token

    async def test_attempts_grow_with_each_failure(self, claims: ClaimStore) -> None:
        counts = []
        for _ in range(4):
            claimed = await self.acquire(claims)
            counts.append(claimed.attempts)
            await self.finish(claims, claimed.ref, ClaimState.FAILED)

        assert [1, 2, 3, 4] == counts

    async def test_a_release_costs_no_attempt(self, claims: ClaimStore) -> None:
        await self.finish(claims, (await self.acquire(claims)).ref, ClaimState.RECEIVED)
        first = await self.record(claims)
        await self.finish(claims, (await self.acquire(claims)).ref, ClaimState.FAILED)
        await self.finish(claims, (await self.acquire(claims)).ref, ClaimState.RECEIVED)
        second = await self.record(claims)

        assert (ClaimState.RECEIVED, 0) == (first.state, first.attempts)
        assert (ClaimState.FAILED, 1) == (second.state, second.attempts)
        assert 2 == (await self.acquire(claims)).attempts

    async def test_a_claim_of_an_owner_who_is_gone_is_taken_over_at_once(self, claims: ClaimStore) -> None:
        lost = await self.acquire(claims)

        (of_another,) = await claims.claim([(QUEUE, KEY)], lease_ms=self.lease_ms, owner="w2", gone=["somebody"])
        first, second = await claims.claim([(QUEUE, KEY)] * 2, lease_ms=self.lease_ms, owner="w1", gone=["w1"])

        assert isinstance(of_another, InProgress)
        assert "w1" == of_another.owner
        assert isinstance(first, Acquired)
        assert isinstance(second, InProgress)
        assert 2 == first.attempts
        assert first.ref.token > lost.ref.token
        assert not await self.finish(claims, lost.ref, ClaimState.PROCESSED)
        assert await self.finish(claims, first.ref, ClaimState.PROCESSED)

    async def test_a_lost_start_is_told_until_one_after_it_comes_to_an_end(self, claims: ClaimStore) -> None:
        none = await self.acquire(claims)
        at = (await self.record(claims)).updated_at
        (told,) = await claims.claim([(QUEUE, KEY)], lease_ms=self.lease_ms, owner="w2", gone=["w1"])
        assert isinstance(told, Acquired)
        await self.finish(claims, told.ref, ClaimState.RECEIVED)
        still_told = await self.acquire(claims)
        await self.finish(claims, still_told.ref, ClaimState.FAILED)
        told_no_more = await self.acquire(claims)

        lost = LostStart(worker="w1", at=at)
        assert [None, lost, lost, None] == [each.lost for each in (none, told, still_told, told_no_more)]
        assert [1, 2, 2, 3] == [each.attempts for each in (none, told, still_told, told_no_more)]

    async def test_of_equal_keys_in_one_batch_the_first_wins(self, claims: ClaimStore) -> None:
        batch = [(QUEUE, "a"), (QUEUE, "b"), (QUEUE, "a"), ("other", "a"), (QUEUE, "a")]

        verdicts = await claims.claim(batch, lease_ms=self.lease_ms, owner="w1")

        assert [Acquired, Acquired, InProgress, Acquired, InProgress] == [type(verdict) for verdict in verdicts]

    async def test_one_key_in_two_queues_is_two_keys(self, claims: ClaimStore) -> None:
        for queue in ("billing", "shipping"):
            claimed = await self.acquire(claims, queue=queue)
            assert await self.finish(claims, claimed.ref, ClaimState.PROCESSED)

        assert Duplicate() == await self.claim(claims, queue="billing")
        assert Duplicate() == await self.claim(claims, queue="shipping")

    async def test_keys_that_look_alike_are_different(self, claims: ClaimStore) -> None:
        keys = [*HARD_NAMES, "None", "null", "0", "k" * 10_000, "k" * 9_999]

        verdicts = await claims.claim([(QUEUE, key) for key in keys], lease_ms=self.lease_ms, owner="w1")

        assert [Acquired] * len(keys) == [type(verdict) for verdict in verdicts]
        assert keys == [(await self.record(claims, key)).key for key in keys]

    # ------------------------------------------------------------------------------------------------- states

    @pytest.mark.parametrize("end", FINISH_EVENTS, ids=str)
    @pytest.mark.parametrize("state", ClaimState, ids=str)
    async def test_a_claim_ends_only_as_the_table_allows(
        self, claims: ClaimStore, state: ClaimState, end: ClaimState
    ) -> None:
        ref = await self.bring_to(claims, state)
        before = await self.record(claims)

        answer = await self.finish(claims, ref, end)

        after = await self.record(claims)
        assert is_legal_end(state, end) == answer
        assert (end if answer else before.state) == after.state
        if not answer:
            assert before == after

    @pytest.mark.parametrize(
        ("state", "expected"),
        [
            (ClaimState.RECEIVED, (1, 0)),
            (ClaimState.FAILED, (2, 0)),
            (ClaimState.DEAD_LETTERED, (1, 1)),
            (ClaimState.PROCESSING, InProgress),
            (ClaimState.PROCESSED, Duplicate),
        ],
        ids=str,
    )
    async def test_what_a_claim_is_told_in_each_state(
        self, claims: ClaimStore, state: ClaimState, expected: tuple[int, int] | type[Verdict]
    ) -> None:
        await self.bring_to(claims, state)

        verdict = await self.claim(claims)

        if isinstance(verdict, Acquired):
            assert expected == (verdict.attempts, verdict.cycle)
        else:
            assert expected is type(verdict)

    @pytest.mark.parametrize("end", FINISH_EVENTS, ids=str)
    async def test_a_stale_claim_ends_nothing(self, claims: ClaimStore, clock: Clock, end: ClaimState) -> None:
        lost = await self.acquire(claims)
        await self.pass_time(clock, self.lease_ms)
        current = await self.acquire(claims)
        before = await self.record(claims)

        answer = await self.finish(claims, lost.ref, end)

        assert not answer
        assert before == await self.record(claims)
        assert await self.finish(claims, current.ref, ClaimState.PROCESSED)

    async def test_a_claim_ends_once(self, claims: ClaimStore) -> None:
        ref = (await self.acquire(claims)).ref
        done = ClaimEnd(ref=ref, state=ClaimState.PROCESSED)
        unknown = ClaimEnd(ref=ClaimRef(queue=QUEUE, key="never seen", token=1), state=ClaimState.PROCESSED)

        assert [True, False, False] == await claims.finish([done, unknown, done])

    async def test_the_retention_given_with_the_end_is_kept(self, claims: ClaimStore, clock: Clock) -> None:
        until = clock.now() + DAY_MS
        ref = (await self.acquire(claims)).ref

        await self.finish(claims, ref, ClaimState.PROCESSED, expires_at=until)

        record = await self.record(claims)
        assert (ClaimState.PROCESSED, until) == (record.state, record.expires_at)
        assert record.lease_until is None

    # ------------------------------------------------------------------------------------------------- renewing

    async def test_renewing_keeps_a_claim_and_says_which_are_lost(self, claims: ClaimStore, clock: Clock) -> None:
        lost, kept = (await self.acquire(claims, "lost")).ref, (await self.acquire(claims, "kept")).ref
        await self.pass_time(clock, self.lease_ms // 2)
        assert [True] == claims.renew([kept], lease_ms=self.lease_ms)
        await self.pass_time(clock, self.lease_ms // 2)
        await self.acquire(claims, "lost")

        answers = claims.renew([lost, kept], lease_ms=self.lease_ms)

        assert [False, True] == answers
        assert isinstance(await self.claim(claims, "kept", owner="w2"), InProgress)

    async def test_an_ended_claim_cannot_be_renewed(self, claims: ClaimStore) -> None:
        for number, end in enumerate(FINISH_EVENTS):
            ref = (await self.acquire(claims, f"m-{number}")).ref
            await self.finish(claims, ref, end)
            assert [False] == claims.renew([ref], lease_ms=self.lease_ms)

    async def test_renew_may_be_called_from_another_thread(self, claims: ClaimStore) -> None:
        ref = (await self.acquire(claims)).ref

        assert [True] == await asyncio.to_thread(claims.renew, [ref], lease_ms=self.lease_ms)

    # ------------------------------------------------------------------------------------------------- registering

    async def test_a_key_is_registered_once(self, claims: ClaimStore) -> None:
        given = Registration(queue=QUEUE, key=KEY, digest=FIRST_DIGEST)

        first, second = await claims.register([given]), await claims.register([given])

        assert [Published()] == first
        assert [(True, False)] == [(answer.duplicate, answer.conflict) for answer in second]
        record = await self.record(claims)
        assert (ClaimState.RECEIVED, 0, FIRST_DIGEST) == (record.state, record.attempts, record.digest)

    async def test_another_body_under_a_known_key_is_a_conflict(self, claims: ClaimStore) -> None:
        await claims.register([Registration(queue=QUEUE, key=KEY, digest=FIRST_DIGEST)])

        (answer,) = await claims.register([Registration(queue=QUEUE, key=KEY, digest=OTHER_DIGEST)])

        assert answer.conflict
        assert FIRST_DIGEST == (await self.record(claims)).digest

    async def test_without_a_digest_nothing_conflicts(self, claims: ClaimStore) -> None:
        await claims.register([Registration(queue=QUEUE, key=KEY)])

        (answer,) = await claims.register([Registration(queue=QUEUE, key=KEY, digest=OTHER_DIGEST)])

        assert (True, False) == (answer.duplicate, answer.conflict)

    async def test_equal_keys_in_one_registration_are_registered_once(self, claims: ClaimStore) -> None:
        first = Registration(queue=QUEUE, key=KEY, digest=FIRST_DIGEST)
        other = Registration(queue=QUEUE, key=KEY, digest=OTHER_DIGEST)

        answers = await claims.register([first, first, other])

        assert Published() == answers[0]
        assert answers[1].duplicate
        assert answers[2].conflict

    @pytest.mark.parametrize("state", [ClaimState.PROCESSING, ClaimState.PROCESSED, ClaimState.FAILED], ids=str)
    async def test_a_known_key_is_a_duplicate_and_stays_as_it_is(self, claims: ClaimStore, state: ClaimState) -> None:
        await self.bring_to(claims, state)
        before = await self.record(claims)

        (answer,) = await claims.register([Registration(queue=QUEUE, key=KEY)])

        assert answer.duplicate
        assert before == await self.record(claims)

    async def test_registering_after_a_dead_letter_starts_a_new_cycle(self, claims: ClaimStore) -> None:
        last = await self.bring_to(claims, ClaimState.DEAD_LETTERED)

        (answer,) = await claims.register([Registration(queue=QUEUE, key=KEY, digest=FIRST_DIGEST)])

        record = await self.record(claims)
        assert Published() == answer
        assert (ClaimState.RECEIVED, 0, 1) == (record.state, record.attempts, record.cycle)
        claimed = await self.acquire(claims)
        assert (1, 1) == (claimed.attempts, claimed.cycle)
        assert claimed.ref.token > last.token

    async def test_an_expired_record_is_registered_anew(self, claims: ClaimStore, clock: Clock) -> None:
        ref = (await self.acquire(claims)).ref
        await self.finish(claims, ref, ClaimState.PROCESSED, expires_at=clock.now() + 1_000)
        await self.pass_time(clock, 1_000)

        (answer,) = await claims.register([Registration(queue=QUEUE, key=KEY)])

        assert Published() == answer
        claimed = await self.acquire(claims)
        assert 1 == claimed.attempts
        # Whoever held it before the record expired may still try to end it.
        assert claimed.ref.token > ref.token

    async def test_of_fifty_registrations_at_one_moment_one_is_new(self, claims: ClaimStore) -> None:
        given = Registration(queue=QUEUE, key=KEY, digest=FIRST_DIGEST)

        answers = await asyncio.gather(*(claims.register([given]) for _ in range(50)))

        assert 1 == sum(not answer.duplicate for (answer,) in answers)

    # ------------------------------------------------------------------------------------------------- expiry

    async def test_a_dead_lettered_key_is_ended_by_a_registration_whose_time_is_over(self, claims: ClaimStore) -> None:
        """How `dlq erase` takes a key out of the store; what was processed stays."""
        ends = {"m-dead": ClaimState.DEAD_LETTERED, "m-done": ClaimState.PROCESSED}
        for key, state in ends.items():
            (claimed,) = await claims.claim([(QUEUE, key)], lease_ms=60_000, owner="w1")
            assert isinstance(claimed, Acquired)
            await claims.finish([ClaimEnd(ref=claimed.ref, state=state)])

        answers = await claims.register([Registration(queue=QUEUE, key=key, expires_at=1) for key in ends])
        pruned = await claims.prune(limit=10)

        assert [False, True] == [answer.duplicate for answer in answers]
        assert 1 == pruned
        assert await claims.get(QUEUE, "m-dead") is None
        assert await claims.get(QUEUE, "m-done") is not None

    async def test_an_expired_record_is_as_good_as_none_pruned_or_not(self, claims: ClaimStore, clock: Clock) -> None:
        gone, kept = await self.acquire(claims, "gone"), await self.acquire(claims, "kept")
        await self.finish(claims, gone.ref, ClaimState.PROCESSED, expires_at=clock.now() + 1_000)
        await self.finish(claims, kept.ref, ClaimState.PROCESSED, expires_at=clock.now() + 3_600_000)
        await self.pass_time(clock, 1_000)

        still_stored = await self.record(claims, "gone")
        again = await self.acquire(claims, "gone")

        assert ClaimState.PROCESSED == still_stored.state
        assert (1, 0) == (again.attempts, again.cycle)
        assert again.ref.token > gone.ref.token
        assert Duplicate() == await self.claim(claims, "kept")

    async def test_a_claim_taken_over_an_expired_record_does_not_expire_with_it(
        self, claims: ClaimStore, clock: Clock
    ) -> None:
        first = await self.acquire(claims)
        await self.finish(claims, first.ref, ClaimState.PROCESSED, expires_at=clock.now() + 1_000)
        await self.pass_time(clock, 1_000)
        await self.acquire(claims)

        pruned = await claims.prune(limit=10)

        assert 0 == pruned
        assert isinstance(await self.claim(claims, owner="w2"), InProgress)

    async def test_pruning_takes_expired_records_only_and_no_more_than_asked(
        self, claims: ClaimStore, clock: Clock
    ) -> None:
        ends: list[ClaimEnd] = []
        for number in range(7):
            ref = (await self.acquire(claims, f"m-{number}")).ref
            expires_at: Millis | None = {5: None, 6: clock.now() + DAY_MS}.get(number, clock.now() + 1)
            ends.append(ClaimEnd(ref=ref, state=ClaimState.PROCESSED, expires_at=expires_at))
        await claims.finish(ends)
        await self.pass_time(clock, 1)

        pruned = [await claims.prune(limit=3) for _ in range(3)]

        assert [3, 2, 0] == pruned
        found = [await claims.get(QUEUE, f"m-{number}") is not None for number in range(7)]
        assert [False] * 5 + [True] * 2 == found

    async def test_an_unknown_key_has_no_record(self, claims: ClaimStore) -> None:
        assert await claims.get(QUEUE, "never seen") is None

    async def test_empty_batches_do_nothing(self, claims: ClaimStore) -> None:
        assert [] == await claims.register([])
        assert [] == await claims.claim([], lease_ms=self.lease_ms, owner="w1")
        assert [] == await claims.finish([])
        assert [] == claims.renew([], lease_ms=self.lease_ms)
