"""Waking: by commits of this process and of others, at due times, and without spinning. How fast, the bench says."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from redrive.core.ports import End, Outgoing
from redrive.core.settlement import Requeue, Retry
from redrive.runtime.clock import SystemClock
from redrive.sqlite import SqliteFile, SqliteLedger
from redrive.sqlite.waiting import WATCH_MS, Watch
from redrive.testing import FakeClock
from redrive.testing.samples import QUEUE, message
from tests.sqlite.steps import PATIENCE_S, WHY, end_all, end_child, many, read_line, start_child, take, tell

ROUNDS = 10
RETRIES = 400
SPREAD_MS = 2_000
FOR_EVER_MS = 3_600_000
IDLE_S = 2.0
IDLE_CPU = 0.1
"""Of a core. It is a thirtieth of that; what spins takes all of what the machine has left."""


async def parked(ledger: SqliteLedger) -> asyncio.Task[list[str]]:
    """A receiver that has looked, found nothing, and waits; its result is what it got."""

    async def receive() -> list[str]:
        taken = await take(ledger, wait_ms=FOR_EVER_MS)
        await end_all(ledger, taken)
        return [each.received.message.id for each in taken]

    task = asyncio.create_task(receive())
    await asyncio.sleep(0.02)  # sleep: it must be waiting, not on its way
    return task


async def test_a_publish_in_this_process_wakes_a_receiver_without_being_looked_for(
    live_ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watch, "_wake_ready", lambda *_: None)  # what looks for other processes' commits is off
    for number in range(ROUNDS):
        waiting = await parked(live_ledger)

        await live_ledger.publish(many(1, start=number))

        assert [f"m-{number}"] == await asyncio.wait_for(waiting, PATIENCE_S)


async def test_a_publish_of_another_process_wakes_a_receiver(path: Path, live_ledger: SqliteLedger) -> None:
    child = start_child(path, "publish_on_command")
    assert "ready" == read_line(child)
    for number in range(ROUNDS):
        waiting = await parked(live_ledger)

        tell(child)

        assert [f"m-{number}"] == await asyncio.wait_for(waiting, PATIENCE_S)
        await asyncio.to_thread(read_line, child)
    end_child(child)


def test_the_commits_of_others_are_looked_for_often_enough_to_be_seen_within_100_ms() -> None:
    assert WATCH_MS <= 50


async def test_retries_are_handed_out_at_their_time_and_none_early(live_ledger: SqliteLedger) -> None:
    clock = SystemClock()
    await live_ledger.publish(many(RETRIES))
    taken = await take(live_ledger, limit=RETRIES)
    start = clock.now() + 500
    due = {f"m-{n}": start + n * SPREAD_MS // RETRIES for n in range(RETRIES)}
    ends = [End(taken=each, settlement=Retry(due_at=due[each.received.message.id], reason=WHY)) for each in taken]
    assert [True] * RETRIES == await live_ledger.commit(ends)

    late: list[int] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(late) < RETRIES:
            got = await take(live_ledger, wait_ms=FOR_EVER_MS)
            now = clock.now()
            late += [now - due[each.received.message.id] for each in got]
            await end_all(live_ledger, got)

    # How late is the machine's affair (the bench measures it): a receiver that missed a time would wait for ever.
    assert min(late) >= 0


async def test_an_earlier_due_time_shortens_a_wait_that_is_under_way(live_ledger: SqliteLedger) -> None:
    clock = SystemClock()
    await live_ledger.publish([Outgoing(queue=QUEUE, message=message("hour"), due_at=clock.now() + 3_600_000)])
    waiting = await parked(live_ledger)

    due_at = clock.now() + 100
    await live_ledger.publish([Outgoing(queue=QUEUE, message=message("soon"), due_at=due_at)])

    assert ["soon"] == await asyncio.wait_for(waiting, PATIENCE_S)
    assert clock.now() >= due_at


async def test_an_idle_receiver_does_not_spin(live_ledger: SqliteLedger) -> None:
    clock = SystemClock()
    await live_ledger.publish([Outgoing(queue=QUEUE, message=message("later"), due_at=clock.now() + 3_600_000)])
    waiting = [await parked(live_ledger) for _ in range(3)]

    before = time.process_time()
    await asyncio.sleep(IDLE_S)  # sleep: what nothing costs is measured over time
    used = time.process_time() - before

    assert used / IDLE_S < IDLE_CPU
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_what_is_handed_back_wakes_the_next_receiver(live_ledger: SqliteLedger) -> None:
    await live_ledger.publish(many(1))
    held = await take(live_ledger)
    waiting = await parked(live_ledger)

    await end_all(live_ledger, held, Requeue(due_at=0, reason=WHY))

    assert ["m-0"] == await asyncio.wait_for(waiting, PATIENCE_S)


async def test_an_ended_lease_wakes_a_waiting_receiver(live_ledger: SqliteLedger) -> None:
    await live_ledger.publish(many(1))
    await take(live_ledger, lease_ms=200)

    taken = await asyncio.wait_for(take(live_ledger, wait_ms=FOR_EVER_MS), PATIENCE_S)

    assert [2] == [each.received.starts for each in taken]
    assert taken[0].received.redelivered


async def test_closing_the_file_ends_a_wait_with_an_error(path: Path) -> None:
    file = SqliteFile(path, clock=SystemClock())
    await file.open()
    waiting = await parked(SqliteLedger(file))

    await file.close()

    (error,) = await asyncio.gather(waiting, return_exceptions=True)
    assert "is not open" in str(error) or "is closed" in str(error)


async def test_a_fake_clock_moves_a_waiting_receiver(ledger: SqliteLedger, clock: FakeClock) -> None:
    await ledger.publish([Outgoing(queue=QUEUE, message=message(), due_at=clock.now() + 60_000)])
    waiting = asyncio.create_task(take(ledger, wait_ms=3_600_000))

    await clock.run_until(waiting.done)

    assert 1 == len(await waiting)
    assert 60_000 == clock.monotonic_ms()


async def test_a_receiver_without_room_gets_nothing_and_does_not_wait(ledger: SqliteLedger) -> None:
    await ledger.publish(many(1))

    assert [] == await asyncio.wait_for(take(ledger, limit=0, wait_ms=FOR_EVER_MS), PATIENCE_S)
