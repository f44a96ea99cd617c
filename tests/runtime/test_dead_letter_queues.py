"""Entries of dead letters in a broker's own queue: dropped once their letters are gone, if not at once then later."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from redrive.brokers.memory import MemoryBroker
from redrive.core import settlement
from redrive.core.letters.letter import ReviewState
from redrive.core.ports import Received, ReviewChange, Settle
from redrive.core.settlement import Reason
from redrive.runtime.dead_letter_queues import MAX_LOOKS, SWEEP_EVERY_MS, TRIM_EVERY_MS, DeadLetterQueues
from redrive.stores.memory import MemoryLetterStore
from redrive.testing.clock import FakeClock
from redrive.testing.samples import letter

DEAD = "orders.dead"
BACK = Reason(code="TEST", text="only looked at")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def broker(clock: FakeClock) -> AsyncIterator[MemoryBroker]:
    broker = MemoryBroker(clock)
    await broker.open()
    yield broker
    await broker.close()


async def in_somebodys_hands(broker: MemoryBroker) -> list[Received]:
    return await broker.receive(DEAD, limit=10, lease_ms=60_000, worker="other", wait_ms=0)


async def put_back(broker: MemoryBroker, clock: FakeClock, taken: list[Received]) -> None:
    end = settlement.Requeue(due_at=clock.now(), reason=BACK)
    await broker.settle([Settle(lease=each.lease, settlement=end) for each in taken])


async def test_an_entry_that_another_process_looked_at_just_then_is_dropped_later(
    broker: MemoryBroker, clock: FakeClock
) -> None:
    entries = DeadLetterQueues(broker, clock=clock, letters=MemoryLetterStore())
    gone, stays = letter("dl_1"), letter("dl_2")
    await entries.put([gone, stays])
    taken = await in_somebodys_hands(broker)

    await entries.trim([gone])
    await put_back(broker, clock, taken)
    assert 2 == len(await broker.peek(DEAD, limit=5))
    await clock.advance(TRIM_EVERY_MS)
    await entries.trim_left()

    assert ["dl_2"] == [found.id for found in await broker.peek(DEAD, limit=5)]


async def test_an_entry_that_is_never_found_is_not_looked_for_for_ever(broker: MemoryBroker, clock: FakeClock) -> None:
    entries = DeadLetterQueues(broker, clock=clock, letters=MemoryLetterStore())
    gone = letter("dl_1")

    await entries.trim([gone])
    for _ in range(MAX_LOOKS):
        await clock.advance(TRIM_EVERY_MS)
        await entries.trim_left()
    await entries.put([gone])
    await clock.advance(TRIM_EVERY_MS)
    await entries.trim_left()

    assert ["dl_1"] == [found.id for found in await broker.peek(DEAD, limit=5)]


async def test_what_a_killed_process_left_is_dropped_once_a_later_redrive_has_passed(
    broker: MemoryBroker, clock: FakeClock
) -> None:
    letters = MemoryLetterStore()
    killed, alive = (DeadLetterQueues(broker, clock=clock, letters=letters) for _ in range(2))
    dead = [letter(f"dl_{number}") for number in range(4)]
    await letters.put(dead)
    await killed.put(dead)
    await sent_back(letters, "dl_0", "dl_2", "dl_3")

    await alive.trim([dead[3]])
    assert ["dl_0", "dl_1", "dl_2"] == [found.id for found in await broker.peek(DEAD, limit=5)]
    await alive.trim_left()
    await clock.advance(SWEEP_EVERY_MS)
    await alive.trim_left()

    assert ["dl_1"] == [found.id for found in await broker.peek(DEAD, limit=5)]


async def sent_back(letters: MemoryLetterStore, *ids: str) -> None:
    moves = [ReviewChange(letter_id=each, to=ReviewState.REPLAYED, actor="test", at=1, note="") for each in ids]
    assert [None] * len(ids) == await letters.review(moves)
