"""What people hold back: queues that are paused, tenants and keys that are set aside."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from redrive import Redrive
from redrive.core.policy.control import QUARANTINED, Control, Controls, Kind, Pause
from redrive.errors import BrokerUnavailableError, ConfigurationError, NotFoundError, SchemaTooNewError
from redrive.service import Service
from redrive.stores.memory import MemoryControlStore
from tests.rabbit import Rabbit
from tests.redis import Redis
from tests.runtime.conftest import MakeApp
from tests.runtime.held import QUEUE, play_pause, play_quarantine
from tests.runtime.stage import Told, depth, working


async def test_a_pause_holds_and_survives_workers(make_app: MakeApp) -> None:
    await play_pause(make_app())


async def test_what_is_set_aside_is_kept_and_nobody_else_waits(make_app: MakeApp) -> None:
    await play_quarantine(make_app())


def on(url: str, tmp_path: Path) -> Redrive:
    store = f"sqlite:////{tmp_path}/store.db"
    return Redrive("shop", broker=url, settings={"durability": "normal", "store": store})


async def test_a_pause_holds_on_rabbitmq(rabbit: Rabbit, tmp_path: Path) -> None:
    await play_pause(on(rabbit.url, tmp_path))


async def test_what_is_set_aside_is_kept_on_rabbitmq(rabbit: Rabbit, tmp_path: Path) -> None:
    await play_quarantine(on(rabbit.url, tmp_path))


async def test_a_pause_holds_on_redis(redis: Redis, tmp_path: Path) -> None:
    await play_pause(on(redis.url, tmp_path))


async def test_what_is_set_aside_is_kept_on_redis(redis: Redis, tmp_path: Path) -> None:
    await play_quarantine(on(redis.url, tmp_path))


async def test_messages_set_aside_use_up_nobodys_rate(rabbit: Rabbit, tmp_path: Path) -> None:
    """Where each worker counts for itself; a rate that the broker counts is counted at the take."""
    app = on(rabbit.url, tmp_path)
    handled = []

    @app.consumer(QUEUE, rate="3/h", concurrency=2)
    async def handle(order: dict[str, Any]) -> None:
        handled.append(order["n"])

    told = Told(app)
    async with app:
        service = Service(app)
        await service.quarantine(QUEUE, [(Kind.TENANT, "acme")], actor="ann")
        await app.publish_many(QUEUE, [({"n": n}, {"tenant": "acme"}) for n in range(20)])
        await app.publish_many(QUEUE, [({"n": n}, {"tenant": "bolt"}) for n in range(20, 23)])
        async with working(app):
            await told.until("deliveries.processed", 3)
            await told.until("delivery.dead_lettered", 20)

    assert {20, 21, 22} == set(handled)


async def test_a_quarantine_ends_by_itself(make_app: MakeApp) -> None:
    app = make_app()

    @app.consumer(QUEUE)
    async def handle(order: dict[str, Any]) -> None: ...

    told = Told(app)
    async with app:
        soon = app.clock.now() + 600
        await Service(app).quarantine(QUEUE, [(Kind.TENANT, "acme")], until=soon, actor="ann")
        await app.publish(QUEUE, {}, tenant="acme")
        async with working(app):
            (dead,) = await told.until("delivery.dead_lettered")
            while app.clock.now() < soon:
                await asyncio.sleep(0.05)  # sleep: its time passes
            await app.publish(QUEUE, {}, tenant="acme")
            await told.until("deliveries.processed")

    assert QUARANTINED == dead["reason_code"]


async def test_a_name_that_nobody_knows_is_not_paused(make_app: MakeApp) -> None:
    app = make_app()

    @app.consumer(QUEUE)
    async def handle(order: dict[str, Any]) -> None: ...

    async with app:
        service = Service(app)
        with pytest.raises(NotFoundError, match='"ordres"'):
            await service.pause_queue("ordres", actor="ann")
        with pytest.raises(NotFoundError, match='"ordres"'):
            await service.quarantine("ordres", [(Kind.KEY, "k")], actor="ann")
        with pytest.raises(NotFoundError, match="is not set aside"):
            await service.release(QUEUE, [(Kind.KEY, "k")], actor="ann")
        with pytest.raises(ConfigurationError, match="over already"):
            await service.quarantine(QUEUE, [(Kind.KEY, "k")], until=1, actor="ann")

        assert () == await service.controls()


async def test_limits_and_a_pause_leave_each_other_alone(make_app: MakeApp) -> None:
    app = make_app()

    @app.consumer(QUEUE, fair_by="tenant")
    async def handle(order: dict[str, Any]) -> None: ...

    async with app:
        service = Service(app)
        await service.pause_queue(QUEUE, actor="ann", note="first")
        again = await service.pause_queue(QUEUE, actor="bob", note="second")
        await service.set_limits(QUEUE, batch=5, rates={}, actor="bob")
        await service.quarantine(QUEUE, [(Kind.KEY, "k")], actor="bob")
        await service.reset_limits(QUEUE, actor="bob")
        kept = await service.control(QUEUE)
        await service.release(QUEUE, [], actor="bob")
        await service.resume_queue(QUEUE, actor="bob")

        assert again.paused is not None
        assert ("ann", "first") == (again.paused.actor, again.paused.note)
        assert (None, again.paused, 1) == (kept.batch, kept.paused, len(kept.quarantined))
        assert () == await service.controls()


class Away(MemoryControlStore):
    """A store that fails so often, and then answers."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)

    async def list(self) -> Controls:
        if self.errors:
            raise self.errors.pop(0)
        return await super().list()


@pytest.mark.parametrize("url", ["memory://"])
async def test_nothing_is_taken_before_it_is_known_whether_it_may_be(make_app: MakeApp) -> None:
    app = make_app()
    handled = []

    @app.consumer(QUEUE)
    async def handle(order: dict[str, Any]) -> None:
        handled.append(order)

    told = Told(app)
    async with app:
        away = Away(BrokerUnavailableError("gone"), BrokerUnavailableError("gone"))
        await away.put(Control(queue=QUEUE, paused=Pause(actor="ann")))
        app._backend = replace(app.backend, controls=away)
        await app.publish(QUEUE, {})
        async with working(app):
            await told.until("queue.paused")

        assert ([], 1) == (handled, await depth(app, QUEUE))


@pytest.mark.parametrize("url", ["memory://"])
async def test_what_a_newer_redrive_wants_cannot_be_known_and_that_is_told(make_app: MakeApp) -> None:
    app = make_app()

    @app.consumer(QUEUE)
    async def handle(order: dict[str, Any]) -> None: ...

    told = Told(app)
    async with app:
        app._backend = replace(app.backend, controls=Away(SchemaTooNewError("schema 9")))
        await app.publish(QUEUE, {})
        async with working(app):
            await told.until("deliveries.processed")

    (unreadable,) = told.named("queue.control_unreadable")
    assert ([QUEUE], True) == (unreadable["queues"], "schema 9" in unreadable["error_text"])
