"""Tenants' own limits on BullMQ's queues: what is over one is set aside, and to BullMQ it waits like all else."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from redrive import Delivery, Redrive, Settings
from redrive.brokers.bullmq.broker import BullBroker
from redrive.core import settlement
from redrive.core.policy.fair import Fair
from redrive.core.policy.places import REBASE_AT
from redrive.core.ports import Received, Settle
from redrive.core.settlement import Reason
from redrive.runtime.clock import SystemClock
from redrive.service import Service
from redrive.testing.samples import QUEUE, outgoing
from tests.conftest import PATIENCE
from tests.redis import Redis
from tests.runtime.stage import Told, working

WHY = Reason(code="TEST", text="it did not answer")
LEASE_MS = 30_000
SLOW = Fair(rate={"limited": "2/h"})
NARROW = Fair(concurrency={"limited": 1})
FREE = Fair()
ASIDE = 2**53


class Fleet:
    """Brokers of one server, each as a process of its own would have it."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.opened: list[BullBroker] = []

    async def broker(self, fair: Fair | None) -> BullBroker:
        return await self.going_by({} if fair is None else {QUEUE: fair})

    async def going_by(self, fair: dict[str, Fair]) -> BullBroker:
        """`fair` may change while it is used."""
        broker = BullBroker(self.redis.url, clock=SystemClock(), fair=fair)
        self.opened.append(broker)
        await broker.open()
        return broker

    def ask(self, command: str, part: str, *args: str | float) -> object:
        return self.redis.ask(command, f"bull:{QUEUE}:{part}", *args)

    def aside(self) -> int:
        found = self.ask("ZCOUNT", "prioritized", ASIDE, "+inf")
        assert isinstance(found, int)
        return found


@pytest_asyncio.fixture
async def fleet(redis: Redis) -> AsyncIterator[Fleet]:
    made = Fleet(redis)
    yield made
    for broker in made.opened:
        await broker.close()


async def publish(broker: BullBroker, tenants: Iterable[str]) -> None:
    await broker.publish([outgoing(f"{tenant}-{n}", tenant=tenant) for n, tenant in enumerate(tenants)])


async def take(broker: BullBroker, limit: int = 50, *, lease_ms: int = LEASE_MS) -> list[Received]:
    return await broker.receive(QUEUE, limit=limit, lease_ms=lease_ms, worker="w1", wait_ms=0)


async def ack(broker: BullBroker, taken: Iterable[Received]) -> None:
    await broker.settle([Settle(lease=each.lease, settlement=settlement.ACK) for each in taken])


def tenants_of(taken: Iterable[Received]) -> Counter[str | None]:
    return Counter(each.message.tenant for each in taken)


# ---------------------------------------------------------------------------------------------- who may start


async def test_a_rate_of_a_tenant_is_one_for_all_processes(fleet: Fleet) -> None:
    one, two = await fleet.broker(SLOW), await fleet.broker(SLOW)
    await publish(one, ["limited"] * 10 + ["free"] * 4)

    taken = [*await take(one, 4), *await take(two, 4), *await take(one), *await take(two)]

    assert {"limited": 2, "free": 4} == tenants_of(taken)


async def test_what_is_set_aside_comes_in_its_order_and_newer_ones_behind_it(fleet: Fleet) -> None:
    broker = await fleet.broker(NARROW)
    await publish(broker, ["limited"] * 5)
    order: list[str] = []
    first = await take(broker)
    await broker.publish([outgoing("newer", tenant="limited")])
    await ack(broker, first)

    while taken := await take(broker):
        order += [each.message.id for each in taken]
        await ack(broker, taken)

    assert [*(f"limited-{n}" for n in range(1, 5)), "newer"] == order
    assert 0 == fleet.redis.ask("EXISTS", f"bull:{QUEUE}:redrive:aside", f"bull:{QUEUE}:redrive:bands")


async def test_a_tenant_that_was_held_gets_its_share_and_no_more(fleet: Fleet) -> None:
    broker = await fleet.broker(NARROW)
    await publish(broker, ["limited"] * 40 + ["free"] * 40)
    held = await take(broker, 30)
    assert fleet.aside() > 0
    await ack(broker, held)
    order: list[str | None] = []

    while len(order) < 18:
        taken = await take(broker, 1)
        order += [each.message.tenant for each in taken]
        await ack(broker, taken)

    assert {"limited": 9, "free": 9} == pytest.approx(dict(Counter(order)), abs=1)


async def test_a_limited_and_a_failing_tenant_hold_up_nobody(fleet: Fleet) -> None:
    """FA-05."""
    broker = await fleet.broker(NARROW)
    await publish(broker, ["limited"] * 50 + ["failing"] * 50 + ["good"] * 50)
    in_hand = [each for each in await take(broker, 3) if each.message.tenant == "limited"]
    started: Counter[str | None] = Counter()

    while started["good"] < 30:
        taken = await take(broker, 4)
        started += tenants_of(taken)
        again = settlement.Retry(due_at=SystemClock().now(), reason=WHY)
        ends = [again if each.message.tenant == "failing" else settlement.ACK for each in taken]
        await broker.settle([Settle(lease=m.lease, settlement=end) for m, end in zip(taken, ends, strict=True)])

    assert 1 == len(in_hand)
    assert {"good": 30, "failing": 30} == pytest.approx(dict(started), abs=3)


async def test_a_rate_that_is_changed_while_workers_run_holds_at_once(fleet: Fleet) -> None:
    fair = {QUEUE: SLOW}
    broker = await fleet.going_by(fair)
    await publish(broker, ["limited"] * 10)
    before = await take(broker)

    fair[QUEUE] = Fair(rate={"limited": "5/h"})
    raised = await take(broker)
    fair[QUEUE] = Fair(rate={"limited": "3/h"})
    lowered = await take(broker)
    fair[QUEUE] = FREE
    free = await take(broker)

    assert [2, 3, 0, 5] == [len(each) for each in (before, raised, lowered, free)]


async def test_the_end_of_a_job_calls_whoever_is_idle(fleet: Fleet) -> None:
    broker = await fleet.broker(NARROW)
    await publish(broker, ["limited"] * 3)
    taken = await take(broker)
    await take(broker)
    fleet.ask("DEL", "marker")

    await ack(broker, taken)

    assert [b"0"] == fleet.ask("ZRANGE", "marker", 0, -1)


async def test_who_died_with_a_tenants_jobs_in_hand_gives_the_room_back(fleet: Fleet) -> None:
    killed, other = await fleet.broker(NARROW), await fleet.broker(NARROW)
    await publish(killed, ["limited"] * 3)
    lost = await take(killed, lease_ms=300)

    found = await other.receive(
        QUEUE, limit=50, lease_ms=LEASE_MS, worker="w2", wait_ms=int(PATIENCE.total_seconds() * 1_000)
    )
    none = await take(other)

    assert [each.message.id for each in lost] == [each.message.id for each in found]
    assert [] == none


async def test_what_was_lost_is_the_first_of_what_its_tenant_has_set_aside(fleet: Fleet) -> None:
    fair = {QUEUE: SLOW}
    broker = await fleet.going_by(fair)
    await publish(broker, ["limited"] * 5)
    done, _lost = await take(broker, lease_ms=300)
    await ack(broker, [done])
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while fleet.ask("LLEN", "active"):
            await broker.receive(QUEUE, limit=1, lease_ms=LEASE_MS, worker="w1", wait_ms=50)
    await take(broker)

    fair[QUEUE] = Fair(rate={"limited": "3/h"})

    assert ["limited-1"] == [each.message.id for each in await take(broker)]


@pytest.mark.parametrize("when", ["before", "while it runs"])
async def test_a_rate_that_a_person_sets_holds_in_workers_that_run(redis: Redis, tmp_path: Path, when: str) -> None:
    app = Redrive("shop", settings=Settings(broker=redis.url, store=f"sqlite:///{tmp_path / 'letters.db'}"))
    started: list[str | None] = []
    told = Told(app)

    @app.consumer(QUEUE, fair_by="tenant", concurrency=2)
    async def send(mail: dict[str, Any], delivery: Delivery) -> None:
        started.append(delivery.tenant)

    async with app:
        limits = Service(app).set_limits
        if when == "before":
            await limits(QUEUE, batch=None, rates={"slow": "1/h"}, actor="ann")
        async with working(app):
            if when != "before":
                await limits(QUEUE, batch=None, rates={"slow": "1/h"}, actor="ann")
            async with asyncio.timeout(PATIENCE.total_seconds()):
                while not told.count("queue.limits_changed"):
                    await asyncio.sleep(0.01)  # sleep: the worker works in between
                await app.publish_many(QUEUE, [{"n": n} for n in range(10)], tenant="slow")
                await app.publish_many(QUEUE, [{"n": n} for n in range(10)], tenant="quick")
                while started.count("quick") < 10 or not started.count("slow"):
                    await asyncio.sleep(0.01)  # sleep: the worker works in between

    assert (1, 10) == (started.count("slow"), started.count("quick"))
    assert 9 == redis.ask("ZCARD", f"bull:{QUEUE}:prioritized")


# ---------------------------------------------------------------------------------------------- to BullMQ it waits


async def test_what_is_set_aside_is_a_waiting_job_that_others_take_last(fleet: Fleet) -> None:
    broker, stock = await fleet.broker(SLOW), await fleet.broker(None)
    await publish(broker, ["limited"] * 10)
    await take(broker)
    await publish(broker, ["free"] * 2)

    (depth,) = await broker.depths([QUEUE])
    shown = fleet.ask("ZCARD", "prioritized")
    standings = await broker.standings(QUEUE, limit=10)
    order = [each.message.tenant for each in await take(stock)]

    assert (10, 10) == (depth.ready, shown)
    assert {"limited": 8, "free": 2} == {each.name: each.waiting for each in standings}
    assert ["free"] * 2 + ["limited"] * 8 == order
    assert [] == await take(broker)


async def test_what_is_removed_while_it_is_set_aside_takes_no_turn(fleet: Fleet) -> None:
    broker = await fleet.broker(NARROW)
    await publish(broker, ["limited"] * 6)
    taken = await take(broker)
    await take(broker)

    assert 4 == await broker.discard(QUEUE, lambda message: message.id != "limited-5", limit=100)
    await ack(broker, taken)
    rest = await take(broker)

    assert ["limited-5"] == [each.message.id for each in rest]


async def test_what_nobody_remembers_is_placed_again(fleet: Fleet) -> None:
    broker = await fleet.broker(SLOW)
    await publish(broker, ["limited"] * 700)
    taken = await take(broker)
    await take(broker)
    for part in ("aside", "bands", "turns"):
        fleet.ask("DEL", f"redrive:{part}")

    again = await fleet.broker(FREE)
    while rest := await take(again, 100):
        taken += rest
        await ack(again, rest)

    assert {"limited": 700} == tenants_of(taken)
    assert 700 == len({each.message.id for each in taken})


async def test_what_is_set_aside_stays_there_while_places_move_back(fleet: Fleet) -> None:
    broker = await fleet.broker(NARROW)
    await publish(broker, ["limited"] * 4)
    taken = await take(broker)
    fleet.ask("HSET", "redrive:turns", "now", REBASE_AT)

    await publish(broker, ["free"])
    held = fleet.aside()
    both = await take(broker)
    await ack(broker, taken)
    both += await take(broker)

    assert 3 == held
    assert {"limited": 1, "free": 1} == tenants_of(both)
    assert int(str(fleet.redis.ask("HGET", f"bull:{QUEUE}:redrive:turns", "now"), "ascii")) < REBASE_AT


# ---------------------------------------------------------------------------------------------- whose job it is


def add_as_node(fleet: Fleet, job_id: str, data: str, *, priority: int = 0) -> None:
    """As another producer does."""
    named = ("name", "mail", "data", data, "opts", "{}", "timestamp", 1, "delay", 0, "priority", priority)
    fleet.ask("HSET", job_id, *named)
    if priority:
        fleet.ask("ZADD", "prioritized", priority * 2**32, job_id)
    else:
        fleet.ask("LPUSH", "wait", job_id)


async def test_a_field_of_foreign_jobs_names_their_tenant(fleet: Fleet) -> None:
    broker = await fleet.broker(Fair(tenant_field="companyId"))
    for number in range(20):
        add_as_node(fleet, f"n-{number}", '{"companyId": "noisy", "to": "x"}')
    add_as_node(fleet, "q-1", '{"companyId": 42}')
    add_as_node(fleet, "q-2", '{"companyId": " late "}', priority=9)

    taken = await take(broker, 3)

    assert {"noisy", "42", "late"} == set(tenants_of(taken))


@pytest.mark.parametrize(
    ("data", "tenant"),
    [
        ('{"companyId": 42.5}', "42.5"),
        ('{"companyId": "' + "ä" * 200 + '"}', "ä" * 126 + "…"),
        ('{"companyId": ""}', None),
        ('{"companyId": null}', None),
        ('{"companyId": ["a"]}', None),
        ('{"other": 1}', None),
        ("[1]", None),
        ("7", None),
        ("{broken", None),
        ("[" * 5_000, None),
        ('{"companyId": "a", "x": "' + "x" * 70_000 + '"}', None),
    ],
)
async def test_data_that_names_no_tenant_is_nobodys(fleet: Fleet, data: str, tenant: str | None) -> None:
    broker = await fleet.broker(Fair(tenant_field="companyId"))
    add_as_node(fleet, "odd", data)

    (taken,) = await take(broker)

    assert tenant == taken.message.tenant


async def test_a_limit_holds_for_foreign_jobs_too(fleet: Fleet) -> None:
    broker = await fleet.broker(Fair(tenant_field="companyId", concurrency=2))
    for number in range(6):
        add_as_node(fleet, f"n-{number}", '{"companyId": "acme"}')
    add_as_node(fleet, "b", '{"companyId": "bolt"}')

    assert {"acme": 2, "bolt": 1} == tenants_of(await take(broker))
