"""LedgerContract: a decision becomes true as a whole, or not at all, and only for whoever holds the delivery."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from redrive.core import settlement
from redrive.core.idempotency import Acquired, ClaimRecord, ClaimState, Duplicate, InProgress
from redrive.core.letters.letter import AttemptOutcome, Letter, ReviewState, letter_id
from redrive.core.ports import (
    Broker,
    ClaimStore,
    Clock,
    Depth,
    End,
    JobStore,
    Ledger,
    LetterStore,
    Outgoing,
    Published,
    Taken,
)
from redrive.core.settlement import Reason, Settlement
from redrive.core.units import Millis
from redrive.errors import LeaseLostError, UnsupportedError
from redrive.testing.contracts.base import Contract
from redrive.testing.samples import QUEUE, attempt, hard_message, letter, outgoing

WHY = Reason(code="TEST", text="the suite asked for it")
DEAD = f"{QUEUE}.dead"
DAY_MS = 86_400_000
FIRST_DIGEST, OTHER_DIGEST = "a" * 64, "b" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerParts:
    """The ledger under test and the parts it joins, to look at what it did."""

    ledger: Ledger
    broker: Broker
    claims: ClaimStore
    letters: LetterStore
    jobs: JobStore


class LedgerBase(Contract):
    """What the suites of the ledger share: how to make one, and how to bring a message to its end."""

    def make(self, clock: Clock) -> AbstractAsyncContextManager[LedgerParts]:
        """A fresh, empty ledger with its parts, opened."""
        raise AssertionError(f"{type(self).__name__} has to say how to make a ledger on {clock}")

    @pytest_asyncio.fixture
    async def parts(self, clock: Clock) -> AsyncIterator[LedgerParts]:
        async with self.make(clock) as parts:
            yield parts

    @pytest.fixture
    def ledger(self, parts: LedgerParts) -> Ledger:
        return parts.ledger

    async def take(self, ledger: Ledger, *, worker: str = "w1", claims: bool = True, queue: str = QUEUE) -> list[Taken]:
        """Take what can be handed out now."""
        return await ledger.take(
            queue, limit=50, lease_ms=self.lease_ms, worker=worker, wait_ms=self.arrival_ms, claims=claims
        )

    async def take_one(self, ledger: Ledger, *, worker: str = "w1") -> Taken:
        """Take exactly one."""
        (taken,) = await self.take(ledger, worker=worker)
        return taken

    def end(self, taken: Taken, settle: Settlement = settlement.ACK, **changes: Any) -> End:
        """An end for this delivery; a dead letter with its letter."""
        if isinstance(settle, settlement.DeadLetter):
            changes = {"letter": letter_for(taken), **changes}
        return End(taken=taken, settlement=settle, **changes)

    async def kill(self, parts: LedgerParts, *names: str, **changes: Any) -> list[Letter]:
        """Publish these messages and dead-letter them at once."""
        await parts.ledger.publish([outgoing(name, **changes) for name in names])
        taken = await self.take(parts.ledger)
        ends = [self.end(found, settlement.DeadLetter(reason=WHY)) for found in taken]
        assert [True] * len(names) == await parts.ledger.commit(ends)
        return [end.letter for end in ends if end.letter is not None]

    async def record(self, parts: LedgerParts, key: str = "m-1") -> ClaimRecord:
        """The claim's record, which must be there."""
        record = await parts.claims.get(QUEUE, key)
        assert record is not None
        return record

    async def kept(self, parts: LedgerParts, name: str) -> Letter:
        """The letter, which must be there."""
        found = await parts.letters.get(name)
        assert found is not None
        return found[0]

    async def depth(self, parts: LedgerParts, queue: str = QUEUE) -> tuple[int, int, int]:
        """Ready, scheduled and leased messages of a queue."""
        for found in await parts.broker.depths():
            if found.queue == queue:
                return (found.ready, found.scheduled, found.leased)
        return (0, 0, 0)


def letter_for(taken: Taken, **changes: Any) -> Letter:
    """The letter of this delivery."""
    message = taken.received.message
    cycle = taken.verdict.cycle if isinstance(taken.verdict, Acquired) else 0
    name = letter_id(
        QUEUE,
        key=message.key if isinstance(taken.verdict, Acquired) else None,
        cycle=cycle,
        message_id=message.id,
        position=taken.received.position,
    )
    return letter(name, **{"message": message, **changes})


def retry(clock: Clock, delay_ms: Millis = 0) -> settlement.Retry:
    """Due `delay_ms` from now."""
    return settlement.Retry(due_at=clock.now() + delay_ms, reason=WHY)


def requeue(clock: Clock, delay_ms: Millis = 0) -> settlement.Requeue:
    """Due `delay_ms` from now."""
    return settlement.Requeue(due_at=clock.now() + delay_ms, reason=WHY)


def every_end(clock: Clock) -> tuple[Settlement, ...]:
    """One of each kind."""
    return (settlement.ACK, retry(clock), requeue(clock), settlement.DeadLetter(reason=WHY))


class LedgerContract(LedgerBase):
    """Subclass, say how to `make` a ledger, inherit the tests. Redrives are in `ForwardContract`."""

    insert: ClassVar[str] = "INSERT INTO effects VALUES (?)"
    """One effect, in the store's SQL."""

    # ------------------------------------------------------------------------------------------------- publishing

    async def test_what_is_published_is_taken_whole(self, ledger: Ledger) -> None:
        assert [Published()] == await ledger.publish([Outgoing(queue=QUEUE, message=hard_message())])

        taken = await self.take_one(ledger)

        assert hard_message() == taken.received.message

    async def test_a_key_published_once_is_queued_once(self, parts: LedgerParts) -> None:
        once = replace(outgoing(), once=True, digest=FIRST_DIGEST)

        first, second = await parts.ledger.publish([once]), await parts.ledger.publish([once])

        assert [Published()] == first
        assert [(True, False)] == [(answer.duplicate, answer.conflict) for answer in second]
        assert (1, 0, 0) == await self.depth(parts)
        assert (ClaimState.RECEIVED, FIRST_DIGEST) == (
            (await self.record(parts)).state, (await self.record(parts)).digest,
        )  # fmt: skip

    async def test_another_body_under_a_known_key_is_a_conflict_and_not_queued(self, parts: LedgerParts) -> None:
        await parts.ledger.publish([replace(outgoing(), once=True, digest=FIRST_DIGEST)])

        (answer,) = await parts.ledger.publish([replace(outgoing(), once=True, digest=OTHER_DIGEST)])

        assert answer.conflict
        assert (1, 0, 0) == await self.depth(parts)

    async def test_equal_keys_in_one_batch_are_queued_once(self, parts: LedgerParts) -> None:
        first = replace(outgoing(), once=True, digest=FIRST_DIGEST)
        other = replace(first, digest=OTHER_DIGEST)

        answers = await parts.ledger.publish([first, first, other, outgoing("plain"), outgoing("plain")])

        assert Published() == answers[0]
        assert answers[1].duplicate
        assert answers[2].conflict
        assert [Published(), Published()] == answers[3:]
        assert (3, 0, 0) == await self.depth(parts)

    async def test_once_without_a_key_is_always_queued(self, parts: LedgerParts) -> None:
        once = replace(outgoing(key=None), once=True, digest=FIRST_DIGEST)

        assert [Published(), Published()] == await parts.ledger.publish([once, once])

        assert (2, 0, 0) == await self.depth(parts)

    async def test_a_processed_key_is_a_duplicate_and_a_dead_one_starts_a_new_cycle(self, parts: LedgerParts) -> None:
        await parts.ledger.publish([outgoing("done")])
        await parts.ledger.commit([self.end(await self.take_one(parts.ledger))])
        await self.kill(parts, "dead")

        answers = await parts.ledger.publish([replace(outgoing(name), once=True) for name in ("done", "dead")])

        assert [True, False] == [answer.duplicate for answer in answers]
        again = await self.take_one(parts.ledger)
        assert isinstance(again.verdict, Acquired)
        assert (1, 1) == (again.verdict.attempts, again.verdict.cycle)

    async def test_of_many_publishes_of_one_key_at_one_moment_one_runs(self, parts: LedgerParts) -> None:
        once = replace(outgoing(), once=True, digest=FIRST_DIGEST)

        await asyncio.gather(*(parts.ledger.publish([once]) for _ in range(20)))

        taken = await self.take(parts.ledger)
        assert 1 == sum(isinstance(found.verdict, Acquired) for found in taken)
        if parts.ledger.features.atomic:
            assert 1 == len(taken)

    # ------------------------------------------------------------------------------------------------- taking

    async def test_the_verdict_is_none_without_a_key_or_without_idempotency(self, ledger: Ledger) -> None:
        await ledger.publish([outgoing("m-1"), outgoing("m-2", key=None)])
        both = await self.take(ledger)
        await ledger.publish([outgoing("m-3")])
        off = await self.take(ledger, claims=False)

        assert [Acquired, type(None)] == [type(taken.verdict) for taken in both]
        assert [None] == [taken.verdict for taken in off]

    async def test_of_two_copies_of_one_key_one_runs(self, ledger: Ledger) -> None:
        await ledger.publish([outgoing(), outgoing()])

        first, second = await self.take(ledger)
        await ledger.commit([self.end(first)])
        await ledger.publish([outgoing()])
        third = await self.take_one(ledger)

        assert isinstance(first.verdict, Acquired)
        assert isinstance(second.verdict, InProgress)
        assert isinstance(third.verdict, Duplicate)

    async def test_copies_told_in_progress_and_handed_back_cost_no_attempt(
        self, parts: LedgerParts, clock: Clock
    ) -> None:
        await parts.ledger.publish([outgoing(), outgoing()])
        first, second = await self.take(parts.ledger)
        for _ in range(5):
            await parts.ledger.commit([self.end(second, requeue(clock))])
            second = await self.take_one(parts.ledger, worker="w2")
            assert isinstance(second.verdict, InProgress)

        await parts.ledger.commit([self.end(first, retry(clock))])
        again = await self.take_one(parts.ledger)

        assert isinstance(again.verdict, Acquired)
        assert 2 == again.verdict.attempts

    async def test_a_worker_that_died_leaves_a_lost_start(self, ledger: Ledger, clock: Clock) -> None:
        if not ledger.features.leases:
            return
        await ledger.publish([outgoing()])
        await self.take_one(ledger, worker="dead-worker")

        await self.pass_time(clock, self.lease_ms)
        again = await self.take_one(ledger)

        assert isinstance(again.verdict, Acquired)
        assert 2 == again.verdict.attempts
        assert [(AttemptOutcome.INTERRUPTED, "dead-worker")] == [
            (entry.outcome, entry.worker) for entry in again.received.history
        ]

    # ------------------------------------------------------------------------------------------------- ends

    async def test_an_ack_ends_message_and_claim(self, parts: LedgerParts, clock: Clock) -> None:
        await parts.ledger.publish([outgoing()])
        until = clock.now() + DAY_MS

        taken = await self.take_one(parts.ledger)
        assert [True] == await parts.ledger.commit([self.end(taken, claim_expires_at=until)])

        record = await self.record(parts)
        assert (ClaimState.PROCESSED, until) == (record.state, record.expires_at)
        assert (0, 0, 0) == await self.depth(parts)

    async def test_a_retry_comes_when_due_with_its_history_and_the_next_attempt(
        self, parts: LedgerParts, clock: Clock
    ) -> None:
        await parts.ledger.publish([outgoing()])
        for number in (1, 2):
            taken = await self.take_one(parts.ledger)
            end = self.end(taken, retry(clock, 1_000), entry=attempt(number))
            assert [True] == await parts.ledger.commit([end])
            assert ClaimState.FAILED == (await self.record(parts)).state
            await self.pass_time(clock, 1_000)

        third = await self.take_one(parts.ledger)

        assert isinstance(third.verdict, Acquired)
        assert (3, 0) == (third.verdict.attempts, third.verdict.cycle)
        assert (attempt(1), attempt(2)) == third.received.history

    async def test_a_requeue_costs_no_attempt(self, parts: LedgerParts, clock: Clock) -> None:
        await parts.ledger.publish([outgoing()])
        for _ in range(3):
            taken = await self.take_one(parts.ledger)
            assert [True] == await parts.ledger.commit([self.end(taken, requeue(clock))])

        again = await self.take_one(parts.ledger)

        assert isinstance(again.verdict, Acquired)
        assert 1 == again.verdict.attempts
        assert not parts.ledger.features.counts_starts or again.received.starts == 1

    @pytest.mark.parametrize("key", ["m-1", None])
    async def test_a_dead_letter_is_kept_whole_and_ends_message_and_claim(
        self, parts: LedgerParts, clock: Clock, key: str | None
    ) -> None:
        await parts.ledger.publish([Outgoing(queue=QUEUE, message=hard_message("m-1", key=key))])
        taken = await self.take_one(parts.ledger)
        given = letter_for(taken, history=(attempt(1), attempt(2)), attempt_count=2)
        until = clock.now() + DAY_MS

        dead = settlement.DeadLetter(reason=WHY)
        assert [True] == await parts.ledger.commit([self.end(taken, dead, letter=given, claim_expires_at=until)])

        assert given == await self.kept(parts, given.id)
        assert (0, 0, 0) == await self.depth(parts)
        assert (1, 0, 0) == await self.depth(parts, DEAD)
        assert 1 == len(await parts.broker.peek(DEAD, limit=10))
        if key is not None:
            record = await self.record(parts)
            assert (ClaimState.DEAD_LETTERED, until) == (record.state, record.expires_at)

    async def test_two_malformed_messages_never_share_a_letter(self, parts: LedgerParts) -> None:
        letters = await self.kill(parts, "same", "same", key=None, body=b"{")

        assert 2 == len({found.id for found in letters})
        assert (2, 0, 0) == await self.depth(parts, DEAD)

    async def test_the_success_of_a_redriven_copy_closes_its_letter(self, parts: LedgerParts) -> None:
        (dead,) = await self.kill(parts, "m-1")
        await parts.ledger.publish([outgoing()])

        taken = await self.take_one(parts.ledger)
        assert [True] == await parts.ledger.commit([self.end(taken, closes_letter=dead.id)])

        assert ReviewState.CLOSED == (await self.kept(parts, dead.id)).state

    async def test_closing_a_letter_that_is_gone_ends_the_delivery_all_the_same(self, parts: LedgerParts) -> None:
        await parts.ledger.publish([outgoing()])

        taken = await self.take_one(parts.ledger)

        assert [True] == await parts.ledger.commit([self.end(taken, closes_letter="never seen")])
        assert ClaimState.PROCESSED == (await self.record(parts)).state

    async def test_a_batch_of_all_kinds_is_answered_element_by_element(self, parts: LedgerParts, clock: Clock) -> None:
        names = ["acked", "retried", "requeued", "dead"]
        await parts.ledger.publish([outgoing(name) for name in names])
        taken = await self.take(parts.ledger)

        ends = [self.end(found, end) for found, end in zip(taken, every_end(clock), strict=True)]
        answers = await parts.ledger.commit(ends)

        assert [True] * 4 == answers
        states = [(await self.record(parts, name)).state for name in names]
        assert [ClaimState.PROCESSED, ClaimState.FAILED, ClaimState.RECEIVED, ClaimState.DEAD_LETTERED] == states
        assert (2, 0, 0) == await self.depth(parts)

    async def test_no_dead_letter_is_ever_seen_half(self, parts: LedgerParts) -> None:
        names = [f"m-{number}" for number in range(30)]
        await parts.ledger.publish([outgoing(name) for name in names])
        ends = [self.end(taken, settlement.DeadLetter(reason=WHY)) for taken in await self.take(parts.ledger)]
        ids = {end.taken.received.message.id: end.letter.id for end in ends if end.letter is not None}
        committing = asyncio.gather(*(parts.ledger.commit([end]) for end in ends))

        while not committing.done():
            for name in names:
                # What is read first became true last: a dead claim, then, has its letter.
                is_dead = (await self.record(parts, name)).state is ClaimState.DEAD_LETTERED
                has_letter = await parts.letters.get(ids[name]) is not None
                assert has_letter or not is_dead
                if parts.ledger.features.atomic and has_letter:
                    assert (await self.record(parts, name)).state is ClaimState.DEAD_LETTERED
            await asyncio.sleep(0)

        assert [[True]] * 30 == await committing

    # ------------------------------------------------------------------------------------------------- fences

    @pytest.mark.parametrize("key", ["m-1", None])
    @pytest.mark.parametrize("kind", range(4), ids=["ack", "retry", "requeue", "dead letter"])
    async def test_who_lost_the_delivery_changes_nothing(
        self, parts: LedgerParts, clock: Clock, kind: int, key: str | None
    ) -> None:
        if not parts.ledger.features.leases:
            return
        await parts.ledger.publish([outgoing(key=key)])
        lost = await self.take_one(parts.ledger)
        await self.pass_time(clock, self.lease_ms)
        current = await self.take_one(parts.ledger, worker="w2")
        before = await self.seen(parts, key)

        late = self.end(lost, every_end(clock)[kind], entry=attempt())
        answers = await parts.ledger.commit([late])

        assert [False] == answers
        assert before == await self.seen(parts, key)
        assert late.letter is None or await parts.letters.get(late.letter.id) is None
        assert [True] == await parts.ledger.commit([self.end(current)])
        assert (0, 0, 0) == await self.depth(parts)

    async def seen(self, parts: LedgerParts, key: str | None) -> tuple[list[Depth], ClaimRecord | None]:
        """What can be seen from outside."""
        empty = Depth(queue=DEAD, ready=0, scheduled=0, leased=0)
        depths = [found for found in await parts.broker.depths() if found != empty]
        return depths, None if key is None else await parts.claims.get(QUEUE, key)

    async def test_renewing_keeps_lease_and_claim_and_says_which_are_lost(
        self, parts: LedgerParts, clock: Clock
    ) -> None:
        if not parts.ledger.features.leases:
            return
        await parts.ledger.publish([outgoing("lost"), outgoing("kept"), outgoing("kept without a key", key=None)])
        lost, *kept = await self.take(parts.ledger)
        await self.pass_time(clock, self.lease_ms // 2)
        assert [True, True] == await asyncio.to_thread(parts.ledger.renew, kept, lease_ms=self.lease_ms)
        await self.pass_time(clock, self.lease_ms // 2)
        assert ["lost"] == [taken.received.message.id for taken in await self.take(parts.ledger, worker="w2")]

        answers = parts.ledger.renew([lost, *kept], lease_ms=self.lease_ms)

        assert [False, True, True] == answers
        assert [True, True] == await parts.ledger.commit([self.end(taken) for taken in kept])

    async def test_a_delivery_whose_claim_passed_on_is_lost_though_its_lease_holds(
        self, parts: LedgerParts, clock: Clock
    ) -> None:
        if not parts.ledger.features.leases:
            return
        await parts.ledger.publish([outgoing()])
        lost = await self.take_one(parts.ledger)
        parts.broker.renew([lost.received.lease], lease_ms=3 * self.lease_ms)
        await self.pass_time(clock, self.lease_ms)
        (verdict,) = await parts.claims.claim([(QUEUE, "m-1")], lease_ms=10 * self.lease_ms, owner="w2")
        assert isinstance(verdict, Acquired)

        renewed = parts.ledger.renew([lost], lease_ms=self.lease_ms)
        committed = [await parts.ledger.commit([self.end(lost, end)]) for end in every_end(clock)]

        assert [False] == renewed
        assert [[False]] * 4 == committed
        assert (ClaimState.PROCESSING, "w2") == ((await self.record(parts)).state, (await self.record(parts)).owner)
        assert (0, 0, 1) == await self.depth(parts)
        assert (0, 0, 0) == await self.depth(parts, DEAD)
        # Refused, the renewal has not kept the message either.
        await self.pass_time(clock, 2 * self.lease_ms)
        parts.ledger.renew([lost], lease_ms=self.lease_ms)
        assert (1, 0, 0) == await self.depth(parts)

    async def test_an_ended_delivery_is_not_renewed(self, parts: LedgerParts, clock: Clock) -> None:
        for number, end in enumerate(every_end(clock)):
            await parts.ledger.publish([outgoing(f"m-{number}")])
            taken = [found for found in await self.take(parts.ledger) if found.received.message.id == f"m-{number}"]
            await parts.ledger.commit([self.end(found, end) for found in taken])
            assert [False] == parts.ledger.renew(taken, lease_ms=self.lease_ms)

    async def test_empty_batches_do_nothing(self, ledger: Ledger) -> None:
        assert [] == await ledger.publish([])
        assert [] == await ledger.commit([])
        assert [] == ledger.renew([], lease_ms=self.lease_ms)

    # ------------------------------------------------------------------------------------------------- transactions

    async def effects(self, parts: LedgerParts) -> Sequence[Any]:
        """Rows of the table `effects`, written by the tests below where the ledger has transactions."""
        raise AssertionError(f"{type(self).__name__} has to say how to read {parts.ledger.features.name}")

    async def test_an_effect_and_the_end_of_its_message_are_one(self, parts: LedgerParts) -> None:
        await parts.ledger.publish([outgoing()])
        end = self.end(await self.take_one(parts.ledger))
        if not parts.ledger.features.transactions:
            with pytest.raises(UnsupportedError):
                parts.ledger.transaction(end)
            return

        async with parts.ledger.transaction(end) as transaction:
            transaction.execute("CREATE TABLE effects (name TEXT)")
            transaction.execute(self.insert, ("paid",))
            transaction.publish(outgoing("next", queue="billing"))
        await self.settle_committed(parts, end)

        assert ["paid"] == list(await self.effects(parts))
        assert ClaimState.PROCESSED == (await self.record(parts)).state
        assert (0, 0, 0) == await self.depth(parts)
        assert (1, 0, 0) == await self.depth(parts, "billing")

    async def settle_committed(self, parts: LedgerParts, end: End) -> None:
        """Where store and broker are two, the broker is told after the transaction, by a commit of the same end."""
        if not parts.ledger.features.atomic:
            assert [True] == await parts.ledger.commit([end])

    async def test_a_copy_handed_out_after_the_commit_is_a_duplicate(self, parts: LedgerParts, clock: Clock) -> None:
        if not parts.ledger.features.transactions or parts.ledger.features.atomic:
            return
        await parts.ledger.publish([outgoing()])
        taken = await self.take_one(parts.ledger)

        async with parts.ledger.transaction(self.end(taken)) as transaction:
            transaction.execute("CREATE TABLE effects (name TEXT)")
        await self.pass_time(clock, self.lease_ms)
        again = await self.take_one(parts.ledger, worker="w2")

        assert Duplicate() == again.verdict
        assert [True] == await parts.ledger.commit([self.end(again)])
        assert (0, 0, 0) == await self.depth(parts)

    async def test_an_exception_inside_leaves_neither_effect_nor_end(self, parts: LedgerParts) -> None:
        if not parts.ledger.features.transactions:
            return
        await parts.ledger.publish([outgoing("first"), outgoing("second")])
        first, second = await self.take(parts.ledger)
        async with parts.ledger.transaction(self.end(first)) as transaction:
            transaction.execute("CREATE TABLE effects (name TEXT)")

        with pytest.raises(RuntimeError, match="in between"):  # noqa: PT012 - what comes before it is the point
            async with parts.ledger.transaction(self.end(second)) as transaction:
                transaction.execute(self.insert, ("paid",))
                transaction.publish(outgoing("next", queue="billing"))
                raise RuntimeError("in between")

        assert [] == list(await self.effects(parts))
        assert ClaimState.PROCESSING == (await self.record(parts, "second")).state
        assert (0, 0, 0) == await self.depth(parts, "billing")
        assert [True] == await parts.ledger.commit([self.end(second)])

    async def test_a_transaction_after_the_lease_was_lost_is_rolled_back(
        self, parts: LedgerParts, clock: Clock
    ) -> None:
        if not parts.ledger.features.transactions:
            return
        await parts.ledger.publish([outgoing("first")])
        first = self.end(await self.take_one(parts.ledger))
        async with parts.ledger.transaction(first) as transaction:
            transaction.execute("CREATE TABLE effects (name TEXT)")
        await self.settle_committed(parts, first)
        await parts.ledger.publish([outgoing()])
        lost = await self.take_one(parts.ledger)
        await self.pass_time(clock, self.lease_ms)
        current = await self.take_one(parts.ledger, worker="w2")

        with pytest.raises(LeaseLostError):
            async with parts.ledger.transaction(self.end(lost)) as transaction:
                transaction.execute(self.insert, ("paid",))

        assert [] == list(await self.effects(parts))
        assert [True] == await parts.ledger.commit([self.end(current)])
