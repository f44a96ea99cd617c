"""`delivery.transaction()`: effects and the end of the message happen together, once, or not at all."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from redrive import Delivery, Fixed, Redrive, Retry
from redrive.errors import UnsupportedError
from tests.runtime.fleet import Fleet
from tests.runtime.stage import PATIENCE_S, Told, depth, letters, quiet, working

AT_ONCE = Fixed("1ms")


@pytest.fixture
def shop(tmp_path: Path) -> Redrive:
    return Redrive("shop", broker=f"sqlite:////{tmp_path}/app.db", settings={"durability": "normal"})


def effects(path: Path) -> list[int]:
    connection = sqlite3.connect(path)
    try:
        return [row[0] for row in connection.execute("SELECT n FROM effects ORDER BY n")]
    finally:
        connection.close()


def make_table(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE effects (n INTEGER)")
    connection.commit()
    connection.close()


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_effects_a_message_and_the_end_are_one_commit(shop: Redrive, tmp_path: Path, kind: str) -> None:
    received = []

    if kind == "async":

        @shop.consumer("orders")
        async def handle(order: dict[str, Any], delivery: Delivery) -> None:
            async with delivery.transaction() as tx:
                tx.execute("INSERT INTO effects (n) VALUES (?)", (order["n"],))
                tx.publish("receipts", {"n": order["n"]})
    else:

        @shop.consumer("orders")
        def handle_in_a_thread(order: dict[str, Any], delivery: Delivery) -> None:
            with delivery.transaction() as tx:
                tx.execute("INSERT INTO effects (n) VALUES (?)", (order["n"],))
                tx.publish("receipts", {"n": order["n"]})

    @shop.consumer("receipts")
    async def receive(receipt: dict[str, Any], delivery: Delivery) -> None:
        received.append((receipt["n"], delivery.tenant))

    told = Told(shop)
    async with shop:
        make_table(tmp_path / "app.db")
        async with working(shop):
            await shop.publish("orders", {"n": 1}, tenant="t1", message_id="m-1")
            await told.until("deliveries.processed", 2)
            await quiet(shop, told, "orders")
            await shop.publish("orders", {"n": 1}, tenant="t1", message_id="m-1")
            await told.until("delivery.duplicate")

    assert [1] == effects(tmp_path / "app.db")
    assert [(1, "t1")] == received


async def test_an_error_inside_rolls_back_and_is_a_failed_attempt(shop: Redrive, tmp_path: Path) -> None:
    @shop.consumer("orders", retry=Retry(max_attempts=2, backoff=AT_ONCE))
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        async with delivery.transaction() as tx:
            tx.execute("INSERT INTO effects (n) VALUES (?)", (delivery.attempt,))
            if delivery.attempt == 1:
                raise ConnectionError("before the commit")

    told = Told(shop)
    async with shop:
        make_table(tmp_path / "app.db")
        async with working(shop):
            await shop.publish("orders", {"n": 1}, message_id="m-1")
            await told.until("deliveries.processed")

    assert [2] == effects(tmp_path / "app.db")


async def test_an_error_after_the_commit_is_told_and_changes_nothing(shop: Redrive, tmp_path: Path) -> None:
    @shop.consumer("orders", retry=Retry(max_attempts=5, backoff=AT_ONCE))
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        async with delivery.transaction() as tx:
            tx.execute("INSERT INTO effects (n) VALUES (?)", (1,))
        raise ConnectionError("after the commit")

    told = Told(shop)
    async with shop:
        make_table(tmp_path / "app.db")
        async with working(shop):
            await shop.publish("orders", {"n": 1}, message_id="m-1")
            await told.until("delivery.failed_after_commit")
            await quiet(shop, told, "orders")

            assert [] == await letters(shop)
            assert told.count("delivery.retry_scheduled") == 0
            assert told.count("deliveries.processed") == 1
    assert [1] == effects(tmp_path / "app.db")


async def test_a_broker_without_transactions_says_so() -> None:
    app = Redrive("shop", broker="memory://")
    raised = []

    @app.consumer("orders")
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        try:
            delivery.transaction()
        except UnsupportedError as error:
            raised.append(error)

    told = Told(app)
    async with working(app):
        await app.publish("orders", {"n": 1})
        await told.until("deliveries.processed")

    assert len(raised) == 1


async def test_under_kill_nine_every_effect_happens_exactly_once(fleet: Fleet) -> None:
    draws = random.Random(7)
    count = 400
    async with fleet.app() as app:
        make_table(fleet.file)
        await app.publish_many("orders", [({"n": n}, {"message_id": f"m-{n}"}) for n in range(count)])
        workers = [fleet.start("bank"), fleet.start("bank")]
        for _ in range(6):
            await asyncio.sleep(draws.uniform(0.1, 0.8))  # sleep: until the next kill
            victim = draws.randrange(2)
            workers[victim].kill()
            workers[victim].wait()
            workers[victim] = fleet.start("bank")

        async with asyncio.timeout(2 * PATIENCE_S):
            while await depth(app, "orders"):
                await asyncio.sleep(0.05)  # sleep: another process

        assert list(range(count)) == effects(fleet.file)
        assert count == await depth(app, "receipts")
        assert [] == await letters(app)
