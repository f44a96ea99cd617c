"""Breaker, rate, concurrency, lifetime: what one consumer may take (on a clock that the test moves)."""

from __future__ import annotations

import asyncio
from typing import Any

from redrive import BreakerPolicy, Fixed, Redrive, Retry
from redrive.testing import FakeClock
from tests.runtime.stage import Told, letters, run_threads_at_once, working

NEVER = Fixed("1h")


async def test_consecutive_transient_failures_open_the_breaker_and_one_success_closes_it() -> None:
    run_threads_at_once()
    clock = FakeClock()
    app = Redrive("shop", broker="memory://", clock=clock)
    is_down, runs = True, 0

    breaker = BreakerPolicy(failures=3, probe=Fixed("10s"))

    @app.consumer("orders", concurrency=1, breaker=breaker, retry=Retry(backoff=NEVER))
    async def handle(order: dict[str, Any]) -> None:
        nonlocal runs
        runs += 1
        if is_down:
            raise ConnectionError("downstream is away")

    told = Told(app)
    async with app:
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        await app.publish_many("orders", [{"n": n} for n in range(10)])
        await clock.run_until(lambda: runs >= 3)
        await clock.advance(6_000)

        assert runs == 3
        await clock.run_until(lambda: runs == 4, limit_ms=6_000)
        await clock.advance(5_000)
        assert runs == 4
        is_down = False
        await clock.run_until(lambda: told.count("deliveries.processed") == 6, limit_ms=20_000)
        assert ["open", "closed"] == [fields["state"] for fields in told.named("breaker.changed")]
        worker.stop()
        await clock.run_until(running.done)


async def test_a_probe_that_never_reaches_the_handler_does_not_keep_the_breaker_waiting() -> None:
    """A message that cannot be read, one whose life is over, a duplicate: none of them answers for the other side."""
    run_threads_at_once()
    clock = FakeClock()
    app = Redrive("shop", broker="memory://", clock=clock)
    is_down, done = [False], []

    @app.consumer(
        "orders", concurrency=1, breaker=BreakerPolicy(failures=1, probe=Fixed("10s")), retry=Retry(backoff=NEVER)
    )
    async def handle(order: dict[str, Any]) -> None:
        if is_down[0]:
            raise ConnectionError("downstream is away")
        done.append(order["n"])

    told = Told(app)
    async with app:
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        await app.publish("orders", {"n": 1}, message_id="m-1")
        await clock.run_until(lambda: done == [1])
        is_down[0] = True
        await app.publish("orders", {"n": 2})
        await clock.run_until(lambda: told.count("breaker.changed") == 1)
        is_down[0] = False

        await app.publish("orders", {"n": 1}, message_id="m-1")
        await app.publish("orders", {"n": 3}, ttl="1s")
        await app.publish("orders", b"{not json", content_type="application/json")
        await app.publish("orders", {"n": 4})
        await clock.run_until(lambda: done == [1, 4], limit_ms=60_000)

        assert ["open", "closed"] == [fields["state"] for fields in told.named("breaker.changed")]
        worker.stop()
        await clock.run_until(running.done)


async def test_without_a_breaker_every_message_burns_its_attempts() -> None:
    app = Redrive("shop", broker="memory://")

    @app.consumer("orders", breaker=None, retry=Retry(max_attempts=2, backoff=Fixed("1ms")))
    async def handle(order: dict[str, Any]) -> None:
        raise ConnectionError("downstream is away")

    told = Told(app)
    async with working(app):
        await app.publish_many("orders", [{"n": n} for n in range(40)])
        await told.until("delivery.dead_lettered", 40)

    assert told.count("breaker.changed") == 0


async def test_no_more_starts_than_the_rate_allows() -> None:
    run_threads_at_once()
    clock = FakeClock()
    app = Redrive("shop", broker="memory://", clock=clock)
    starts: list[int] = []

    @app.consumer("orders", rate="10/s")
    async def handle(order: dict[str, Any]) -> None:
        starts.append(clock.now())

    async with app:
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        begun = clock.now()
        await app.publish_many("orders", [{"n": n} for n in range(60)])
        await clock.run_until(lambda: len(starts) == 60, limit_ms=60_000)
        worker.stop()
        await clock.run_until(running.done)

    assert 4_900 <= starts[-1] - begun <= 6_100
    assert max(sum(at <= other < at + 1_000 for other in starts) for at in starts) <= 20


async def test_never_more_handlers_at_once_than_the_concurrency() -> None:
    app = Redrive("shop", broker="memory://")
    running, most = 0, 0

    @app.consumer("orders", concurrency=3)
    async def handle(order: dict[str, Any]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)  # sleep: the handler itself
        running -= 1

    told = Told(app)
    async with working(app):
        await app.publish_many("orders", [{"n": n} for n in range(100)])
        await told.until("deliveries.processed", 100)

    assert most == 3


async def test_a_message_past_its_lifetime_is_dead_without_running() -> None:
    run_threads_at_once()
    clock = FakeClock()
    app = Redrive("shop", broker="memory://", clock=clock)
    handled = []

    @app.consumer("orders", message_ttl="1m")
    async def handle(order: dict[str, Any]) -> None:
        handled.append(order["n"])

    told = Told(app)
    async with app:
        await app.publish("orders", {"n": 1})
        await app.publish("orders", {"n": 2}, ttl="10s")
        await clock.advance(30_000)
        await app.publish("orders", {"n": 3})
        await clock.advance(31_000)
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        await clock.run_until(lambda: told.count("deliveries.processed") + told.count("delivery.dead_lettered") == 3)
        found = await letters(app)
        worker.stop()
        await clock.run_until(running.done)

    assert [3] == handled
    assert [("EXPIRED", 0)] * 2 == [(letter.reason.code, letter.attempt_count) for letter in found]


async def test_no_retry_runs_early_and_each_runs_at_its_own_time() -> None:
    run_threads_at_once()
    clock = FakeClock()
    app = Redrive("shop", broker="memory://", clock=clock)
    errors: list[int] = []
    due: dict[str, int] = {}

    @app.consumer("orders", breaker=None, retry=Retry(max_attempts=2, backoff=Fixed("10s")))
    async def handle(order: dict[str, Any]) -> None:
        if (at := due.pop(order["n"], None)) is not None:
            errors.append(clock.now() - at)
            return
        raise ConnectionError("once")

    told = Told(app)
    app.events.subscribe(
        lambda event: (
            due.update({event.fields["message_id"]: event.fields["due_at"]})
            if event.name == "delivery.retry_scheduled"
            else None
        )
    )
    async with app:
        ids = {f"m-{n}": n / 100 for n in range(500)}
        await app.publish_many("orders", [({"n": id_}, {"message_id": id_, "delay": s}) for id_, s in ids.items()])
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        await clock.run_until(lambda: told.count("deliveries.processed") == 500, limit_ms=120_000)
        worker.stop()
        await clock.run_until(running.done)

    assert 500 == len(errors)
    assert 0 <= min(errors)
    assert max(errors) <= 20
