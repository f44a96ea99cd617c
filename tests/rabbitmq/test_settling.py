"""Ending deliveries on RabbitMQ, by the wiring of their queue: rejected, sent to a tier or the ladder, held, buried.
Cases DS-01, PF-02.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from redrive import fanout_bus, retry_per_queue, tiered_retry
from redrive.core import settlement
from redrive.core.attempts import HEADER_ATTEMPT, failed_by_headers
from redrive.core.letters.letter import AttemptOutcome
from redrive.core.ports import Outgoing, Received, Settle
from redrive.core.settlement import Reason
from redrive.core.topology.model import Topology
from redrive.errors import QueueNotFoundError
from redrive.runtime.clock import SystemClock
from redrive.testing.samples import QUEUE, attempt, hard_message, kinds, message, outgoing
from redrive.testing.servers.proxy import FaultProxy
from tests.rabbit import Rabbit
from tests.rabbitmq.connected import PATIENCE_S, connected, depth, get, plain, put, receive, take, until

WHY = Reason(code="TEST", text="the suite asked for it")
CLOCK = SystemClock()

BUS = fanout_bus("wms-cincout", delay="300ms")
BUS_QUEUE = "wms.queue.wms-cincout"
FLOW = tiered_retry("freeflow", domains=["user"], tiers={"soon": "200ms", "later": "700ms"})
FLOW_QUEUE = "freeflow.user"


def retry(delay_ms: int = 0, **changes: Any) -> settlement.Retry:
    return settlement.Retry(due_at=CLOCK.now() + delay_ms, reason=WHY, **changes)


def requeue(delay_ms: int = 0) -> settlement.Requeue:
    return settlement.Requeue(due_at=CLOCK.now() + delay_ms, reason=WHY)


async def end(broker: Any, received: Received, how: Any, number: int | None = None) -> None:
    """Settle; `number`: the attempt that has just failed."""
    entry = None if number is None else attempt(number)
    assert [True] == await broker.settle([Settle(lease=received.lease, settlement=how, entry=entry)])


def failed(received: Received) -> int:
    return failed_by_headers(received.message.headers, queue=received.lease.queue).failed


# ------------------------------------------------------------------------------------------------- rejected


async def test_a_rejected_message_comes_back_to_its_own_queue_after_its_delay(rabbit: Rabbit) -> None:
    async with connected(rabbit.url, BUS) as broker:
        await broker.publish([Outgoing(queue="", exchange="wms.main-exchange", message=hard_message())])

        for number in (1, 2, 3):
            (received,) = await take(broker, 1, BUS_QUEUE)
            assert number - 1 == failed(received)
            rejected_at = CLOCK.now()
            await end(broker, received, retry(300), number)
        (last,) = await take(broker, 1, BUS_QUEUE)

    assert 3 == failed(last)
    assert CLOCK.now() - rejected_at >= 300
    assert kinds(hard_message().headers) == kinds(_users(last.message.headers))
    # The broker takes the expiration away when it dead-letters, and keeps it in x-death.
    assert replace(hard_message().properties, expiration=None) == replace(last.message.properties, expiration=None)


def _users(headers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in headers.items() if not name.startswith("x-")}


@pytest.mark.parametrize("deaths", [["a"], [1], "a", [{"count": "7", "queue": "q"}]], ids=str)
async def test_a_forged_death_is_never_rejected_and_its_message_comes_back_all_the_same(
    rabbit: Rabbit, deaths: Any
) -> None:
    async with connected(rabbit.url, BUS) as broker:
        put(rabbit.url, "", b"poison", exchange="wms.main-exchange", headers={"x-death": deaths})
        put(rabbit.url, "", b"good", exchange="wms.main-exchange")
        for received in await take(broker, 2, BUS_QUEUE):
            await end(broker, received, retry(300), 1)

        again = await take(broker, 2, BUS_QUEUE)

    assert {b"poison", b"good"} == {received.message.body for received in again}
    assert [1, 1] == [failed(received) for received in again]


async def test_attempts_are_counted_on_where_a_copy_had_to_be_made(rabbit: Rabbit) -> None:
    async with connected(rabbit.url, BUS) as broker:
        put(rabbit.url, "", b"poison", exchange="wms.main-exchange", headers={"x-death": ["a"]})
        for number in (1, 2, 3):
            (received,) = await take(broker, 1, BUS_QUEUE)
            assert number - 1 == failed(received)
            await end(broker, received, retry(300), number)
        (last,) = await take(broker, 1, BUS_QUEUE)

    assert 3 == failed(last)


async def test_a_retry_that_rewrites_the_body_goes_the_same_way_as_a_copy(rabbit: Rabbit) -> None:
    async with connected(rabbit.url, BUS) as broker:
        await broker.publish([Outgoing(queue="", exchange="wms.main-exchange", message=message(body=b'{"attempt":1}'))])
        (received,) = await take(broker, 1, BUS_QUEUE)
        await end(broker, received, retry(300, body=b'{"attempt":2}'), 1)

        (again,) = await take(broker, 1, BUS_QUEUE)

    assert (b'{"attempt":2}', b'{"attempt":1}') == (again.message.body, again.message.original_body)
    assert 1 == failed(again)


async def test_a_requeue_waits_in_hand_costs_nothing_and_holds_nobody_up(rabbit: Rabbit) -> None:
    async with connected(rabbit.url, BUS) as broker:
        for name in ("later", "now", "also"):
            await broker.publish([Outgoing(queue="", exchange="wms.main-exchange", message=message(name))])
        later, *_ = await take(broker, 3, BUS_QUEUE)
        due_at = CLOCK.now() + 600
        await end(broker, later, settlement.Requeue(due_at=due_at, reason=WHY))

        (again,) = await take(broker, 1, BUS_QUEUE)

        assert "later" == again.message.id
        assert CLOCK.now() >= due_at
        assert 0 == failed(again)
        assert "x-death" not in again.message.headers


async def test_of_many_requeues_at_most_half_wait_in_hand(rabbit: Rabbit) -> None:
    async with connected(rabbit.url, BUS) as broker:
        for number in range(8):
            await broker.publish([Outgoing(queue="", exchange="wms.main-exchange", message=message(f"m-{number}"))])
        taken = await take(broker, 8, BUS_QUEUE)
        ends = [Settle(lease=received.lease, settlement=requeue(60_000)) for received in taken]
        assert all(await broker.settle(ends))

        inbox = broker._inboxes[BUS_QUEUE]
        assert 1 <= len(inbox.resting) <= inbox._prefetch // 2
        again = await take(broker, 8 - len(inbox.resting), BUS_QUEUE)

    assert {0} == {failed(received) for received in again}


# ------------------------------------------------------------------------------------------------- tiers


async def test_a_retry_goes_to_the_next_longer_tier_and_says_where_it_came_from(rabbit: Rabbit) -> None:
    async with connected(rabbit.url, FLOW) as broker:
        await broker.publish([Outgoing(queue="user.created", exchange="freeflow.events", message=message())])
        (received,) = await take(broker, 1, FLOW_QUEUE)
        sent_at = CLOCK.now()
        await end(broker, received, retry(450), 1)

        (again,) = await take(broker, 1, FLOW_QUEUE)

    assert CLOCK.now() - sent_at >= 700
    headers = again.message.headers
    assert (1, "user.created", "freeflow.events") == tuple(
        headers[name] for name in ("x-retry-count", "x-original-routing-key", "x-original-exchange")
    )
    assert 1 == failed(again)
    properties = again.message.properties
    assert ("freeflow.events", "user.created") == (properties.exchange, properties.routing_key)


async def test_beyond_the_longest_tier_it_is_the_longest(rabbit: Rabbit) -> None:
    async with connected(rabbit.url, FLOW) as broker:
        await broker.publish([Outgoing(queue="user.created", exchange="freeflow.events", message=message())])
        (received,) = await take(broker, 1, FLOW_QUEUE)

        await end(broker, received, retry(60_000), 1)

        assert ["m-1"] == [again.message.id for again in await take(broker, 1, FLOW_QUEUE)]


async def test_what_is_given_up_is_rejected_where_the_topology_says_so(rabbit: Rabbit) -> None:
    async with connected(rabbit.url, FLOW) as broker:
        await broker.publish([Outgoing(queue="user.created", exchange="freeflow.events", message=message())])
        (received,) = await take(broker, 1, FLOW_QUEUE)

        await end(broker, received, settlement.DeadLetter(reason=WHY))

        await until(lambda: depth(rabbit.url, "freeflow.events.dlq") == 1)
    _, properties, _ = get(rabbit.url, "freeflow.events.dlq")
    assert "m-1" == properties.message_id
    assert "rejected" == properties.headers["x-death"][0]["reason"]


async def test_what_is_given_up_with_a_forged_death_is_buried_too(rabbit: Rabbit) -> None:
    async with connected(rabbit.url, FLOW) as broker:
        put(rabbit.url, "user.created", b"poison", exchange="freeflow.events", headers={"x-death": [1]})
        (received,) = await take(broker, 1, FLOW_QUEUE)

        await end(broker, received, settlement.DeadLetter(reason=WHY))

        await until(lambda: depth(rabbit.url, "freeflow.events.dlq") == 1)
    assert b"poison" == get(rabbit.url, "freeflow.events.dlq")[2]


async def test_a_copy_that_no_queue_takes_leaves_everything_in_hand(rabbit: Rabbit) -> None:
    async with connected(rabbit.url, FLOW) as broker:
        for name in ("m-1", "m-2"):
            await broker.publish([Outgoing(queue="user.created", exchange="freeflow.events", message=message(name))])
        first, second = await take(broker, 2, FLOW_QUEUE)
        batch = [
            Settle(lease=first.lease, settlement=retry(100), entry=attempt(1)),
            Settle(lease=second.lease, settlement=settlement.ACK),
        ]
        _unbind(rabbit, "freeflow.events.retry", "freeflow.user.retry.soon", "user.soon")

        with pytest.raises(QueueNotFoundError, match='"m-1" came back'):
            await broker.settle(batch)
        assert [True, True] == broker.renew([first.lease, second.lease], lease_ms=1)

        with plain(rabbit.url) as channel:
            channel.queue_bind("freeflow.user.retry.soon", "freeflow.events.retry", "user.soon")
        assert [True, True] == await broker.settle(batch)
        assert ["m-1"] == [again.message.id for again in await take(broker, 1, FLOW_QUEUE)]
        assert [] == await receive(broker, 1, FLOW_QUEUE, wait_ms=300)


def _unbind(rabbit: Rabbit, exchange: str, queue: str, key: str) -> None:
    with plain(rabbit.url) as channel:
        channel.queue_unbind(queue, exchange, key)


# ------------------------------------------------------------------------------------------------- retry per queue


async def test_a_requeue_that_may_not_wait_in_hand_goes_round_as_a_copy_and_costs_nothing(rabbit: Rabbit) -> None:
    topology = _pipeline()
    async with connected(rabbit.url, topology) as broker:
        await broker.publish([Outgoing(queue="files.a", exchange="domain.events", message=message())])
        (received,) = await take(broker, 1, "q.X")
        await end(broker, received, retry(), 1)
        (once,) = await take(broker, 1, "q.X")
        assert 1 == failed(once)
        await end(broker, once, requeue(250))

        (again,) = await take(broker, 1, "q.X")

    assert 1 == failed(again)
    assert 2 == again.message.headers[HEADER_ATTEMPT]


def _pipeline() -> Topology:
    return retry_per_queue({"q.X": {"domain.events": ["files.#"]}}, delay="300ms")


# ------------------------------------------------------------------------------------------------- the safe shape


async def test_a_retry_waits_on_the_ladder_and_keeps_its_story(rabbit: Rabbit) -> None:
    async with connected(rabbit.url) as broker:
        await broker.publish([outgoing()])
        (received,) = await take(broker, 1)
        due_at = CLOCK.now() + 400
        lost = attempt(1, outcome=AttemptOutcome.INTERRUPTED)
        settle = Settle(
            lease=received.lease, settlement=settlement.Retry(due_at=due_at, reason=WHY), entry=attempt(2), lost=lost
        )
        assert [True] == await broker.settle([settle])

        (again,) = await take(broker, 1)

    assert CLOCK.now() >= due_at
    assert (lost, attempt(2)) == again.history
    assert 2 == failed(again)


async def test_a_message_may_wait_on_the_ladder_again_and_again(rabbit: Rabbit) -> None:
    """A broker drops what it takes for a cycle of dead letters, where it is given the old x-death back."""
    async with connected(rabbit.url) as broker:
        await broker.publish([outgoing()])
        for number in range(1, 6):
            (received,) = await take(broker, 1)
            await end(broker, received, retry(100), number)

        (last,) = await take(broker, 1)

    assert 5 == failed(last)
    assert [1, 2, 3, 4, 5] == [entry.attempt for entry in last.history]


async def test_a_longer_delay_holds_no_shorter_one_up(rabbit: Rabbit) -> None:
    async with connected(rabbit.url) as broker:
        now = CLOCK.now()
        await broker.publish([
            outgoing("day", due_at=now + 86_400_000), outgoing("ten", due_at=now + 10_000),
            outgoing("one", due_at=now + 1_000),
        ])  # fmt: skip

        (first,) = await take(broker, 1)

    assert "one" == first.message.id
    assert now + 1_000 <= CLOCK.now()


async def test_a_copy_that_is_confirmed_is_not_sent_twice_when_its_batch_fails_over_another(rabbit: Rabbit) -> None:
    async with connected(rabbit.url, FLOW) as broker:
        await broker.publish([Outgoing(queue="user.created", exchange="freeflow.events", message=message("tier"))])
        await broker.publish([outgoing("plain")])
        (tier,) = await take(broker, 1, FLOW_QUEUE)
        (other,) = await take(broker, 1)
        batch = [
            Settle(lease=other.lease, settlement=retry(50), entry=attempt(1)),
            Settle(lease=tier.lease, settlement=retry(100), entry=attempt(1)),
        ]
        _unbind(rabbit, "freeflow.events.retry", "freeflow.user.retry.soon", "user.soon")
        for _ in range(3):
            with pytest.raises(QueueNotFoundError):
                await broker.settle(batch)

        with plain(rabbit.url) as channel:
            channel.queue_bind("freeflow.user.retry.soon", "freeflow.events.retry", "user.soon")
        assert [True, True] == await broker.settle(batch)

        assert ["plain"] == [again.message.id for again in await take(broker, 1)]
        assert [] == await receive(broker, 1, wait_ms=500)


async def test_a_connection_lost_while_a_copy_is_confirmed_leaves_the_copy_and_a_stale_lease(
    rabbit: Rabbit, rabbit_proxy: FaultProxy
) -> None:
    async with connected(rabbit.vhost.url_by("127.0.0.1", rabbit_proxy.port)) as broker:
        await broker.publish([outgoing()])
        (received,) = await take(broker, 1)
        settling = asyncio.create_task(
            broker.settle([Settle(lease=received.lease, settlement=retry(), entry=attempt(1))])
        )
        await asyncio.sleep(0)
        rabbit_proxy.drop()

        answers = await asyncio.wait_for(settling, PATIENCE_S)

        assert answers in ([True], [False])
    await until(lambda: depth(rabbit.url, QUEUE) >= 1)
    with plain(rabbit.url) as channel:
        found = set()
        while (got := channel.basic_get(QUEUE, auto_ack=True))[0] is not None:
            found.add(got[1].message_id)
    assert {"m-1"} == found
