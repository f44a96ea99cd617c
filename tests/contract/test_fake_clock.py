"""The fake clock: order, never early, and exact repetition."""

from __future__ import annotations

import asyncio

import pytest

from redrive.testing.clock import FAKE_EPOCH, FakeClock


async def test_sleepers_wake_in_the_order_of_their_due_times() -> None:
    clock, woken = FakeClock(), []

    async def sleeper(delay_ms: int) -> None:
        await clock.sleep(delay_ms)
        woken.append((delay_ms, clock.now() - FAKE_EPOCH))

    tasks = [asyncio.create_task(sleeper(delay)) for delay in (30, 10, 20, 10)]
    await clock.advance(30)

    assert [(10, 10), (10, 10), (20, 20), (30, 30)] == woken
    await asyncio.gather(*tasks)


async def test_nobody_wakes_a_millisecond_early() -> None:
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(1_000))

    await clock.advance(999)
    early = task.done()
    await clock.advance(1)

    assert not early
    assert task.done()


async def test_a_sleeper_that_sleeps_again_within_the_move_wakes_again() -> None:
    clock, instants = FakeClock(), []

    async def ticker() -> None:
        for _ in range(5):
            await clock.sleep(10)
            instants.append(clock.now() - FAKE_EPOCH)

    task = asyncio.create_task(ticker())
    await clock.advance(50)

    assert [10, 20, 30, 40, 50] == instants
    await task


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(60_000))
    await clock.settle()

    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await clock.run_until_idle()

    assert 0 == clock.sleepers
    assert FAKE_EPOCH == clock.now()


async def test_running_until_idle_jumps_and_ends_an_endless_loop_with_an_error() -> None:
    clock = FakeClock()

    async def forever() -> None:
        while True:
            await clock.sleep(1_000)

    task = asyncio.create_task(forever())

    with pytest.raises(TimeoutError, match="still sleeps"):
        await clock.run_until_idle(limit_ms=10_000)
    task.cancel()


async def test_running_until_a_condition_holds_stops_there() -> None:
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(5_000))

    await clock.run_until(task.done)

    assert 5_000 == clock.now() - FAKE_EPOCH
    assert 5_000.0 == clock.monotonic_ms()


async def test_a_leap_wakes_everyone_due_on_the_way_once_and_late() -> None:
    clock, woken = FakeClock(), []

    async def ticker() -> None:
        while True:
            await clock.sleep(10)
            woken.append(clock.now() - FAKE_EPOCH)

    task = asyncio.create_task(ticker())
    await clock.leap_to(FAKE_EPOCH + 86_400_000)

    assert [86_400_000] == woken
    task.cancel()
