"""The broker or store is away: consuming pauses, nothing spins, nothing is lost (case DS-02, DS-03, DS-05)."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from redrive import DeadLetter, Redrive
from redrive.core.policy.streak import STABLE_MS
from redrive.core.ports import End, Taken
from redrive.errors import BrokerUnavailableError, InvalidMessageError
from redrive.runtime.ledger import OrderedLedger
from redrive.testing import FakeClock, FaultyBroker
from tests.runtime.stage import Told, depth, letters, run_threads_at_once, working


class Away:
    """A ledger that can be switched off, wholly or for one call."""

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger
        self.is_away: set[str] = set()
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def take(self, queue: str, **arguments: Any) -> list[Taken]:
        self._check("take")
        taken: list[Taken] = await self._ledger.take(queue, **arguments)
        return taken

    async def commit(self, batch: Sequence[End]) -> list[bool]:
        self._check("commit")
        settled: list[bool] = await self._ledger.commit(batch)
        return settled

    def renew(self, batch: Sequence[Taken], *, lease_ms: int) -> list[bool]:
        self._check("renew")
        renewed: list[bool] = self._ledger.renew(batch, lease_ms=lease_ms)
        return renewed

    def _check(self, call: str) -> None:
        self.calls.append(call)
        if call in self.is_away:
            raise BrokerUnavailableError("The store is away.")


def _switchable(app: Redrive) -> Away:
    away = Away(app.backend.ledger)
    object.__setattr__(app.backend, "ledger", away)
    return away


async def test_an_outage_pauses_with_growing_delays_and_is_over_by_itself() -> None:
    clock = FakeClock()
    app = Redrive("shop", broker="memory://", clock=clock)
    handled = []

    @app.consumer("orders")
    async def handle(order: dict[str, Any]) -> None:
        handled.append(order["n"])

    told = Told(app)
    async with app:
        away = _switchable(app)
        away.is_away = {"take", "commit", "renew"}
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        await clock.run_until(lambda: told.count("consumer.paused") >= 1)
        assert not worker.is_ready
        await clock.advance(300_000)
        paused = [*told.named("consumer.paused"), *told.named("consumer.still_paused")]
        tries, delays = len(away.calls), [fields["delay_ms"] for fields in paused]
        await app.publish("orders", {"n": 1})
        away.is_away = set()
        await clock.run_until(lambda: handled == [1], limit_ms=60_000)
        await clock.run_until(lambda: told.count("consumer.resumed") == 1, limit_ms=60_000)

        assert worker.is_ready
        assert 1 == told.count("consumer.paused")
        assert tries <= 25
        assert 500 <= delays[0] <= 1_500
        assert max(delays) <= 30_000
        assert max(delays) > 15_000
        worker.stop()
        await clock.run_until(running.done)


async def test_a_broker_that_only_flickers_does_not_bring_the_short_waits_back() -> None:
    clock = FakeClock()
    app = Redrive("shop", broker="memory://", clock=clock)

    @app.consumer("orders")
    async def handle(order: dict[str, Any]) -> None: ...

    told = Told(app)

    async def until_told(name: str, count: int) -> None:
        await clock.run_until(lambda: told.count(name) == count, limit_ms=60_000)

    async with app:
        away = _switchable(app)
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        for round_number in range(1, 6):
            away.is_away = {"take", "commit"}
            await until_told("consumer.paused", round_number)
            away.is_away = set()
            await until_told("consumer.resumed", round_number)
        await clock.advance(STABLE_MS)
        away.is_away = {"take"}
        await until_told("consumer.paused", 6)

        delays = [fields["delay_ms"] for fields in told.named("consumer.paused")]
        assert 8_000 <= delays[4]
        assert 500 <= delays[5] <= 1_500
        worker.stop()
        away.is_away = set()
        await clock.run_until(running.done)


@pytest.mark.parametrize("outcome", ["processed", "dead"])
async def test_an_end_that_could_not_be_written_is_written_when_the_store_is_back(make_app: Any, outcome: str) -> None:
    app: Redrive = make_app(pause_initial="20ms", pause_max="50ms")
    runs = []

    @app.consumer("orders")
    async def handle(order: dict[str, Any]) -> None:
        runs.append(order["n"])
        if outcome == "dead":
            raise ValueError("bad") from UnicodeDecodeError("utf-8", b"", 0, 1, "x")

    told = Told(app)
    async with app:
        away = _switchable(app)
        away.is_away = {"commit"}
        async with working(app):
            await app.publish("orders", {"n": 1}, message_id="m-1")
            await told.until("consumer.still_paused", 2)
            away.is_away = set()
            await told.until("deliveries.processed" if outcome == "processed" else "delivery.dead_lettered")

            assert [1] == runs
            assert await depth(app, "orders") == 0
            assert (0 if outcome == "processed" else 1) == len(await letters(app))


@pytest.mark.parametrize("error", [TypeError("a bug"), InvalidMessageError("a number over 64 bits")])
async def test_one_end_the_store_cannot_hold_does_not_keep_the_others_from_ending(
    app: Redrive, error: Exception
) -> None:
    class Choosy(Away):
        async def commit(self, batch: Sequence[End]) -> list[bool]:
            if any(end.taken.received.message.id == "m-1" for end in batch):
                raise error
            return await super().commit(batch)

    @app.consumer("orders")
    async def handle(order: dict[str, Any]) -> None: ...

    told = Told(app)
    async with app:
        object.__setattr__(app.backend, "ledger", Choosy(app.backend.ledger))
        await app.publish_many("orders", [({"n": n}, {"message_id": f"m-{n}"}) for n in range(5)])
        async with working(app):
            await told.until("deliveries.processed", 4)
            await told.until("delivery.unsettled")

        assert ["m-1"] == [fields["message_id"] for fields in told.named("delivery.unsettled")]
        assert [] == told.named("consumer.paused")
        assert await depth(app, "orders") == 1


async def test_a_dead_letter_that_has_nowhere_to_go_keeps_its_message_and_is_tried_without_haste() -> None:
    run_threads_at_once()
    clock = FakeClock()
    app = Redrive("shop", broker="memory://", clock=clock)

    @app.consumer("orders")
    async def handle(order: dict[str, Any]) -> None:
        raise DeadLetter("no")

    told = Told(app)
    async with app:
        kept = app.backend
        faulty = FaultyBroker(kept.broker)
        faulty.refuse(lambda sent: sent.queue == "orders.dead")
        ledger = OrderedLedger(
            broker=faulty, claims=kept.claims, letters=kept.letters, jobs=kept.jobs, clock=clock
        )  # fmt: skip
        object.__setattr__(kept, "ledger", ledger)
        await app.publish("orders", {"n": 1}, message_id="m-1")
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        await clock.advance(60_000)
        tries = told.count("consumer.paused") + told.count("consumer.still_paused")
        assert (1, 0) == (await depth(app, "orders"), await depth(app, "orders.dead"))
        assert not worker.is_ready

        faulty.refuse(lambda _: False)
        await clock.run_until(lambda: told.count("delivery.dead_lettered") == 1, limit_ms=60_000)
        assert (0, 1) == (await depth(app, "orders"), await depth(app, "orders.dead"))
        assert 1 == len(await letters(app))
        assert 4 <= tries <= 12
        assert 1 == told.count("consumer.paused")
        worker.stop()
        await clock.run_until(running.done)


async def test_publishing_to_a_file_that_is_held_fails_in_time_and_its_repeat_leaves_each_message_once(
    tmp_path: Path,
) -> None:
    app = Redrive("shop", broker=f"sqlite:////{tmp_path}/app.db", settings={"lock_timeout": "100ms"})
    names = [f"p{number}" for number in range(1, 11)]
    async with app:
        holder = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        longest_s = 0.0
        for name in names:
            begun = time.monotonic()
            with pytest.raises(BrokerUnavailableError):
                await app.publish("orders", {}, message_id=name)
            longest_s = max(longest_s, time.monotonic() - begun)
        holder.close()

        for name in names:
            await app.publish("orders", {}, message_id=name)

        assert names == [message.id for message in await app.backend.broker.peek("orders", limit=100)]
        assert longest_s < 5.0  # what it would be without the setting
