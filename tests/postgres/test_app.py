"""An app on RabbitMQ or Redis with its store in PostgreSQL: the handler's rows, the claim and the messages are one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import Delivery, Fixed, Redrive, Retry
from redrive.core.letters.selection import Selection
from redrive.errors import ConfigurationError, UnsupportedError
from redrive.service import Service
from redrive.testing.servers.postgres import ask
from tests import rabbit, redis
from tests.rabbit import server_of
from tests.redis import empty_server
from tests.runtime.stage import Told, letters, working


@pytest.fixture(params=["amqp", "redis"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "redis":
        yield empty_server(redis.OLD).url
        return
    with server_of(rabbit.OLD, tmp_path_factory).vhost() as vhost:
        yield vhost.url


async def test_effects_a_message_and_the_end_are_one_commit_in_the_users_database(
    broker: str, postgres: str, tmp_path: Path
) -> None:
    shop = Redrive("shop", broker=broker, settings={"store": postgres})
    received = []

    @shop.consumer("orders", retry=Retry(max_attempts=2, backoff=Fixed("1ms")))
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        async with delivery.transaction() as tx:
            tx.execute("INSERT INTO effects (n, attempt) VALUES (%s, %s)", (order["n"], delivery.attempt))
            tx.publish("receipts", {"n": order["n"]})
            if order["n"] == 13 or delivery.attempt == 1:
                raise ConnectionError("before the commit")

    @shop.consumer("receipts")
    async def receive(receipt: dict[str, Any]) -> None:
        received.append(receipt["n"])

    ask(postgres, "CREATE TABLE effects (n int, attempt int)")
    told = Told(shop)
    async with shop, working(shop):
        await shop.publish("orders", {"n": 1}, message_id="m-1")
        await shop.publish("orders", {"n": 13}, message_id="m-13")
        await told.until("deliveries.processed", 2)
        await told.until("delivery.dead_lettered")
        await shop.publish("orders", {"n": 1}, message_id="m-1")
        kept = await letters(shop)
        service = Service(shop)

        assert ["m-13"] == [each.message.id for each in kept]
        assert 1 == (await service.stats(Selection(queue="orders"))).total
        assert 1 == len((await shop.backend.groups.groups(limit=5)).groups)
        assert shop.backend.local_store is None
        with pytest.raises(UnsupportedError) as refused:
            await service.backup(tmp_path / "copy.db")
        assert "pg_dump" in (refused.value.hint or "")

    assert [(1, 2)] == ask(postgres, "SELECT n, attempt FROM effects")
    assert [1] == received
    assert [] == ask(postgres, "SELECT * FROM redrive_outbox")
    assert [("orders", "m-1", 2)] == ask(
        postgres, "SELECT queue, key, state::int FROM redrive_claim WHERE queue = 'orders' AND state = 2"
    )


async def test_a_store_nobody_knows_is_refused_with_what_there_is() -> None:
    app = Redrive("shop", broker="redis://127.0.0.1:1/0", settings={"store": "mysql://host/db"})

    with pytest.raises(ConfigurationError) as refused:
        await app.__aenter__()

    assert "postgresql://" in (refused.value.hint or "")
