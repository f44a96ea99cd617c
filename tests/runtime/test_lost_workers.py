"""Workers that die (case RC-04, RC-06, SD-06), and messages that kill them."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from redrive import Redrive
from tests.runtime.fleet import Fleet
from tests.runtime.stage import PATIENCE_S, Told, depth, letters, working


async def test_a_message_that_kills_its_worker_is_dead_after_its_attempts_and_takes_no_neighbour_with_it(
    fleet: Fleet,
) -> None:
    async with fleet.app() as app:
        await app.publish_many("orders", [({"n": n, "bomb": n == 3}, {"message_id": f"m-{n}"}) for n in range(10)])

        deaths = 0
        while deaths < 10 and await depth(app, "orders"):
            worker = fleet.start("bomb")
            async with asyncio.timeout(PATIENCE_S):
                while worker.poll() is None and await depth(app, "orders"):
                    await asyncio.sleep(0.02)  # sleep: another process
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
                assert fleet.stopped(worker) == 0
                break
            deaths += 1

        (letter,) = await letters(app)
        assert ("m-3", "WORKER_LOST", 3) == (letter.message.id, letter.reason.code, letter.attempt_count)
        assert deaths == 3
        ended = sorted({line["end"] for line in fleet.lines(end=...)})
        assert [n for n in range(10) if n != 3] == ended
        assert 3 == len(fleet.lines(start=3))
        assert max(line["attempt"] for line in fleet.lines(start=...) if line["start"] != 3) <= 2


async def test_work_of_a_killed_worker_is_taken_up_by_one_that_lives(fleet: Fleet) -> None:
    async with fleet.app() as app:
        first = fleet.start("loop-blocker")
        fleet.started(first)
        await app.publish("orders", {"n": 1, "s": 60}, message_id="m-1")
        fleet.until(lambda: fleet.lines(start=1), what="the first worker has it")
        second = fleet.start("bomb")
        fleet.started(second)

        first.kill()
        fleet.until(lambda: fleet.lines(end=1, pid=second.pid), what="the second worker has done it")

        (again,) = fleet.lines(end=1)
        assert again["attempt"] == 2
        assert [] == await letters(app)
        second.send_signal(signal.SIGTERM)
        assert fleet.stopped(second) == 0


async def test_messages_without_an_id_keep_their_counts_when_every_worker_is_killed(fleet: Fleet) -> None:
    async with fleet.app() as app:
        first = [fleet.start("one-sided") for _ in range(2)]
        for who in "AB":
            await app.publish("orders", {"n": 1}, headers={"who": who})
        fleet.until(lambda: fleet.lines(event="deliveries.processed"), what="B is processed")
        fleet.until(lambda: len(fleet.lines(event="delivery.retry_scheduled")) == 2, what="A failed twice")
        for worker in first:
            worker.kill()
            fleet.stopped(worker)

        second = [fleet.start("one-sided") for _ in range(2)]
        fleet.until(lambda: fleet.lines(event="delivery.dead_lettered"), what="A is dead")

        (letter,) = await letters(app)
        assert ("A", 3) == (letter.message.headers["who"], letter.attempt_count)
        assert [1, 2, 3] == [line["attempt"] for line in fleet.lines(who="A")]
        assert [1] == [line["attempt"] for line in fleet.lines(who="B")]
        assert await depth(app, "orders") == 0
        for worker in second:
            fleet.started(worker)  # one of them may have done it all while the other still came up
            worker.send_signal(signal.SIGTERM)
            assert fleet.stopped(worker) == 0


async def test_the_neighbours_of_a_killed_worker_are_not_held_up_by_other_idle_consumers(app: Redrive) -> None:
    handled = []

    @app.consumer("orders")
    async def handle(order: dict[str, Any]) -> None:
        handled.append(order["n"])

    @app.consumer("refunds")
    async def idle(refund: dict[str, Any]) -> None: ...

    told = Told(app)
    async with app:
        await app.publish_many("orders", [({"n": n}, {"message_id": f"m-{n}"}) for n in range(40)])
        lost = await app.backend.ledger.take("orders", limit=40, lease_ms=300, worker="gone", wait_ms=0, claims=True)
        async with working(app):
            await told.until("deliveries.processed", 40)

    assert 40 == len(lost) == told.count("delivery.interrupted")
    assert list(range(40)) == sorted(handled)
