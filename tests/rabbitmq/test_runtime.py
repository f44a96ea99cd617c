"""Workers on a real RabbitMQ, 3.x and 4.x: killed, stopped, poisoned, redriven, and never fooled by a header."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pika
import pytest

from redrive import Delivery, Fixed, Redrive, Retry
from redrive.core.letters.letter import ReviewState
from tests.rabbit import Rabbit
from tests.runtime.fleet import Fleet
from tests.runtime.stage import Told, letters, quiet, redrive_all, working

AT_ONCE = Retry(max_attempts=3, backoff=Fixed("50ms"))


class RabbitFleet(Fleet):
    """Worker processes on RabbitMQ, with a store that they share."""

    def __init__(self, directory: Path, url: str) -> None:
        super().__init__(directory)
        self.url = url
        self.store = f"sqlite:////{self.file}"

    def app(self) -> Redrive:
        return Redrive("crew", broker=self.url, settings={"durability": "normal", "store": self.store})

    def worker(self, name: str, **environment: str) -> Any:
        return self.start(name, REDRIVE_STORE=self.store, **environment)


@pytest.fixture
def fleet(tmp_path: Path, rabbit: Rabbit) -> Iterator[RabbitFleet]:
    made = RabbitFleet(tmp_path, rabbit.url)
    yield made
    made.kill_all()


@pytest.fixture
def shop(tmp_path: Path, rabbit: Rabbit) -> Redrive:
    store = f"sqlite:////{tmp_path}/store.db"
    return Redrive("shop", broker=rabbit.url, settings={"durability": "normal", "store": store})


def publish_raw(url: str, queue: str, body: bytes, **properties: Any) -> None:
    """As any other client would, with whatever headers."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, **properties), mandatory=True)
    connection.close()


# ------------------------------------------------------------------------------------------------- end to end


async def test_what_is_published_is_processed_once_and_gone(shop: Redrive) -> None:
    seen = []

    @shop.consumer("orders")
    async def handle(order: dict[str, Any]) -> None:
        seen.append(order["n"])

    told = Told(shop)
    async with working(shop):
        await shop.publish_many("orders", [{"n": number} for number in range(500)])
        await told.until("deliveries.processed", 500)
        await quiet(shop, told, "orders")

    assert list(range(500)) == sorted(seen)


async def test_poison_lies_in_the_store_and_in_its_queue_and_goes_back_through_the_store(shop: Redrive) -> None:
    heals, attempts = asyncio.Event(), []

    @shop.consumer("orders", retry=AT_ONCE)
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if not heals.is_set():
            raise ConnectionRefusedError("the bank is away")

    told = Told(shop)
    async with working(shop):
        await shop.publish("orders", {"n": 1}, message_id="m-1", headers={"mine": "kept"})
        await told.until("delivery.dead_lettered")
        await quiet(shop, told, "orders")
        (entry,) = await shop.backend.broker.peek("orders.dead", limit=10)
        (letter,) = await letters(shop)
        heals.set()
        await redrive_all(shop)
        await told.until("deliveries.processed")
        await quiet(shop, told, "orders")
        await quiet(shop, told, "orders.dead")
        (closed,) = await letters(shop)

    assert [1, 2, 3, 1] == attempts
    assert (letter.id, "kept", b'{"n":1}') == (entry.headers["x-redrive-letter"], entry.headers["mine"], entry.body)
    assert (3, 3) == (letter.attempt_count, len(letter.history))
    assert ReviewState.CLOSED is closed.state


# With its old attempts kept there is none left: it is given up without another run.
@pytest.mark.parametrize(("keep", "expected"), [(False, [1, 2, 3, 1, 2, 3]), (True, [1, 2, 3])])
async def test_a_redrive_starts_anew_or_goes_on_counting(shop: Redrive, keep: bool, expected: list[int]) -> None:
    """Case RD-04."""
    attempts = []

    @shop.consumer("orders", retry=AT_ONCE)
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        raise ConnectionRefusedError("never")

    told = Told(shop)
    async with working(shop):
        await shop.publish("orders", {"n": 1})
        await told.until("delivery.dead_lettered")
        await quiet(shop, told, "orders")
        await redrive_all(shop, keep_attempts=keep)
        await told.until("delivery.dead_lettered", 2)
        await quiet(shop, told, "orders")

    assert expected == attempts


# ------------------------------------------------------------------------------------------------- counting


@pytest.mark.parametrize(
    ("deaths", "attempt"),
    [
        (
            [
                {"queue": "orders", "reason": "rejected", "count": 3},
                {"queue": "other", "reason": "rejected", "count": 7},
            ],
            4,
        ),
        ([{"queue": "orders", "reason": "rejected"}, {"queue": "orders", "reason": "rejected"}], 3),
        ([{"queue": "orders", "reason": "expired", "count": 9}], 1),
        ([], 1),
        ("boom", 1),
        (None, 1),
    ],
)
async def test_the_attempt_of_a_foreign_message_comes_from_its_deaths(
    shop: Redrive, rabbit: Rabbit, deaths: Any, attempt: int
) -> None:
    """Case RC-01: with several entries, in the old format, junk, missing; with a message id and without."""
    attempts = []

    @shop.consumer("orders", retry=Retry(max_attempts=4))
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        attempts.append(delivery.attempt)

    told = Told(shop)
    async with working(shop):
        await shop.publish("orders", {"n": 0})
        await told.until("deliveries.processed")
        headers = {} if deaths is None else {"x-death": deaths}
        publish_raw(rabbit.url, "orders", b'{"n": 1}', headers=headers, message_id="m-1")
        publish_raw(rabbit.url, "orders", b'{"n": 2}', headers=headers)
        await told.until("deliveries.processed", 3)
        await quiet(shop, told, "orders")

    assert [1, attempt, attempt] == attempts


@pytest.mark.parametrize("message_id", ["m-1", None])
async def test_three_attempts_are_three_runs_whatever_the_broker_counts(
    shop: Redrive, rabbit: Rabbit, message_id: str | None
) -> None:
    """Case RC-02, and RC-04 for a message without any id: it is published again by redrive for every retry."""
    attempts = []

    @shop.consumer("orders", retry=AT_ONCE)
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if order["n"]:
            raise ConnectionRefusedError("never")

    told = Told(shop)
    async with working(shop):
        await shop.publish("orders", {"n": 0})
        await told.until("deliveries.processed")
        publish_raw(rabbit.url, "orders", b'{"n": 1}', message_id=message_id)
        await told.until("delivery.dead_lettered")
        await quiet(shop, told, "orders")
        (letter,) = await letters(shop)

    assert [1, 1, 2, 3] == attempts
    assert 3 == letter.attempt_count


async def test_twins_without_an_id_are_both_processed(shop: Redrive, rabbit: Rabbit) -> None:
    """Case RC-04."""
    seen = []

    @shop.consumer("orders")
    async def handle(order: dict[str, Any]) -> None:
        seen.append(order["n"])

    told = Told(shop)
    async with working(shop):
        await shop.publish("orders", {"n": 0})
        await told.until("deliveries.processed")
        for _ in range(5):
            publish_raw(rabbit.url, "orders", b'{"n": 1}')
        await told.until("deliveries.processed", 6)
        await quiet(shop, told, "orders")

    assert [0, 1, 1, 1, 1, 1] == seen


# ------------------------------------------------------------------------------------------------- killed, stopped


async def declared(fleet: RabbitFleet, *payloads: dict[str, Any], message_ids: bool = True) -> None:
    """Publish these; the queue is there from then on."""
    async with fleet.app() as app:
        for number, payload in enumerate(payloads):
            await app.publish("orders", payload, message_id=f"m-{number}" if message_ids else None)


async def in_thread(call: Any, *arguments: Any, **named: Any) -> Any:
    return await asyncio.to_thread(call, *arguments, **named)


async def test_what_a_killed_worker_had_runs_again_long_before_its_lease_ends(fleet: RabbitFleet) -> None:
    await declared(fleet, {"n": 1})
    first = fleet.worker("patient")
    await in_thread(fleet.until, lambda: fleet.lines(start=1), what="the first attempt started")

    first.send_signal(signal.SIGKILL)
    first.wait()
    fleet.worker("patient")
    await in_thread(fleet.until, lambda: fleet.lines(end=1), what="another worker took over")

    assert [1, 2] == [line["attempt"] for line in fleet.lines(start=...)]


async def test_effects_inside_a_transaction_happen_once_though_the_worker_is_killed(fleet: RabbitFleet) -> None:
    with closing(sqlite3.connect(fleet.file)) as connection:
        connection.execute("CREATE TABLE effects (n INTEGER)")
        connection.commit()
    await declared(fleet, *({"n": number} for number in range(300)))

    for killed_after in (40, 120, 200):
        worker = fleet.worker("bank")
        await in_thread(fleet.until, lambda least=killed_after: len(effects(fleet.file)) >= least, what="some effects")
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    last = fleet.worker("bank")
    await in_thread(fleet.until, lambda: len(effects(fleet.file)) >= 300, what="every effect")
    async with fleet.app() as app:
        told = Told(app)
        await quiet(app, told, "orders")
        receipts = await until_peeked(app, "receipts", 300)
    last.send_signal(signal.SIGTERM)
    await in_thread(fleet.stopped, last)

    assert list(range(300)) == effects(fleet.file)
    assert {f"receipt-{number}" for number in range(300)} == receipts


async def until_peeked(app: Redrive, queue: str, count: int) -> set[str]:
    """The ids in a queue once there are so many different ones."""
    found: set[str] = set()

    async def is_there() -> bool:
        found.update(message.id for message in await app.backend.broker.peek(queue, limit=1_000))
        return len(found) >= count

    await Told(app).until_holds(is_there, what=f"{count} messages in {queue}")
    return found


def effects(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [n for (n,) in connection.execute("SELECT n FROM effects ORDER BY n")]


@pytest.mark.parametrize("message_id", ["m-1", None])
async def test_a_message_that_kills_its_worker_is_dead_after_its_attempts(
    fleet: RabbitFleet, rabbit: Rabbit, message_id: str | None
) -> None:
    """Case RC-06, with an id and without."""
    await declared(fleet, {"n": 0})
    publish_raw(rabbit.url, "orders", json.dumps({"n": 1, "bomb": True}).encode(), message_id=message_id)
    publish_raw(rabbit.url, "orders", b'{"n": 2}', message_id="m-2")

    workers = []
    for _ in range(3):
        worker = fleet.worker("bomb")
        workers.append(worker)
        assert -signal.SIGKILL == await in_thread(fleet.stopped, worker)
    fleet.worker("bomb")
    await in_thread(fleet.until, lambda: fleet.lines(event="delivery.dead_lettered"), what="the bomb is dead")
    await in_thread(fleet.until, lambda: fleet.lines(end=0) and fleet.lines(end=2), what="the others are processed")
    async with fleet.app() as app:
        (letter,) = await letters(app)

    assert [1, 2, 3] == [line["attempt"] for line in fleet.lines(start=1)]
    assert ("WORKER_LOST", 3) == (letter.reason.code, letter.attempt_count)


async def test_deploys_cost_no_attempt(fleet: RabbitFleet) -> None:
    """Case RC-07."""
    await declared(fleet, {"n": 1})

    for number in range(1, 4):
        worker = fleet.worker("sleeper", CREW_GRACE="100ms", CREW_SLEEP="600")
        await in_thread(fleet.until, lambda least=number: len(fleet.lines(start=1)) >= least, what="it started")
        worker.send_signal(signal.SIGTERM)
        assert 0 == await in_thread(fleet.stopped, worker)
    fleet.worker("sleeper", CREW_SLEEP="0")
    await in_thread(fleet.until, lambda: fleet.lines(end=1), what="it was handled to the end")

    assert [1, 1, 1, 1] == [line["attempt"] for line in fleet.lines(start=1)]


# ------------------------------------------------------------------------------------------------- from elsewhere


async def test_a_process_without_consumers_can_redrive(shop: Redrive, rabbit: Rabbit, tmp_path: Path) -> None:
    heals = asyncio.Event()

    @shop.consumer("orders", retry=Retry(max_attempts=1))
    async def handle(order: dict[str, Any]) -> None:
        if not heals.is_set():
            raise ConnectionRefusedError("the bank is away")

    elsewhere = Redrive("redrive", broker=rabbit.url, settings={"store": f"sqlite:////{tmp_path}/store.db"})
    told = Told(shop)
    async with working(shop):
        await shop.publish_many("orders", [{"n": number} for number in range(20)])
        await told.until("delivery.dead_lettered", 20)
        await quiet(shop, told, "orders")
        heals.set()
        async with elsewhere:
            job = await redrive_all(elsewhere)
        await told.until("deliveries.processed", 20)
        await quiet(shop, told, "orders.dead")
        states = {letter.state for letter in await letters(shop)}

    assert (20, 0) == (job.job.counts.sent, job.job.counts.skipped)
    assert {ReviewState.CLOSED} == states
