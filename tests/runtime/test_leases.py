"""Long handlers and their leases (case SD-07)."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from redrive import Delivery, Redrive, Retry
from redrive.core.ports import Taken
from redrive.errors import BrokerUnavailableError
from redrive.runtime.delivery import CancelReason
from tests.runtime import crew
from tests.runtime.fleet import Fleet
from tests.runtime.stage import PATIENCE_S, Told, depth, letters, working


@pytest.mark.parametrize("kind", ["sleeper", "loop-blocker"])
async def test_a_handler_longer_than_its_lease_runs_once_beside_another_worker(fleet: Fleet, kind: str) -> None:
    async with fleet.app() as app:
        workers = [fleet.start(kind), fleet.start(kind)]
        for worker in workers:
            fleet.started(worker)
        await app.publish("orders", {"n": 1, "s": 5}, message_id="m-1")
        fleet.until(lambda: fleet.lines(event="deliveries.processed"), what="it is processed")

        assert [1] == [line["attempt"] for line in fleet.lines(start=1)]
        assert await depth(app, "orders") == 0
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
            assert fleet.stopped(worker) == 0


async def test_a_delayed_message_is_not_handed_over_before_its_time(app: Redrive) -> None:
    handled: dict[int, int] = {}

    @app.consumer("orders", lease="2s")
    async def handle(order: dict[str, Any]) -> None:
        handled.setdefault(order["n"], app.clock.now())

    told = Told(app)
    async with working(app):
        await app.publish("orders", {"n": 1}, delay="1h")
        published_at = app.clock.now()
        await app.publish("orders", {"n": 2}, delay="4s")
        await told.until("deliveries.processed")

        assert [2] == list(handled)
        assert handled[2] >= published_at + 4_000
        assert await depth(app, "orders") == 1


class BrokenRenewals:
    """A ledger whose renewals fail from a moment on, as those of a store that is away."""

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger
        self.are_broken = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def renew(self, batch: Sequence[Taken], *, lease_ms: int) -> list[bool]:
        if self.are_broken.is_set():
            raise BrokerUnavailableError("The store is away.")
        renewed: list[bool] = self._ledger.renew(batch, lease_ms=lease_ms)
        return renewed


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_lease_that_could_not_be_renewed_is_lost_and_its_late_result_refused(app: Redrive, kind: str) -> None:
    first_run: list[Delivery] = []
    stopped = threading.Event()

    async def has_begun() -> bool:
        return len(first_run) == 1

    if kind == "async":

        @app.consumer("orders", lease="2s", retry=Retry(max_attempts=3))
        async def handle(order: dict[str, Any], delivery: Delivery) -> None:
            first_run.append(delivery)
            if len(first_run) == 1:
                try:
                    await asyncio.Event().wait()
                finally:
                    stopped.set()
    else:

        @app.consumer("orders", lease="2s", retry=Retry(max_attempts=3))
        def handle_in_a_thread(order: dict[str, Any], delivery: Delivery) -> None:
            first_run.append(delivery)
            if len(first_run) == 1:
                assert delivery.cancelled.wait(PATIENCE_S)
                stopped.set()

    told = Told(app)
    async with app:
        backend = app.backend
        broken = BrokenRenewals(backend.ledger)
        object.__setattr__(backend, "ledger", broken)
        async with working(app):
            await app.publish("orders", {"n": 1}, message_id="m-1")
            await told.until_holds(has_begun, what="the first run")
            broken.are_broken.set()
            await told.until("delivery.lease_lost")
            broken.are_broken.clear()
            await told.until("deliveries.processed")

            assert stopped.is_set()
            assert first_run[0]._cancel_reason is CancelReason.LEASE_LOST
            assert [1, 2] == [delivery.attempt for delivery in first_run]
            assert told.count("delivery.interrupted") == 1
            assert [] == await letters(app)


async def test_slow_renewals_lose_nothing(app: Redrive) -> None:
    class Slow(BrokenRenewals):
        def renew(self, batch: Sequence[Taken], *, lease_ms: int) -> list[bool]:
            time.sleep(0.7)  # sleep: the slow store
            return super().renew(batch, lease_ms=lease_ms)

    runs = []

    @app.consumer("orders", lease="3s")
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        runs.append(delivery.attempt)
        await asyncio.sleep(7)  # sleep: longer than two leases

    told = Told(app)
    async with app:
        backend = app.backend
        object.__setattr__(backend, "ledger", Slow(backend.ledger))
        async with working(app):
            await app.publish("orders", {"n": 1}, message_id="m-1")
            await told.until("deliveries.processed")

    assert [1] == runs
    assert told.count("delivery.lease_lost") == 0


async def test_a_process_whose_lease_is_lost_is_killed_and_settles_nothing(tmp_path: Any) -> None:
    app = Redrive("shop", broker=f"sqlite:////{tmp_path}/app.db")
    app.consumer("orders", process=True, concurrency=1, lease="900ms", retry=Retry(max_attempts=2))(crew.sleep_long)

    told = Told(app)
    async with app:
        broken = BrokenRenewals(app.backend.ledger)
        object.__setattr__(app.backend, "ledger", broken)
        broken.are_broken.set()
        async with working(app):
            await app.publish("orders", {"n": 1}, message_id="m-1")
            await told.until("delivery.lease_lost", 2)
            await told.until("delivery.dead_lettered")

            (letter,) = await letters(app)
            assert ("WORKER_LOST", 2) == (letter.reason.code, letter.attempt_count)
