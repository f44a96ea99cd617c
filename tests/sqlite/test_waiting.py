"""Waking: at once in this process, soon across processes, exactly at a due time, and without spinning."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

from redrive.core.ports import End, Outgoing
from redrive.core.settlement import Requeue, Retry
from redrive.runtime.clock import SystemClock
from redrive.sqlite import SqliteFile, SqliteLedger
from redrive.testing import FakeClock
from redrive.testing.samples import QUEUE, message
from tests.sqlite.steps import WHY, end_all, end_child, many, read_line, start_child, take, tell

ROUNDS = 30
WAKE_LIMIT_MS = 5
ACROSS_LIMIT_MS = 100
RETRIES = 400
SPREAD_MS = 2_000
RETRY_ERROR_MS = 20
IDLE_S = 2.0
IDLE_CPU = 0.01


async def parked(ledger: SqliteLedger, *, wait_ms: int = 30_000) -> asyncio.Task[int]:
    """A receiver that has looked, found nothing, and waits; its result is when it got something, in ns."""

    async def receive() -> int:
        taken = await take(ledger, wait_ms=wait_ms)
        at = time.time_ns()
        await end_all(ledger, taken)
        return at

    task = asyncio.create_task(receive())
    await asyncio.sleep(0.02)  # sleep: it must be waiting, not on its way
    return task


async def test_a_publish_in_this_process_wakes_a_receiver_within_five_ms(live_ledger: SqliteLedger) -> None:
    delays = []
    for number in range(ROUNDS):
        waiting = await parked(live_ledger)
        await live_ledger.publish(many(1, start=number))
        published_at = time.time_ns()
        delays.append((await waiting - published_at) / 1e6)

    # The median: a test machine that is busy with other things may take its time now and then.
    assert statistics.median(delays) <= WAKE_LIMIT_MS


async def test_a_publish_of_another_process_wakes_a_receiver_within_100_ms(
    path: Path, live_ledger: SqliteLedger
) -> None:
    child = start_child(path, "publish_on_command")
    assert "ready" == read_line(child)
    delays = []
    for _ in range(10):
        waiting = await parked(live_ledger)
        tell(child)
        published_at = int(await asyncio.to_thread(read_line, child))
        delays.append((await waiting - published_at) / 1e6)
    end_child(child)

    assert statistics.median(delays) <= ACROSS_LIMIT_MS


async def test_retries_are_handed_out_on_time_and_none_early(live_ledger: SqliteLedger) -> None:
    clock = SystemClock()
    await live_ledger.publish(many(RETRIES))
    taken = await take(live_ledger, limit=RETRIES)
    start = clock.now() + 500
    due = {f"m-{n}": start + n * SPREAD_MS // RETRIES for n in range(RETRIES)}
    ends = [End(taken=each, settlement=Retry(due_at=due[each.received.message.id], reason=WHY)) for each in taken]
    assert [True] * RETRIES == await live_ledger.commit(ends)

    late: list[int] = []
    while len(late) < RETRIES:
        got = await take(live_ledger, wait_ms=5_000)
        now = clock.now()
        late += [now - due[each.received.message.id] for each in got]
        await end_all(live_ledger, got)

    assert min(late) >= 0
    # The promise is the 99th percentile on an idle machine (the bench measures it); here the median must hold.
    assert statistics.median(late) <= RETRY_ERROR_MS


async def test_an_earlier_due_time_shortens_a_wait_that_is_under_way(live_ledger: SqliteLedger) -> None:
    clock = SystemClock()
    await live_ledger.publish([Outgoing(queue=QUEUE, message=message("hour"), due_at=clock.now() + 3_600_000)])
    waiting = await parked(live_ledger)

    due_at = clock.now() + 100
    await live_ledger.publish([Outgoing(queue=QUEUE, message=message("soon"), due_at=due_at)])

    assert (await waiting) // 1_000_000 >= due_at


async def test_an_idle_receiver_uses_less_than_one_percent_of_a_core(live_ledger: SqliteLedger) -> None:
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

    await asyncio.wait_for(waiting, 5)


async def test_an_ended_lease_wakes_a_waiting_receiver(live_ledger: SqliteLedger) -> None:
    await live_ledger.publish(many(1))
    await take(live_ledger, lease_ms=200)

    taken = await take(live_ledger, wait_ms=10_000)

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

    assert [] == await asyncio.wait_for(take(ledger, limit=0, wait_ms=60_000), 5)
