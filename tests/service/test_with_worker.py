"""Redrive and metrics with a real worker beside them: attempts start anew, failures come back as new letters, the
books balance.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from redrive import DeadLetter, Delivery, Exponential, Fixed, Redrive, Retry
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.ports import Outgoing
from redrive.core.redrive import JobOptions
from redrive.runtime.metrics import Metrics
from redrive.service import Service
from redrive.testing import FakeClock
from redrive.testing.samples import message
from redrive.web import Probes
from tests.service.test_metrics import scrape, total

PATIENCE_S = 60
QUICK = Fixed("5ms")


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'shop.db'}"


@contextlib.asynccontextmanager
async def working(app: Redrive) -> AsyncIterator[Service]:
    """The app open, with a worker."""
    async with app:
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        yield Service(app)
        worker.stop()
        await asyncio.wait_for(running, PATIENCE_S)


async def until(condition: Callable[[], Any]) -> None:
    """The condition, which another task makes true."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)  # sleep: the worker works in between


async def until_open_letters(service: Service, count: int) -> tuple[Letter, ...]:
    """So many open letters, oldest first."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            page = await service.letters(Selection(states=OPEN_STATES), limit=1_000)
            if len(page.letters) == count:
                return tuple([(await service.letter(found.id)).letter for found in page.letters])
            await asyncio.sleep(0.005)  # sleep: the worker works in between


async def test_a_redriven_message_starts_with_fresh_attempts(url: str) -> None:
    """Case RD-04, variant 1: dead after five, then three failures and a success are four runs."""
    app, runs = Redrive("shop", url), []
    fails_left = [8]

    @app.consumer("orders", retry=Retry(max_attempts=5, backoff=QUICK))
    async def charge(order: dict, delivery: Delivery) -> None:
        runs.append(delivery.attempt)
        fails_left[0] -= 1
        if fails_left[0] >= 0:
            raise ConnectionError("refused")

    async with working(app) as service:
        await app.publish("orders", {"n": 1}, message_id="m-1")
        (dead,) = await until_open_letters(service, 1)
        await service.redrive(Selection(ids=(dead.id,)), actor="ann")
        await until(lambda: len(runs) == 9)
        await until_open_letters(service, 0)

    assert [1, 2, 3, 4, 5, 1, 2, 3, 4] == runs


async def test_a_copy_overtaken_by_the_producers_own_repeat_closes_its_letter(url: str) -> None:
    """The copy is a duplicate of a success then: it does not run, and nothing is left to decide."""
    app, runs = Redrive("shop", url), []
    is_broken = [True]

    @app.consumer("orders", retry=Retry(max_attempts=1))
    async def charge(order: dict) -> None:
        runs.append(order["n"])
        if is_broken[0]:
            raise ConnectionError("refused")

    async with app:
        service = Service(app)
        first = app.worker()
        running = asyncio.create_task(first.run())
        await app.publish("orders", {"n": 1}, message_id="m-1")
        (dead,) = await until_open_letters(service, 1)
        first.stop()
        await running

        is_broken[0] = False
        await app.publish("orders", {"n": 2}, message_id="m-1")
        await service.redrive(Selection(ids=(dead.id,)), actor="ann")
        second = app.worker()
        running = asyncio.create_task(second.run())
        async with asyncio.timeout(PATIENCE_S):
            while (await service.letter(dead.id)).letter.state is not ReviewState.CLOSED:
                await asyncio.sleep(0.005)  # sleep: the worker works in between
        second.stop()
        await running

    assert [1, 2] == runs


async def test_a_message_that_fails_again_is_a_new_letter_with_its_past(url: str) -> None:
    """Case RD-04, variant 2: five and five runs, counts and the first failure carried over, delays from the start."""
    app, runs = Redrive("shop", url), []

    @app.consumer("orders", retry=Retry(max_attempts=5, backoff=Exponential("5ms", factor=2)))
    async def charge(order: dict, delivery: Delivery) -> None:
        runs.append(delivery.attempt)
        raise ConnectionError("refused")

    letters: list[Letter] = []
    async with working(app) as service:
        await app.publish("orders", {"n": 1}, message_id="m-1", headers={"tenant": "t1"})
        for _ in range(3):
            (dead,) = await until_open_letters(service, 1)
            letters.append(dead)
            if len(letters) < 3:
                await service.redrive(Selection(ids=(dead.id,)), actor="ann")

    assert [1, 2, 3, 4, 5] * 3 == runs
    assert [0, 1, 2] == [dead.redrive_count for dead in letters]
    assert 1 == len({dead.first_failed_at for dead in letters})
    assert [None, letters[0].id, letters[1].id] == [dead.previous for dead in letters]
    assert [5, 5, 5] == [dead.attempt_count for dead in letters]
    assert [[5, 10, 20, 40, None]] * 3 == [[entry.next_delay_ms for entry in dead.history] for dead in letters]


async def test_kept_attempts_leave_one_more_run(url: str) -> None:
    """`--keep-attempts` continues the count."""
    app, runs = Redrive("shop", url), []

    @app.consumer("orders", retry=Retry(max_attempts=3, backoff=QUICK))
    async def charge(order: dict, delivery: Delivery) -> None:
        runs.append(delivery.attempt)
        if len(runs) <= 3:
            raise DeadLetter("not yet") if len(runs) == 3 else ConnectionError("refused")

    async with working(app) as service:
        await app.publish("orders", {"n": 1}, message_id="m-1")
        (dead,) = await until_open_letters(service, 1)
        view = await service.redrive(Selection(ids=(dead.id,)), JobOptions(keep_attempts=True), actor="ann")
        await until_open_letters(service, 0) if len(runs) > 3 else await asyncio.sleep(0)

    assert 1 == view.job.counts.sent
    assert [1, 2, 3] == runs[:3]
    assert all(attempt > 3 for attempt in runs[3:])


@pytest.mark.parametrize("concurrency", [1, 100, 1_000])
async def test_redriving_all_while_they_die_again_sends_each_once(url: str, concurrency: int) -> None:
    """Case RD-06: exactly a hundred sends, the job ends by itself, and says that they came back."""
    app, runs, told = Redrive("shop", url), [], []
    app.events.subscribe(lambda event: told.append(event) if event.name == "redrive.came_back" else None)

    @app.consumer("orders", retry=Retry(max_attempts=1), breaker=None, concurrency=concurrency)
    async def charge(order: dict, delivery: Delivery) -> None:
        runs.append(delivery.message.id)
        raise ConnectionError("refused")

    async with working(app) as service:
        await app.publish_many("orders", [({"n": n}, {"message_id": f"m-{n}"}) for n in range(100)])
        await until_open_letters(service, 100)
        view = await service.redrive(Selection(queue="orders"), JobOptions(rate_per_s=100.0), actor="ann")
        again = await until_open_letters(service, 100)
        later = await service.job(view.job.id)

    assert 100 == view.job.counts.sent
    assert 200 == len(runs)
    assert {1} == {dead.redrive_count for dead in again}
    assert later.returned is not None
    assert (100, 100, 100) == (later.returned.sent, later.returned.came_back, later.returned.percent)
    assert 1 == len(told)
    assert told[0].fields["came_back"] > 0


async def test_a_success_closes_the_letter(url: str) -> None:
    app = Redrive("shop", url)
    is_broken = [True]

    @app.consumer("orders", retry=Retry(max_attempts=1))
    async def charge(order: dict) -> None:
        if is_broken[0]:
            raise ConnectionError("refused")

    async with working(app) as service:
        await app.publish("orders", {"n": 1}, message_id="m-1")
        (dead,) = await until_open_letters(service, 1)
        is_broken[0] = False
        await service.redrive(Selection(ids=(dead.id,)), actor="ann")
        async with asyncio.timeout(PATIENCE_S):
            while (view := await service.letter(dead.id)).letter.state != "closed":
                await asyncio.sleep(0.005)  # sleep: the worker works in between

    assert ["reviewed", "replayed", "closed"] == [entry.action for entry in view.audit]


async def test_a_redriven_copy_does_not_die_of_its_old_deadline_unless_it_is_kept(url: str) -> None:
    """Case RD-05: dead of its lifetime while nobody worked; what fails afterwards shows the new reason only."""
    clock = FakeClock()
    app, told = Redrive("shop", url, clock=clock), []
    app.events.subscribe(lambda event: told.append(event) if event.name == "delivery.dead_lettered" else None)

    @app.consumer("orders", retry=Retry(max_attempts=1))
    async def charge(order: dict) -> None:
        raise ConnectionRefusedError("refused")

    async with app:
        service = Service(app)
        for name in ("default", "kept"):
            await app.publish("orders", {"n": 1}, message_id=name, ttl="60s", priority=7, correlation_id="c-1")
        await clock.advance(60_000)
        async with working(app):
            await until(lambda: len(told) == 2)
        first = {dead.message.id: dead for dead in await until_open_letters(service, 2)}

        await service.redrive(Selection(ids=(first["default"].id,)), actor="ann")
        await service.redrive(Selection(ids=(first["kept"].id,)), JobOptions(keep_ttl=True), actor="ann")
        await clock.advance(120_000)
        (waiting,) = [found for found in await service.queues() if found.queue == "orders"]
        async with working(app):
            await until(lambda: len(told) == 4)
        second = {dead.message.id: dead for dead in await until_open_letters(service, 2)}

    assert {"EXPIRED"} == {dead.reason.code for dead in first.values()}
    assert 2 == waiting.ready
    assert {"default": "ECONNREFUSED_EXHAUSTED", "kept": "EXPIRED"} == {
        name: dead.reason.code for name, dead in second.items()
    }
    assert {name: dead.id for name, dead in first.items()} == {name: dead.previous for name, dead in second.items()}
    assert {(7, "c-1")} == {(dead.message.priority, dead.message.properties.correlation_id) for dead in second.values()}


KINDS = 10


def traffic(now: int) -> list[Outgoing]:
    """200 messages of every kind there is."""
    made = []
    for n in range(200):
        kind, changes = n % KINDS, {}
        body = b'{"kind": %d}' % kind
        if kind == 3:
            body = b"{"
        if kind == 4:
            changes["expires_at"] = now - 1
        if kind == 5:
            changes["key"] = "the same"
        if kind == 9:
            body = b'{"kind": 9, "pad": "%s"}' % (b"x" * 500_000 if n < 20 else b"x")
        queue = "nobody" if kind == 6 else "orders"
        made.append(Outgoing(queue=queue, message=message(f"m-{n}", body=body, published_at=now, **changes)))
    return made


def message_number(delivery: Delivery) -> int:
    """17 of `m-17`."""
    return int(delivery.message.id.removeprefix("m-"))


async def test_the_books_balance(url: str) -> None:
    """Case MA-04: 200 messages that end in every way; taken = the sum of the ends, nothing in flight."""
    app = Redrive("shop", url)
    metrics = Metrics()
    metrics.subscribe(app.events)

    @app.consumer("orders", retry=Retry(max_attempts=2, backoff=QUICK), breaker=None)
    async def charge(order: dict, delivery: Delivery) -> None:
        match order["kind"]:
            case 1:
                raise ConnectionError("refused")
            case 2:
                raise DeadLetter("never")
            case 7:
                return
            case 8 if message_number(delivery) % 20 == 8:
                raise asyncio.CancelledError
            case 8:
                raise SystemExit(3)

    expected_dead = 20 + 20 + 20 + 20 + 20
    async with working(app) as service:
        await app.publish_outgoing(traffic(app.clock.now()))
        await until_open_letters(service, expected_dead)

        async def quiet(ends: int) -> None:
            """Nothing waits, for now or for later, nothing is in hand, and so many deliveries have ended."""
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    (orders,) = [found for found in await app.backend.broker.depths() if found.queue == "orders"]
                    series = scrape(metrics)
                    left = orders.ready + orders.scheduled + orders.leased + total(series, "deliveries_in_flight")
                    if not left and total(series, "deliveries_total") >= ends:
                        return
                    await asyncio.sleep(0.005)  # sleep: the worker works in between

        # 20 are for a queue nobody consumes; the refused and the cancelled ones are delivered twice.
        await quiet(180 + 40)
        view = await service.redrive(Selection(), JobOptions(limit=10), actor="ann")
        await quiet(180 + 40 + 10)
        removed = await service.remove(Selection(states=OPEN_STATES), limit=7, actor="ann")
        closed = await service.review(Selection(states=OPEN_STATES), ReviewState.CLOSED, limit=5, actor="ann")
        probes = Probes(app, metrics)
        await probes.refresh()
        stats = await service.stats(Selection(states=OPEN_STATES))
        depths = {depth.queue: depth for depth in await app.backend.broker.depths()}

    series = scrape(metrics)
    outcomes = {
        labels.split('"')[1]: value
        for (name, labels), value in series.items()
        if name == "redrive_deliveries_total" and 'queue="orders"' in labels
    }
    assert total(series, "deliveries_taken_total") == sum(outcomes.values())
    assert 0 == total(series, "deliveries_in_flight")
    assert 10 == view.job.counts.sent == total(series, "letters_redriven_total")
    gone = [
        total(series, "letters_redriven_total"),
        series["redrive_records_pruned_total", 'what="letters"'],
        series["redrive_letters_reviewed_total", 'state="closed"'],
    ]
    assert [10, removed, closed.changed] == [10, 7, 5] == gone
    assert total(series, "dlq_entries_total") - sum(gone) == stats.total == total(series, "dlq_size")
    assert stats.total == depths["orders.dead"].ready
    assert total(series, "failures_total") == outcomes["retried"] + outcomes["dead_lettered"]
    assert outcomes["processed"] == total(series, "tenant_jobs_processed")
    assert outcomes["retried"] == total(series, "retry_attempts_total")
    assert outcomes["retried"] == total(series, "retry_backoff_delay_seconds_count")
    assert 20 == depths["nobody"].ready, "a queue without a consumer is left alone, never acked away"
    assert {"ready": 0, "leased": 0} == {"ready": depths["orders"].ready, "leased": depths["orders"].leased}
