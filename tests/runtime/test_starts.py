"""Starts over a broker that does not count them: taken over from the dead, told, and never charged to the living."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from redrive.core import settlement
from redrive.core.idempotency import Acquired, ClaimState, Duplicate, InProgress
from redrive.core.letters.letter import ReviewState, letter_id
from redrive.core.message import HEADER_LETTER
from redrive.core.ports import End, Outgoing, ReviewChange, Settle, Taken
from redrive.core.settlement import Reason, Settlement
from redrive.runtime.dead_letter_queues import EntryOf
from redrive.runtime.ledger import OrderedLedger
from redrive.runtime.starts import GONE_AFTER_MS, digest_of
from redrive.stores.memory import MemoryClaimStore, MemoryJobStore, MemoryLetterStore
from redrive.testing import FakeClock
from redrive.testing.samples import QUEUE, attempt, letter, message, outgoing
from tests.runtime.connected import ConnectedBroker, lost_starts

LEASE_MS = 30_000
WHY = Reason(code="TEST", text="the test asked for it")


class Shop:
    """A connected broker, its stores, and one ledger on them."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.broker = ConnectedBroker(self.clock)
        self.claims = MemoryClaimStore(self.clock)
        self.letters = MemoryLetterStore()
        self.ledger = self.process()

    def process(self, *, entry_of: EntryOf | None = None) -> OrderedLedger:
        """What a new process starts with."""
        jobs = MemoryJobStore(self.letters, self.clock)
        return OrderedLedger(
            broker=self.broker,
            claims=self.claims,
            letters=self.letters,
            jobs=jobs,
            clock=self.clock,
            entry_of=entry_of,
        )

    async def take(self, worker: str, *, ledger: OrderedLedger | None = None, claims: bool = True) -> list[Taken]:
        return await (ledger or self.ledger).take(
            QUEUE, limit=50, lease_ms=LEASE_MS, worker=worker, wait_ms=0, claims=claims
        )

    async def end(self, taken: Taken, end: Settlement = settlement.ACK, *, number: int = 1) -> bool:
        entry = attempt(number) if isinstance(end, settlement.Retry) else None
        (answer,) = await self.ledger.commit([End(taken=taken, settlement=end, entry=entry)])
        return answer

    async def hand_back(self, taken: list[Taken]) -> None:
        """Let them be looked at again, as the pipeline does with what is in progress elsewhere."""
        for each in taken:
            assert await self.end(each, settlement.Requeue(due_at=self.clock.now(), reason=WHY))

    async def take_after_death(self, dead: str, heir: str) -> list[Taken]:
        """The worker `dead` is killed; what `heir`, another process, has in hand once nobody waits for it any more."""
        await self.broker.lose(dead, stays_away=True)
        self.ledger = self.process()
        taken = await self.take(heir)
        await self.hand_back(taken)
        await self.clock.advance(GONE_AFTER_MS)
        return await self.take(heir)

    def retry(self) -> settlement.Retry:
        return settlement.Retry(due_at=self.clock.now(), reason=WHY)


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    made = Shop()
    await made.ledger.open()
    yield made
    await made.ledger.close()


# ------------------------------------------------------------------------------------------------- with a key


async def test_what_a_dead_worker_had_runs_again_long_before_its_lease_ends(shop: Shop) -> None:
    await shop.ledger.publish([outgoing("m-1")])
    (lost,) = await shop.take("w1")
    started_at = shop.clock.now()

    await shop.broker.lose("w1", stays_away=True)
    (waits,) = await shop.take("w2")
    await shop.hand_back([waits])
    await shop.clock.advance(GONE_AFTER_MS)
    (again,) = await shop.take("w2")

    assert isinstance(waits.verdict, InProgress)
    assert isinstance(again.verdict, Acquired)
    assert 2 == again.verdict.attempts
    assert [(1, "w1")] == lost_starts(again.received)
    assert started_at == again.received.history[-1].at
    assert not await shop.end(lost)
    assert await shop.end(again)


async def test_what_a_dead_worker_had_is_looked_at_again_the_moment_it_is_taken_for_dead(shop: Shop) -> None:
    await shop.ledger.publish([outgoing("m-1")])
    await shop.take("w1")
    await shop.broker.lose("w1", stays_away=True)

    (first,) = await shop.take("w2")
    await shop.hand_back([first])
    await shop.clock.advance(1_000)
    (second,) = await shop.take("w2")

    assert isinstance(first.verdict, InProgress)
    assert isinstance(second.verdict, InProgress)
    assert shop.clock.now() + GONE_AFTER_MS - 1_000 == first.verdict.lease_until
    assert first.verdict.lease_until == second.verdict.lease_until


async def test_a_worker_that_only_lost_its_connection_goes_on_and_nothing_runs_twice(shop: Shop) -> None:
    await shop.ledger.publish([outgoing("m-1")])
    (taken,) = await shop.take("w1")

    await shop.broker.lose("w1", stays_away=False)
    for _ in range(3):
        (copy,) = await shop.take("w2")
        assert isinstance(copy.verdict, InProgress)
        await shop.hand_back([copy])
        await shop.clock.advance(GONE_AFTER_MS)
    still_held = shop.ledger.renew([taken], lease_ms=LEASE_MS)
    ended = await shop.end(taken)
    (copy,) = await shop.take("w2")

    assert [True] == still_held
    assert ended
    assert Duplicate() == copy.verdict
    assert await shop.end(copy)
    assert [] == await shop.take("w2")


async def test_a_worker_away_for_a_moment_is_not_taken_for_dead_later(shop: Shop) -> None:
    await shop.ledger.publish([outgoing("m-1")])
    await shop.take("w1")
    await shop.broker.lose("w1", stays_away=True)
    await shop.hand_back(await shop.take("w2"))

    shop.broker._away.clear()
    await shop.clock.advance(GONE_AFTER_MS)
    await shop.hand_back(await shop.take("w2"))
    shop.broker._away.add("w1")
    (copy,) = await shop.take("w2")

    assert isinstance(copy.verdict, InProgress)


async def test_nobody_asks_who_is_gone_while_nobody_waits(shop: Shop) -> None:
    await shop.ledger.publish([outgoing(f"m-{number}") for number in range(5)])

    for taken in await shop.take("w1"):
        await shop.end(taken)

    assert not shop.broker.asked_for_gone


async def test_a_lost_start_is_told_again_after_a_hand_back_and_goes_into_the_history_of_a_retry(shop: Shop) -> None:
    await shop.ledger.publish([outgoing("m-1")])
    await shop.take("w1")
    (suspect,) = await shop.take_after_death("w1", "w2")

    await shop.hand_back([suspect])
    (again,) = await shop.take("w2")
    await shop.end(again, shop.retry(), number=2)
    (third,) = await shop.take("w2")

    assert [(1, "w1")] == lost_starts(again.received)
    assert ["interrupted", "failed"] == [str(entry.outcome) for entry in third.received.history]
    assert isinstance(third.verdict, Acquired)
    assert 3 == third.verdict.attempts


async def test_starts_lost_one_after_the_other_add_up(shop: Shop) -> None:
    await shop.ledger.publish([outgoing("m-1")])
    await shop.take("w1")

    (second,) = await shop.take_after_death("w1", "w2")
    (third,) = await shop.take_after_death("w2", "w3")

    assert [2, 3] == [each.verdict.attempts for each in (second, third) if isinstance(each.verdict, Acquired)]
    assert (2, "w2") == lost_starts(third.received)[-1]


# ------------------------------------------------------------------------------------------------- without a key


def anonymous(name: str = "x", **changes: Any) -> Outgoing:
    return outgoing(name, **{"key": None, **changes})


async def test_identical_twins_without_a_key_both_run(shop: Shop) -> None:
    await shop.ledger.publish([anonymous(), anonymous()])
    first = await shop.take("w1")
    await shop.ledger.publish([anonymous()])
    (third,) = await shop.take("w2", ledger=shop.process())

    ended = [await shop.end(each) for each in (*first, third)]
    await shop.ledger.publish([anonymous()])
    (fourth,) = await shop.take("w1")

    assert [True] * 3 == ended
    assert [1, 1, 1, 1] == [each.received.starts for each in (*first, third, fourth)]
    assert [None] * 4 == [each.verdict for each in (*first, third, fourth)]


async def test_a_message_without_a_key_counts_its_lost_starts(shop: Shop) -> None:
    await shop.ledger.publish([anonymous()])
    await shop.take("w1")

    (second,) = await shop.take_after_death("w1", "w2")
    (third,) = await shop.take_after_death("w2", "w3")

    assert (2, [(1, "w1")]) == (second.received.starts, lost_starts(second.received))
    assert 3 == third.received.starts
    assert (2, "w2") == lost_starts(third.received)[-1]


async def test_failed_attempts_come_from_the_copy_and_lost_ones_are_added(shop: Shop) -> None:
    await shop.ledger.publish([anonymous()])
    (first,) = await shop.take("w1")
    await shop.end(first, shop.retry(), number=1)
    (second,) = await shop.take("w1")
    (third,) = await shop.take_after_death("w1", "w2")
    await shop.end(third, shop.retry(), number=3)
    (fourth,) = await shop.take("w2")

    assert [1, 2, 3, 4] == [each.received.starts for each in (first, second, third, fourth)]


async def test_a_twin_that_fails_costs_the_other_nothing(shop: Shop) -> None:
    await shop.ledger.publish([anonymous(), anonymous()])
    first, second = await shop.take("w1")

    await shop.end(first, shop.retry(), number=1)
    await shop.end(second, settlement.Requeue(due_at=shop.clock.now(), reason=WHY))
    taken = await shop.take("w1")

    assert [1, 2] == sorted(each.received.starts or 0 for each in taken)


async def test_hand_backs_of_a_message_without_a_key_cost_nothing(shop: Shop) -> None:
    await shop.ledger.publish([anonymous()])

    for _ in range(5):
        (taken,) = await shop.take("w1")
        assert 1 == taken.received.starts
        await shop.hand_back([taken])


async def test_messages_that_differ_in_a_header_are_counted_apart(shop: Shop) -> None:
    await shop.ledger.publish([anonymous(headers={"who": "A"})])
    await shop.take("w1")
    await shop.ledger.publish([anonymous(headers={"who": "B"})])

    taken = {
        each.received.message.headers["who"]: each.received.starts for each in await shop.take_after_death("w1", "w2")
    }

    assert {"A": 2, "B": 1} == taken


async def test_counts_leave_nothing_in_the_store(shop: Shop) -> None:
    await shop.ledger.publish([anonymous() for _ in range(10)])
    for taken in await shop.take("w1"):
        await shop.end(taken)

    await shop.claims.prune(limit=100)

    assert {} == shop.claims._records
    assert {} == shop.ledger._starts._numbers


async def test_keyed_and_other_messages_keep_their_order_in_one_take(shop: Shop) -> None:
    await shop.ledger.publish([outgoing("a"), anonymous("b"), outgoing("c"), anonymous("d")])

    taken = await shop.take("w1")

    assert ["a", "b", "c", "d"] == [each.received.message.id for each in taken]
    assert [True, False, True, False] == [isinstance(each.verdict, Acquired) for each in taken]


async def test_with_idempotency_off_crashes_are_counted_all_the_same(shop: Shop) -> None:
    await shop.ledger.publish([outgoing("m-1")])
    await shop.take("w1", claims=False)
    await shop.broker.lose("w1", stays_away=True)
    other = shop.process()
    await shop.hand_back(await shop.take("w2", ledger=other, claims=False))
    await shop.clock.advance(GONE_AFTER_MS)

    (again,) = await shop.take("w2", ledger=other, claims=False)

    assert (None, 2) == (again.verdict, again.received.starts)


async def test_a_message_without_a_key_whose_connection_is_lost_is_lost(shop: Shop) -> None:
    await shop.ledger.publish([anonymous()])
    (taken,) = await shop.take("w1")

    await shop.broker.lose("w1", stays_away=False)

    assert [False] == shop.ledger.renew([taken], lease_ms=LEASE_MS)


def test_a_digest_does_not_see_what_changes_on_the_way() -> None:
    sent = message("m-1")
    later = replace(
        sent,
        id="other",
        published_at=7,
        headers={"x-death": [{"queue": "q"}], "x-delivery-count": 3, "x-redrive-attempt": 2},
        properties=replace(sent.properties, exchange="", routing_key="orders"),
    )

    assert digest_of(sent) == digest_of(later)
    assert digest_of(sent) != digest_of(replace(sent, body=b"other"))
    assert digest_of(sent) != digest_of(replace(sent, headers={"who": "A"}))


# ------------------------------------------------------------------------------------------------- forged letters


@pytest.mark.parametrize(
    ("state", "message_id", "is_closed"),
    [
        (ReviewState.PENDING, "another", False),
        (ReviewState.REVIEWED, "another", False),
        (ReviewState.PENDING, "m-1", True),
        (ReviewState.REPLAYED, "another", True),
    ],
)
async def test_a_header_closes_only_a_letter_that_was_sent_or_is_of_this_message(
    shop: Shop, state: ReviewState, message_id: str, is_closed: bool
) -> None:
    await shop.letters.put([letter("dl_1", message=message(message_id))])
    for step in (ReviewState.REVIEWED, ReviewState.REPLAYED):
        if state is not ReviewState.PENDING and (await stored(shop)) is not state:
            await shop.letters.review([ReviewChange(letter_id="dl_1", to=step, actor="ann", at=1)])
    await shop.broker.publish([outgoing("m-1", headers={HEADER_LETTER: "dl_1"})])
    (taken,) = await shop.take("w1")

    await shop.ledger.commit([End(taken=taken, settlement=settlement.ACK, closes_letter="dl_1")])

    assert (ReviewState.CLOSED if is_closed else state) is await stored(shop)
    assert [] == await shop.broker.peek(QUEUE, limit=1)


async def stored(shop: Shop) -> ReviewState:
    found = await shop.letters.get("dl_1")
    assert found is not None
    return found[0].state


async def test_a_failed_end_after_the_connection_was_lost_is_counted(shop: Shop) -> None:
    await shop.ledger.publish([outgoing("m-1")])
    (taken,) = await shop.take("w1")
    await shop.broker.lose("w1", stays_away=False)

    ended = await shop.end(taken, shop.retry(), number=1)
    (again,) = await shop.take("w2")

    assert ended
    assert isinstance(again.verdict, Acquired)
    assert 2 == again.verdict.attempts
    assert ClaimState.PROCESSING is (await shop.claims.get(QUEUE, "m-1")).state  # type: ignore[union-attr]
    assert [False] == await shop.broker.settle([Settle(lease=taken.received.lease, settlement=settlement.ACK)])


async def test_a_message_that_kills_every_process_is_counted_though_none_lives_long(shop: Shop) -> None:
    await shop.ledger.publish([anonymous()])
    starts = []
    for number in range(1, 5):
        shop.ledger = shop.process()
        for _ in range(10):
            (taken,) = await shop.take(f"w{number}")
            if taken.verdict is None:
                starts.append(taken.received.starts)
                break
            await shop.hand_back([taken])
            await shop.clock.advance(500)
        await shop.broker.lose(f"w{number}", stays_away=True)

    assert [1, 2, 3, 4] == starts


# ------------------------------------------------------------------------------------------------- remains of the dead


async def dead_and_cut_off(shop: Shop, **changes: Any) -> Taken:
    """A message is dead-lettered; the connection is lost before the broker hears of it, and it comes again."""
    await shop.broker.publish([outgoing("m-1", **changes)])
    (taken,) = await shop.take("w1")
    assert isinstance(taken.verdict, Acquired)
    sent = taken.received.message
    name = letter_id(QUEUE, key="m-1", cycle=0, message_id=sent.id, position="", published_at=sent.published_at)
    await shop.broker.lose("w1", stays_away=False)
    end = End(taken=taken, settlement=settlement.DeadLetter(reason=WHY), letter=letter(name, message=sent))
    assert [True] == await shop.ledger.commit([end])
    return taken


async def test_a_dead_message_that_comes_again_leaves_the_queue_unseen(shop: Shop) -> None:
    await dead_and_cut_off(shop)

    taken = await shop.take("w2")

    assert [] == taken
    assert [0] == [found.leased + found.ready for found in await shop.broker.depths() if found.queue == QUEUE]
    assert 1 == len(await shop.broker.peek("orders.dead", limit=10))
    record = await shop.claims.get(QUEUE, "m-1")
    assert record is not None
    assert ClaimState.DEAD_LETTERED is record.state


async def test_what_its_producer_sends_again_runs(shop: Shop) -> None:
    dead = await dead_and_cut_off(shop)
    await shop.take("w2")
    later = dead.received.message.published_at + 1
    await shop.ledger.publish([outgoing("m-1", published_at=later)])

    (again,) = await shop.take("w2")

    assert isinstance(again.verdict, Acquired)
    assert 1 == again.verdict.attempts


async def test_a_copy_that_names_its_letter_runs(shop: Shop) -> None:
    dead = await dead_and_cut_off(shop)
    await shop.take("w2")
    sent = dead.received.message
    name = letter_id(QUEUE, key="m-1", cycle=1, message_id="m-1", position="", published_at=sent.published_at)
    await shop.letters.put([letter(name, message=sent)])
    await shop.broker.publish([outgoing("m-1", headers={HEADER_LETTER: name})])

    (moved,) = await shop.take("w2")

    assert isinstance(moved.verdict, Acquired)


@pytest.mark.parametrize("is_redelivered", [False, True], ids=["moved by hand", "handed out again"])
async def test_what_the_broker_itself_has_put_away_and_somebody_moved_back_runs(
    shop: Shop, is_redelivered: bool
) -> None:
    shop.ledger = shop.process(entry_of=lambda _: None)
    dead = await dead_and_cut_off(shop)
    if not is_redelivered:
        await shop.take("w2")
        await shop.broker.publish([Outgoing(queue=QUEUE, message=dead.received.message)])
        # The key was dead-lettered once more with the copy that left; its letter is of the cycle before.
        sent = dead.received.message
        name = letter_id(QUEUE, key="m-1", cycle=1, message_id="m-1", position="", published_at=sent.published_at)
        await shop.letters.put([letter(name, message=sent)])

    taken = await shop.take("w3")

    assert is_redelivered == (taken == [])


async def test_a_take_that_is_cancelled_while_it_claims_leaves_no_start_behind(shop: Shop) -> None:
    await shop.ledger.publish([outgoing("m-1")])
    begun, may_go_on = asyncio.Event(), asyncio.Event()
    claim = shop.claims.claim

    async def slow_claim(*arguments: Any, **named: Any) -> Any:
        verdicts = await claim(*arguments, **named)
        begun.set()
        await may_go_on.wait()
        return verdicts

    shop.claims.claim = slow_claim  # type: ignore[method-assign]
    taking = asyncio.create_task(shop.take("w1"))
    await begun.wait()
    taking.cancel()
    await asyncio.sleep(0)
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await taking
    shop.claims.claim = claim  # type: ignore[method-assign]

    (again,) = await shop.take("w2")

    assert isinstance(again.verdict, Acquired)
    assert 1 == again.verdict.attempts
