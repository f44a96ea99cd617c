"""What people hold back, played on an app of any broker: a pause, and a tenant that is set aside."""

from __future__ import annotations

import asyncio
from typing import Any

from redrive import Delivery, Fixed, Redrive, Retry
from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.policy.control import QUARANTINED, Kind
from redrive.service import Service
from tests.runtime.stage import Told, depth, letters, quiet, working

QUEUE = "orders"
AT_ONCE = Retry(max_attempts=3, backoff=Fixed("10ms"))


async def play_pause(app: Redrive) -> None:
    """Paused, what is in hand ends and nothing more is taken, by workers that come later, too; resumed, all goes on."""
    started, gate = [], asyncio.Event()

    @app.consumer(QUEUE, retry=AT_ONCE, concurrency=1)
    async def handle(order: dict[str, Any]) -> None:
        started.append(order["n"])
        if order["n"] == 0:
            await gate.wait()

    told = Told(app)
    async with app:
        service = Service(app)
        async with working(app, name="first"):
            await app.publish(QUEUE, {"n": 0})
            await told.until_true(lambda: bool(told.named("deliveries.taken")), what="the first is taken")
            paused = await service.pause_queue(QUEUE, actor="ann", note="their API is down")
            await told.until("queue.paused")
            await app.publish_many(QUEUE, [{"n": n} for n in range(1, 6)])
            gate.set()
            await told.until("deliveries.processed", 1)
            seen = {view.queue: view for view in await service.queues()}[QUEUE]
        async with working(app, name="second"):
            await told.until("queue.paused", 2)
            # Without the pause these were taken at once: the worker has begun, and looks every half second.
            await asyncio.sleep(1.5)  # sleep: nothing happens, for longer than a take waits
            before, left = list(started), await depth(app, QUEUE)
            await service.resume_queue(QUEUE, actor="ann")
            await told.until("deliveries.processed", 6)

    assert paused.paused is not None
    assert paused.paused == seen.paused
    assert ([0], 5) == (before, left)
    assert sorted(started) == list(range(6))
    assert 1 == told.count("queue.resumed")
    assert 0 == told.count("delivery.requeued"), "nothing is taken and given back, again and again"
    assert all(attempt == 1 for fields in told.named("deliveries.processed") for attempt in fields["attempts"])


async def play_quarantine(app: Redrive) -> None:
    """One tenant and one key are set aside, at no attempt and in their order; others go on. What a person sends back is
    handled, and after the release what comes, too. Nothing is lost.
    """
    handled: list[tuple[str, int]] = []
    gate = asyncio.Event()

    @app.consumer(QUEUE, retry=AT_ONCE, concurrency=1, breaker=None)
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        handled.append((order["who"], order["n"]))
        if order["who"] == "acme" and not gate.is_set():
            raise ConnectionError("poison")

    told = Told(app)
    async with app:
        service = Service(app)
        await service.pause_queue(QUEUE, actor="ann")
        await service.quarantine(QUEUE, [(Kind.TENANT, "acme"), (Kind.KEY, "k")], actor="ann", note="poison")
        for n in range(8):
            await app.publish(QUEUE, {"who": "acme", "n": n}, tenant="acme", message_id=f"a-{n}")
            await app.publish(QUEUE, {"who": "bolt", "n": n}, tenant="bolt", message_id=f"b-{n}")
        await app.publish(QUEUE, {"who": "key", "n": 0}, tenant="bolt", idempotency_key="k")
        await service.resume_queue(QUEUE, actor="ann")
        async with working(app):
            await told.until("delivery.dead_lettered", 9)
            await told.until("deliveries.processed", 8)
            aside = await letters(app, QUEUE)
            first = await service.redrive(Selection(ids=(aside[0].id,)), actor="ann")
            await told.until("delivery.dead_lettered", 10)
            came_back = (await letters(app, QUEUE))[-1]
            gate.set()
            freed = await service.release(QUEUE, [(Kind.TENANT, "acme")], actor="ann")
            (of_acme,) = freed.asides
            await service.redrive(of_acme.selection, actor="ann")
            await told.until("deliveries.processed", 15)
            await told.until("queue.quarantine_changed", 2)
            await app.publish(QUEUE, {"who": "acme", "n": 99}, tenant="acme")
            await app.publish(QUEUE, {"who": "key", "n": 1}, idempotency_key="k", message_id="k-2")
            await told.until("deliveries.processed", 16)
            await told.until("delivery.dead_lettered", 11)
            await quiet(app, told, QUEUE)
        left = await service.stats(Selection(queue=QUEUE, states=frozenset({ReviewState.PENDING})))

    assert {QUARANTINED} == {letter.reason.code for letter in aside}
    assert {0} == {letter.attempt_count for letter in aside}, "it was never tried"
    assert [f"a-{n}" for n in range(8)] == [each.message.id for each in aside if each.message.tenant == "acme"]
    assert 1 == first.job.counts.sent
    assert (True, 3) == (came_back.reason.code.endswith("_EXHAUSTED"), came_back.attempt_count), "it was tried"
    assert 7 == of_acme.letters
    assert [("bolt", n) for n in range(8)] == [each for each in handled if each[0] == "bolt"]
    assert [("acme", n) for n in (0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 99)] == [each for each in handled if each[0] == "acme"]
    assert not [each for each in handled if each[0] == "key"]
    assert {came_back.reason.code: 1, QUARANTINED: 2} == left.by_reason
