"""The sorter of a fair queue on a real RabbitMQ: killed, cut off, restarted under, and fed by others."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pika
import pytest

from redrive import Fair, Redrive, delay_levels, fanout_bus, topologies
from redrive.brokers.rabbitmq.broker import RabbitBroker
from redrive.brokers.rabbitmq.sorter import lock_of
from redrive.core import settlement
from redrive.core.ports import Outgoing, Received, Settle
from redrive.core.topology.bundle import bundle_of
from redrive.errors import QueueNotFoundError
from redrive.runtime.clock import SystemClock
from redrive.testing.contracts.fairness import WHY
from redrive.testing.samples import outgoing
from tests.rabbit import Rabbit, RabbitAlone
from tests.rabbitmq.connected import PATIENCE_S, consumers, delete_queue, depth, plain, until
from tests.rabbitmq.test_runtime import RabbitFleet

MAIL = "mail"
BUNDLE = bundle_of(MAIL)
IN_FRONT = 60
"""So few starts come before a quiet tenant's, whatever lies before it, once what hides it has been moved."""


@pytest.fixture
def fleet(tmp_path: Path, rabbit: Rabbit) -> Iterator[RabbitFleet]:
    made = RabbitFleet(tmp_path, rabbit.url)
    yield made
    made.kill_all()


@asynccontextmanager
async def sorting(url: str) -> AsyncIterator[RabbitBroker]:
    broker = RabbitBroker(url, clock=SystemClock(), fair={MAIL: Fair()})
    await broker.open()
    try:
        yield broker
    finally:
        await broker.close()


async def take(broker: RabbitBroker, *, worker: str = "w1", limit: int = 1) -> list[Received]:
    return await broker.receive(MAIL, limit=limit, lease_ms=10_000, worker=worker, wait_ms=500)


async def served(broker: RabbitBroker, count: int, *, ids: Collection[str] = ()) -> list[Received]:
    """So many messages, ended one by one; or until all these ids were among them."""
    found: list[Received] = []
    missing = set(ids)
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count and (missing or not ids):
            try:
                taken = await take(broker)
                await broker.settle([Settle(lease=each.lease, settlement=settlement.ACK) for each in taken])
            except Exception:
                # The broker is away for the moment.
                await asyncio.sleep(0.05)  # sleep: asked again until it is back
                continue
            found += taken
            missing -= {each.message.id for each in taken}
    return found


def put_many(url: str, tenants: Collection[str], *, queue: str = MAIL, name: str = "f") -> None:
    """As another client publishes: to the queue itself, each named after its tenant and its place there."""
    counts: Counter[str] = Counter()
    with plain(url) as channel:
        for tenant in tenants:
            number, counts[tenant] = counts[tenant], counts[tenant] + 1
            properties = pika.BasicProperties(
                message_id=f"{name}-{tenant}-{number}", headers={"x-redrive-tenant": tenant}, delivery_mode=2
            )
            channel.basic_publish("", queue, json.dumps({"n": number}).encode(), properties, mandatory=True)


def firsts(lines: list[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for tenant, number in dict.fromkeys(lines):
        found.setdefault(tenant, []).append(number)
    return found


# ------------------------------------------------------------------------------------------------- killed


async def test_workers_that_are_killed_lose_nothing_and_keep_each_tenants_order(
    fleet: RabbitFleet, rabbit: Rabbit
) -> None:
    """One after the other, each the sorter: whatever was under way comes again, and nothing overtakes, but for the one
    message that a worker had claimed and not started when it was killed: that waits for the lease of its claim.
    """
    tenants = ["noisy"] * 500 + ["a", "b", "c"] * 20 + ["noisy"] * 100
    with plain(rabbit.url) as channel:
        channel.queue_declare("orders", durable=True, arguments={"x-queue-type": "quorum"})
    put_many(rabbit.url, tenants, queue="orders")
    own = Redrive("crew", broker=rabbit.url, settings={"durability": "normal", "store": fleet.store})
    own.consumer("orders", fair_by="tenant")(_never)
    async with own:
        await own.publish_many("orders", [({"n": number}, {"tenant": "own"}) for number in range(300)])

    kills = (30, 120, 260)
    for goal in kills:
        worker = await asyncio.to_thread(fleet.worker, "in-turns")
        await asyncio.to_thread(done, fleet, goal)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        # What it held is back in its place once the broker knows that it is gone.
        await until(lambda: not consumers(rabbit.url, bundle_of("orders").next))
    before = len(fleet.lines(end=...))
    await asyncio.to_thread(fleet.worker, "in-turns")
    counts = Counter([*tenants, *["own"] * 300])
    wanted = {(tenant, number) for tenant, count in counts.items() for number in range(count)}
    await asyncio.to_thread(
        fleet.until, lambda: {(line["tenant"], line["end"]) for line in fleet.lines(end=...)} == wanted, what="all"
    )

    assert before < len(wanted)
    starts = firsts([(line["tenant"], line["start"]) for line in fleet.lines(start=...)])
    late = [(tenant, each) for tenant, numbers in starts.items() for each in overtaken(numbers)]
    assert len(late) <= len(kills), late


def overtaken(numbers: list[int]) -> list[int]:
    """Those before which a later one started."""
    return [number for place, number in enumerate(numbers) if number < max(numbers[:place], default=-1)]


def done(fleet: RabbitFleet, goal: int) -> None:
    """Wait until so many were handled."""
    fleet.until(lambda: len(fleet.lines(end=...)) >= goal, what=f"{goal} are done")


async def _never(order: dict[str, Any]) -> None:
    """This process only publishes."""


async def test_another_process_sorts_on_where_one_stops(rabbit: Rabbit) -> None:
    ids = {f"m-{number}" for number in range(50)}
    async with sorting(rabbit.url) as second:
        async with sorting(rabbit.url) as first:
            await first.publish([outgoing(name, queue=MAIL, tenant="a") for name in sorted(ids)])
            taken = await served(first, 10)
            # It tries, and is not the one.
            await take(second, worker="w2", limit=1)
            assert second._bundles.round_of(MAIL) is None
        await until(lambda: second._bundles.round_of(MAIL) is not None)

        held = {each.received.message.id for each in second._inboxes[MAIL].in_hand.values()}
        rest = await served(second, 1_000, ids=ids - {each.message.id for each in taken} - held)

    assert rest


async def test_a_broker_that_is_killed_loses_nothing_of_what_is_being_sorted(rabbit_alone: RabbitAlone) -> None:
    tenants = ["noisy"] * 400 + ["quiet"] * 10
    async with sorting(rabbit_alone.url) as broker:
        await broker.publish(
            [outgoing(f"o-{place}", queue=MAIL, tenant=tenant) for place, tenant in enumerate(tenants)]
        )
        before = await served(broker, 40)
        # What it knows of its quorum queues it writes every half a second.
        await asyncio.sleep(1.0)  # sleep: until it has
        await asyncio.to_thread(rabbit_alone.node.kill)
        await asyncio.to_thread(rabbit_alone.node.start)
        left = {f"o-{place}" for place in range(len(tenants))} - {each.message.id for each in before}
        after = await served(broker, 2_000, ids=left)

    assert left <= {each.message.id for each in after}


async def test_what_is_handed_back_unstarted_comes_first_again(rabbit: Rabbit) -> None:
    async with sorting(rabbit.url) as broker:
        await broker.publish(of_one_tenant(12))
        back: list[Received] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(back) < 2:
                back += await take(broker, limit=2 - len(back))
        handed_back = settlement.Requeue(due_at=SystemClock().now(), reason=WHY)
        await broker.settle([Settle(lease=each.lease, settlement=handed_back) for each in back])

        order = await served(broker, 12)

    assert 2 == len(back)
    assert [f"o-{place}" for place in range(12)] == [each.message.id for each in order]


async def test_what_was_pushed_and_is_not_asked_for_keeps_its_order(rabbit: Rabbit) -> None:
    async with sorting(rabbit.url) as broker:
        assert [] == await take(broker, limit=4)
        await broker.publish(of_one_tenant(12))
        inbox = broker._inboxes[MAIL]
        # Nothing is pushed any more once what lay here was given back.
        await until(lambda: not inbox._prefetch)

        order = await served(broker, 12)

    assert [f"o-{place}" for place in range(12)] == [each.message.id for each in order]


def of_one_tenant(count: int) -> list[Outgoing]:
    return [outgoing(f"o-{place}", queue=MAIL, tenant="a") for place in range(count)]


async def test_queues_whose_names_begin_alike_for_long_are_told_apart(rabbit: Rabbit) -> None:
    name = "a-queue-with-a-name-that-is-longer-than-the-tag-of-its-consumer"
    broker = RabbitBroker(rabbit.url, clock=SystemClock(), fair={name: Fair()})
    await broker.open()
    try:
        await broker.publish([outgoing(f"m-{tenant}", queue=name, tenant=tenant) for tenant in "abcdef"])
        found: set[str] = set()
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < 6:
                taken = await broker.receive(name, limit=6, lease_ms=10_000, worker="w1", wait_ms=500)
                found |= {each.message.id for each in taken}
    finally:
        await broker.close()

    assert {f"m-{tenant}" for tenant in "abcdef"} == found


# ------------------------------------------------------------------------------------------------- a backlog


async def test_a_backlog_in_the_same_shard_hides_a_quiet_tenant_only_until_it_is_moved(rabbit: Rabbit) -> None:
    shard = BUNDLE.shard_of("noisy")
    quiet = next(f"q-{number}" for number in range(1_000) if BUNDLE.shard_of(f"q-{number}") == shard)
    async with sorting(rabbit.url) as broker:
        await broker.publish([outgoing(f"n-{number}", queue=MAIL, tenant="noisy") for number in range(3_000)])
        await broker.publish([outgoing("quiet", queue=MAIL, tenant=quiet)])
        await served(broker, 1)
        await until(lambda: depth(rabbit.url, shard) == 0)

        order = await served(broker, 1_000, ids=["quiet"])

    assert len(order) <= IN_FRONT


async def test_a_backlog_of_another_publisher_hides_nobody_either(rabbit: Rabbit) -> None:
    async with sorting(rabbit.url) as broker:
        await broker.publish([outgoing("first", queue=MAIL, tenant="own")])
        put_many(rabbit.url, ["noisy"] * 1_500 + ["quiet"])
        await served(broker, 1)
        await until(lambda: depth(rabbit.url, MAIL) == 0)
        await broker.publish([outgoing("own", queue=MAIL, tenant="own")])

        order = await served(broker, 1_000, ids=["f-quiet-0", "own"])

    noisy = [int(each.message.id.rpartition("-")[2]) for each in order if each.message.tenant == "noisy"]
    assert len(order) <= IN_FRONT
    assert noisy == sorted(noisy)


# ------------------------------------------------------------------------------------------------- odd messages

ODD: list[dict[str, Any]] = [
    {"headers": {"CC": ["copies"], "x-redrive-tenant": "a"}},
    {"headers": {"x-redrive-tenant": 42}},
    {"headers": {"x-redrive-tenant": "\ud83d".encode("utf-8", "surrogatepass")}},
    {"headers": {"deep": {"x-redrive-tenant": "b"}}},
    {"headers": {"x-redrive-rest": "{", "x-redrive-route": "nowhere", "x-delivery-count": 7}},
    {"reply_to": "amq.rabbitmq.reply-to.forged"},
    {"priority": 9, "expiration": "600000", "headers": {}},
    {"headers": {"x-death": [{"count": 2, "reason": "rejected", "queue": MAIL, "exchange": "", "routing-keys": []}]}},
    {},
]


async def test_odd_messages_of_others_come_through_once_and_as_they_were(rabbit: Rabbit) -> None:
    async with sorting(rabbit.url) as broker:
        await take(broker)
        with plain(rabbit.url) as channel:
            channel.queue_declare("copies")
            channel.exchange_declare("events", "topic")
            channel.queue_bind("copies", "events", "copies")
            channel.queue_bind(MAIL, "events", "mail.#")
            user = rabbit.vhost.user
            for place, properties in enumerate([*ODD, {"user_id": user}]):
                named = pika.BasicProperties(message_id=f"odd-{place}", **properties)
                channel.basic_publish("events", "mail.sent", f"{place}".encode(), named, mandatory=True)

        wanted = {f"odd-{place}" for place in range(len(ODD) + 1)}
        found = await served(broker, 100, ids=wanted)

    by_id = {each.message.id: each.message for each in found}
    assert wanted == set(by_id)
    assert len(found) == len(wanted)
    assert {("events", "mail.sent")} == {
        (message.properties.exchange, message.properties.routing_key) for message in by_id.values()
    }
    assert {f"{place}".encode() for place in range(len(ODD) + 1)} == {message.body for message in by_id.values()}
    assert 1 == depth(rabbit.url, "copies")
    assert "x-redrive-route" not in by_id["odd-4"].headers
    assert (9, "600000") == (by_id["odd-6"].priority, by_id["odd-6"].properties.expiration)
    assert 2 == by_id["odd-7"].headers["x-death"][0]["count"]
    assert {MAIL} == {each.lease.queue for each in found}


# ------------------------------------------------------------------------------------------------- looking


async def test_depth_peek_and_discard_see_the_whole_bundle(rabbit: Rabbit) -> None:
    async with sorting(rabbit.url) as broker:
        await broker.publish([outgoing(f"m-{number}", queue=MAIL, tenant=f"t-{number % 7}") for number in range(40)])
        put_many(rabbit.url, ["other"] * 10)

        async def ready() -> int:
            (found,) = await broker.depths([MAIL])
            return found.ready

        assert 50 == await ready()
        assert 50 == len(await broker.peek(MAIL, limit=100))
        assert ["mail"] == [each.queue for each in await broker.depths() if not each.queue.endswith(".dead")]
        assert 10 == await broker.discard(MAIL, lambda message: message.tenant == "other", limit=100)
        assert 40 == await ready()
        (one,) = await served_only(broker)
        await until(lambda: lock_of(MAIL) in _queues(rabbit))
        async with asyncio.timeout(PATIENCE_S):
            while await ready() != 39:
                await asyncio.sleep(0.05)  # sleep: what is on its way is counted nowhere

    assert MAIL == one.lease.queue


def _queues(rabbit: Rabbit) -> set[str]:
    return {each["name"] for each in rabbit.server.api("GET", "/api/queues")}


async def test_what_is_given_up_is_a_dead_letter_of_the_queue(rabbit: Rabbit) -> None:
    async with sorting(rabbit.url) as broker:
        await broker.publish([outgoing("m-1", queue=MAIL, tenant="a")])
        (one,) = await served_only(broker)
        again = settlement.Retry(due_at=SystemClock().now(), reason=settlement.Reason(code="X", text="x"))
        await broker.settle([Settle(lease=one.lease, settlement=again)])
        (two,) = await served_only(broker)

    assert (MAIL, MAIL) == (one.lease.queue, two.lease.queue)
    assert "m-1" == two.message.id
    assert ("", MAIL) == (two.message.properties.exchange, two.message.properties.routing_key)


async def served_only(broker: RabbitBroker) -> list[Received]:
    async with asyncio.timeout(PATIENCE_S):
        while not (taken := await take(broker)):
            pass
    return taken


async def test_a_topology_with_a_fair_queue_is_declared_planned_and_verified_whole(
    rabbit: Rabbit, tmp_path: Path
) -> None:
    labels = "wms.queue.wms-labels"
    for topology, queue in ((delay_levels(MAIL), MAIL), (fanout_bus("wms-labels", safe=True), labels)):
        app = Redrive("t", broker=rabbit.url, topology=topology, settings={"store": f"sqlite:////{tmp_path}/s.db"})
        app.consumer(queue, fair_by="tenant")(_never)
        async with app:
            source = topologies.of_app(app)
            async with topologies.reached(topologies.Reach(url=rabbit.url, management=rabbit.management_url)) as live:
                plan = await topologies.planned(live, source)

        names = {each.name for each in source.topology.queues}
        assert plan.is_clean
        assert set(bundle_of(queue).inner) <= names
        assert () == tuple(topologies.checked(source, version=rabbit.version).findings)


async def test_a_queue_of_the_bundle_that_was_deleted_is_made_again(rabbit: Rabbit) -> None:
    async with sorting(rabbit.url) as broker:
        await broker.publish([outgoing("before", queue=MAIL, tenant="a")])
        await served(broker, 1)
        for name in (BUNDLE.next, BUNDLE.shard_of("a"), BUNDLE.asides[0]):
            delete_queue(rabbit.url, name)
        async with asyncio.timeout(PATIENCE_S):
            sent = False
            while not sent:
                with suppress(QueueNotFoundError):
                    await broker.publish([outgoing("after", queue=MAIL, tenant="a")])
                    sent = True
        (after,) = await served(broker, 1)

    assert "after" == after.message.id
