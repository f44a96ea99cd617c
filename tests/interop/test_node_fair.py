"""Node beside queues whose turns are taken by tenant: its workers, its producers, its look at what waits (cases FA-01,
FA-05).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from redrive import Delivery, Fair, Redrive, Settings
from redrive.brokers.bullmq.broker import BullBroker
from redrive.runtime.clock import SystemClock
from redrive.testing.samples import outgoing
from tests.conftest import PATIENCE
from tests.interop.node import Node
from tests.interop.stage import QUEUE
from tests.redis import Redis
from tests.runtime.stage import working


async def test_nodes_workers_take_turns_too(redis: Redis, node: Node, tmp_path: Path) -> None:
    app = Redrive("shop", settings=Settings(broker=redis.url, store=f"sqlite:///{tmp_path / 'letters.db'}"))

    @app.consumer(QUEUE, fair_by="tenant")
    async def handle(payload: Any) -> None:
        """Not called: Node works here."""

    async with app:
        await app.publish_many(QUEUE, [("noisy", {"tenant": "noisy"})] * 60)
        await app.publish_many(QUEUE, [("quiet", {"tenant": "quiet"})] * 10)
    await node.call("work", queue=QUEUE, opts={"concurrency": 1})

    order = [(await node.wait("run", queue=QUEUE))["data"] for _ in range(20)]

    assert 10 == order.count("quiet")


@asynccontextmanager
async def limited(redis: Redis) -> AsyncIterator[BullBroker]:
    """A broker that has one job of a tenant in hand, which is all it may, and has set five aside."""
    broker = BullBroker(redis.url, clock=SystemClock(), fair={QUEUE: Fair(concurrency=1)})
    await broker.open()
    await broker.publish([outgoing(f"m-{n}", queue=QUEUE, tenant="limited") for n in range(6)])
    assert ["m-0"] == await taken(broker)
    assert [] == await taken(broker)
    yield broker
    await broker.close()


async def taken(broker: BullBroker) -> list[str]:
    found = await broker.receive(QUEUE, limit=10, lease_ms=60_000, worker="w1", wait_ms=0)
    return [each.message.id for each in found]


async def test_what_is_set_aside_waits_for_node_and_is_worked_off_by_it(redis: Redis, node: Node) -> None:
    async with limited(redis):
        counts = await node.call("counts", queue=QUEUE)
        shown = [job["id"] for job in await node.call("jobs", queue=QUEUE, state="prioritized")]
        state = (await node.call("job", queue=QUEUE, id="m-3"))["state"]
        await node.call("remove", queue=QUEUE, id="m-3")
        await node.call("changePriority", queue=QUEUE, id="m-4", priority=7)

        await node.call("work", queue=QUEUE, opts={"concurrency": 1})
        order = [(await node.wait("completed", queue=QUEUE))["id"] for _ in range(4)]

    assert (5, 1) == (counts["prioritized"], counts["active"])
    assert {f"m-{n}" for n in range(1, 6)} == set(shown)
    assert "prioritized" == state
    assert ["m-4", "m-1", "m-2", "m-5"] == order


@pytest.mark.parametrize("how", ["drain", "obliterate"])
async def test_node_empties_a_queue_with_jobs_set_aside_and_it_goes_on(redis: Redis, node: Node, how: str) -> None:
    async with limited(redis) as broker:
        await node.call(how, queue=QUEUE)
        counts = await node.call("counts", queue=QUEUE)
        if how == "obliterate":
            await node.call("resume", queue=QUEUE)
        await broker.publish([outgoing("new", queue=QUEUE, tenant="other")])

        assert 0 == counts["prioritized"]
        assert ["new"] == await taken(broker)
        assert [] == await taken(broker)


async def test_a_queue_that_node_pauses_keeps_what_is_set_aside(redis: Redis, node: Node) -> None:
    async with limited(redis) as broker:
        await node.call("pause", queue=QUEUE)
        await broker.publish([outgoing("new", queue=QUEUE, tenant="other")])
        none = await taken(broker)
        await node.call("resume", queue=QUEUE)

        assert [] == none
        assert ["new"] == await taken(broker)
        assert 5 == (await node.call("counts", queue=QUEUE))["prioritized"]


async def test_the_tenant_of_nodes_jobs_is_a_field_of_their_data(redis: Redis, node: Node, tmp_path: Path) -> None:
    app = Redrive("shop", settings=Settings(broker=redis.url, store=f"sqlite:///{tmp_path / 'letters.db'}"))
    started: list[str | None] = []
    jobs = [{"name": "mail", "data": {"companyId": company}} for company in ["noisy"] * 40 + [7] * 5]
    await node.call("addBulk", queue=QUEUE, jobs=jobs)

    @app.consumer(QUEUE, fair_by=Fair(tenant_field="companyId"), concurrency=1)
    async def send(payload: Any, delivery: Delivery) -> None:
        started.append(delivery.tenant)

    async with app, working(app), asyncio.timeout(PATIENCE.total_seconds()):
        while len(started) < len(jobs):
            await asyncio.sleep(0.01)  # sleep: the worker works in between

    assert 5 == started[:12].count("7")
    assert 40 == started.count("noisy")
