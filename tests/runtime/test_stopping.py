"""Signals and deploys with real processes (case RC-07, SD-01, SD-02)."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from redrive.core.message import Message
from tests.runtime.fleet import Fleet
from tests.runtime.stage import PATIENCE_S, depth, letters

FOR_EVER = str(10 * PATIENCE_S)
"""How long a handler takes that must not be waited for, in seconds."""


async def test_three_deploys_that_cut_a_handler_off_cost_no_attempt(fleet: Fleet) -> None:
    async with fleet.app() as app:
        await app.publish("orders", {"n": 1}, message_id="m-1")

        for deploy in range(1, 4):
            worker = fleet.start("sleeper", CREW_SLEEP=FOR_EVER, CREW_GRACE="300ms")
            fleet.until(lambda deploy=deploy: len(fleet.lines(start=1)) == deploy, what="the handler runs")  # type: ignore[misc]
            worker.send_signal(signal.SIGTERM)
            assert fleet.stopped(worker) == 0
        last = fleet.start("sleeper", CREW_SLEEP="0.1")
        fleet.until(lambda: fleet.lines(event="deliveries.processed"), what="the handler came to its end")
        last.send_signal(signal.SIGTERM)

        assert fleet.stopped(last) == 0
        assert [1, 1, 1, 1] == [line["attempt"] for line in fleet.lines(start=1)]
        assert [] == await letters(app)
        assert await depth(app, "orders") == 0


async def test_sigterm_lets_what_runs_finish_and_starts_nothing_more(fleet: Fleet) -> None:
    async with fleet.app() as app:
        worker = fleet.start("sleeper", CREW_GRACE="20s")
        fleet.started(worker)
        for n, seconds in enumerate([0.4, 0.8, 1.2]):
            await app.publish("orders", {"n": n, "s": seconds}, message_id=f"m-{n}")
        fleet.until(lambda: len(fleet.lines(start=...)) == 3, what="three run")

        worker.send_signal(signal.SIGTERM)
        fleet.until(lambda: fleet.lines(event="worker.draining"), what="it drains")
        for n in range(3, 8):
            await app.publish("orders", {"n": n, "s": 0}, message_id=f"m-{n}")
        code = fleet.stopped(worker)

        assert code == 0
        assert [0, 1, 2] == sorted(line["end"] for line in fleet.lines(end=...))
        assert await depth(app, "orders") == 5
        second = fleet.start("sleeper")
        fleet.until(lambda: len(fleet.lines(end=...)) == 8, what="the rest is done")
        second.send_signal(signal.SIGTERM)
        fleet.stopped(second)
        assert list(range(8)) == sorted(line["start"] for line in fleet.lines(start=...))
        assert {1} == {line["attempt"] for line in fleet.lines(start=...)}


async def test_a_second_signal_hands_an_async_handler_back_at_once(fleet: Fleet) -> None:
    async with fleet.app() as app:
        worker = fleet.start("sleeper", CREW_SLEEP=FOR_EVER)
        await app.publish("orders", {"n": 1}, message_id="m-1")
        fleet.until(lambda: fleet.lines(start=1), what="it runs")

        worker.send_signal(signal.SIGINT)
        fleet.until(lambda: fleet.lines(event="worker.draining"), what="it drains")
        time.sleep(0.2)  # sleep: sooner, it would be an echo of the first
        worker.send_signal(signal.SIGINT)
        code = fleet.stopped(worker)

        assert code == 128 + signal.SIGINT
        assert "Traceback" not in fleet.log(0)
        (waiting,) = await app.backend.broker.peek("orders", limit=5)
        assert isinstance(waiting, Message)
        (ready,) = await app.backend.broker.depths()
        assert (1, 0) == (ready.ready, ready.leased)


@pytest.mark.parametrize("kind", ["thread-sleeper", "loop-blocker"])
async def test_a_blocked_handler_is_handed_back_and_does_not_keep_the_process_from_ending(
    fleet: Fleet, kind: str
) -> None:
    async with fleet.app() as app:
        worker = fleet.start(kind)
        await app.publish("orders", {"n": 1, "s": FOR_EVER}, message_id="m-1")
        fleet.until(lambda: fleet.lines(start=1), what="it runs")

        def has_ended() -> bool:
            # Three signals are enough; to a process that is kept waiting, two of them may be one.
            worker.send_signal(signal.SIGINT)
            time.sleep(0.2)  # sleep: sooner, it would be an echo of the one before
            return worker.poll() is not None

        fleet.until(has_ended, what="it ended")
        code = worker.returncode

        assert code == 128 + signal.SIGINT
        assert "Traceback" not in fleet.log(0)
        (ready,) = await app.backend.broker.depths()
        assert (1, 0) == (ready.ready, ready.leased)


async def test_a_handler_in_a_thread_that_outlives_the_grace_is_handed_back_without_cost(fleet: Fleet) -> None:
    async with fleet.app() as app:
        worker = fleet.start("thread-sleeper", CREW_GRACE="200ms")
        await app.publish("orders", {"n": 1, "s": FOR_EVER}, message_id="m-1")
        fleet.until(lambda: fleet.lines(start=1), what="it runs")

        worker.send_signal(signal.SIGTERM)
        code = fleet.stopped(worker)

        assert code == 0
        (ready,) = await app.backend.broker.depths()
        assert (1, 0) == (ready.ready, ready.leased)
        (stopped,) = fleet.lines(event="worker.stopped")
        assert stopped["handed_back"] == 1


def test_sigterm_while_starting_ends_it(fleet: Fleet) -> None:
    import sqlite3

    holder = sqlite3.connect(fleet.file, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    worker = fleet.start("sleeper", CREW_LOCK_TIMEOUT="10m")
    time.sleep(1.0)  # sleep: somewhere between importing and waiting for the file: any of it must end

    worker.send_signal(signal.SIGTERM)
    code: Any = fleet.stopped(worker)

    holder.close()
    assert code in {0, -signal.SIGTERM, 143}
    assert "Traceback" not in fleet.log(0)
