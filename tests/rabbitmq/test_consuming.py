"""Consuming from RabbitMQ: how much is held, what goes back, every way in which a consumer ends and begins again.
Case DS-05.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from redrive.core import settlement
from redrive.core.ports import Settle
from redrive.core.topology.ladder import HEADER_DUE_AT
from redrive.core.topology.model import EMPTY, Exchange, Queue, Topology
from redrive.errors import BrokerUnavailableError, ConfigurationError, InvalidMessageError, RedriveError
from redrive.runtime.clock import SystemClock
from redrive.testing.samples import QUEUE, outgoing
from redrive.testing.servers.proxy import FaultProxy
from redrive.testing.servers.rabbitmq import RabbitNode, Vhost
from tests.rabbit import NEW, OLD, Rabbit, install_of
from tests.rabbitmq.connected import (
    PATIENCE_S,
    connected,
    delete_queue,
    depth,
    plain,
    put,
    queue_of,
    receive,
    take,
    take_through,
    until,
)


def acks(taken: Any) -> list[Settle]:
    return [Settle(lease=received.lease, settlement=settlement.ACK) for received in taken]


# ------------------------------------------------------------------------------------------------- how much


async def test_no_more_is_held_than_was_asked_for(rabbit: Rabbit) -> None:
    async with connected(rabbit.url) as first, connected(rabbit.url) as second:
        await first.publish([outgoing(f"m-{number}") for number in range(20)])
        await take(first, 5)

        others = await take(second, 15, worker="w2")

        assert 15 == len(others)
        assert 0 == depth(rabbit.url, QUEUE)


async def test_what_was_settled_makes_room_for_as_much(rabbit: Rabbit) -> None:
    async with connected(rabbit.url) as broker:
        await broker.publish([outgoing(f"m-{number}") for number in range(300)])
        seen: list[str] = []

        for _ in range(30):
            taken = await take(broker, 10)
            seen += [received.message.id for received in taken]
            assert all(await broker.settle(acks(taken)))

        assert [f"m-{number}" for number in range(300)] == seen


async def test_what_was_pushed_and_nobody_asks_for_goes_back_to_the_queue(rabbit: Rabbit) -> None:
    async with connected(rabbit.url) as idle, connected(rabbit.url) as busy:
        await idle.publish([outgoing(f"m-{number}") for number in range(40)])
        taken = await take(idle, 20)
        # Their acks make room for twenty more, which are pushed to a worker that does not come for them.
        assert all(await idle.settle(acks(taken)))
        await until(lambda: depth(rabbit.url, QUEUE) == 0)

        others = await take(busy, 20, worker="w2")

        assert 20 == len({received.message.id for received in others})
        assert await idle.publish([outgoing("more")])
        assert ["more"] == [received.message.id for received in await take(idle, 1)]


async def test_an_ack_of_all_so_far_never_acknowledges_what_is_still_in_hand(rabbit: Rabbit) -> None:
    async with connected(rabbit.url) as broker:
        await broker.publish([outgoing(f"m-{number}") for number in range(10)])
        taken = await take(broker, 10)

        await broker.settle(acks(taken[4:5]))
        await broker.settle(acks([taken[9], taken[0], taken[1], taken[6]]))

    async with connected(rabbit.url) as again:
        left = await take(again, 5)

    assert {"m-2", "m-3", "m-5", "m-7", "m-8"} == {received.message.id for received in left}


async def test_the_urls_prefetch_is_the_most_that_is_held(rabbit: Rabbit) -> None:
    async with connected(f"{rabbit.url}?prefetch=3") as broker:
        await broker.publish([outgoing(f"m-{number}") for number in range(10)])

        taken = await take(broker, 3)
        more = await receive(broker, 10, wait_ms=300)

        assert (3, 0) == (len(taken), len(more))


# ------------------------------------------------------------------------------------------------- ends


async def test_a_deleted_queue_ends_its_receivers_and_the_next_one_makes_it_again(rabbit: Rabbit) -> None:
    async with connected(rabbit.url) as broker:
        await broker.publish([outgoing("m-1")])
        (held,) = await take(broker, 1)
        waiting = asyncio.create_task(receive(broker, 1, wait_ms=60_000))
        await asyncio.sleep(0.1)  # sleep: it waits by then, or will be told at once

        await asyncio.to_thread(delete_queue, rabbit.url, QUEUE)

        with pytest.raises(RedriveError):
            await asyncio.wait_for(waiting, PATIENCE_S)
        assert [False] == await broker.settle(acks([held]))
        assert [] == await receive(broker, 1, wait_ms=100)
        await broker.publish([outgoing("m-2")])
        assert ["m-2"] == [received.message.id for received in await take(broker, 1)]


@pytest.fixture(params=[OLD, NEW])
def impatient(request: pytest.FixtureRequest) -> Iterator[Vhost]:
    """A node that waits two seconds for an acknowledgement and looks every second."""
    node = RabbitNode(install_of(request.param))
    # The second of the two has no name in rabbitmq.conf.
    advanced = "[{rabbit, [{consumer_timeout, 2000}, {channel_tick_interval, 1000}]}]."
    (node._files.outside / "advanced.config").write_text(advanced)
    with node, node.vhost() as vhost:
        yield vhost


@pytest.mark.slow
async def test_a_channel_the_broker_closes_over_a_slow_handler_is_opened_again(impatient: Vhost) -> None:
    async with connected(impatient.url) as broker:
        await broker.publish([outgoing("slow")])
        (slow,) = await take(broker, 1)
        await until(lambda: broker.renew([slow.lease], lease_ms=1) == [False])
        await broker.publish([outgoing("next")])

        taken = await take_through(broker, 2)

        assert {"slow", "next"} == {received.message.id for received in taken}
        assert [False, True, True] == await broker.settle(acks([slow, *taken]))


async def test_a_queue_the_user_may_not_read_is_a_configuration_error(rabbit: Rabbit) -> None:
    vhost = rabbit.vhost
    with plain(rabbit.url) as channel:
        channel.queue_declare(QUEUE, durable=True)
    rabbit.server.api(
        "PUT", f"/api/permissions/{vhost.name}/{vhost.user}", {"configure": ".*", "write": ".*", "read": "^$"}
    )

    async with connected(rabbit.url) as broker:
        with pytest.raises(ConfigurationError, match=r'Queue "orders" cannot be consumed'):
            await until_refused(broker)


async def test_a_queue_the_user_may_not_make_is_a_configuration_error(rabbit: Rabbit) -> None:
    vhost = rabbit.vhost
    rabbit.server.api(
        "PUT", f"/api/permissions/{vhost.name}/{vhost.user}", {"configure": "^redrive", "write": ".*", "read": ".*"}
    )

    async with connected(rabbit.url) as broker:
        with pytest.raises(ConfigurationError, match="cannot be made"):
            await broker.publish([outgoing("m-1")])


async def test_a_queue_exclusive_to_another_is_not_consumed(rabbit: Rabbit) -> None:
    with plain(rabbit.url) as channel:
        channel.queue_declare(QUEUE, exclusive=True)
        async with connected(rabbit.url) as broker:
            with pytest.raises(BrokerUnavailableError, match="exclusive"):
                await until_refused(broker)


async def until_refused(broker: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await receive(broker, 1)


async def test_a_name_no_broker_takes_is_not_consumed(rabbit: Rabbit) -> None:
    async with connected(rabbit.url) as broker:
        with pytest.raises(InvalidMessageError):
            await receive(broker, 1, "amq.orders")


# ------------------------------------------------------------------------------------------------- early


async def test_a_copy_that_is_early_goes_round_again(rabbit: Rabbit) -> None:
    """As one whose delay is longer than the longest level, or whose publisher's clock is ahead."""
    clock = SystemClock()
    due_at = clock.now() + 1_700
    async with connected(rabbit.url) as broker:
        await broker.publish([outgoing("first")])
        await broker.settle(acks(await take(broker, 1)))
        put(rabbit.url, QUEUE, message_id="m-1", headers={HEADER_DUE_AT: due_at, "a": 1})

        (received,) = await take(broker, 1)

        assert clock.now() >= due_at
        assert ("m-1", {"a": 1}) == (received.message.id, _users(received.message.headers))
        assert [True] == await broker.settle(acks([received]))
        assert 0 == depth(rabbit.url, QUEUE)


async def test_a_copy_that_is_early_by_a_little_waits_in_hand(rabbit: Rabbit) -> None:
    clock = SystemClock()
    async with connected(rabbit.url) as broker:
        await broker.publish([outgoing("first")])
        await broker.settle(acks(await take(broker, 1)))
        due_at = clock.now() + 300
        put(rabbit.url, QUEUE, message_id="m-1", headers={HEADER_DUE_AT: due_at})

        (received,) = await take(broker, 1)

        assert clock.now() >= due_at
        assert "x-death" not in received.message.headers


def _users(headers: Any) -> dict[str, Any]:
    return {name: value for name, value in headers.items() if not name.startswith("x-")}


async def test_a_due_time_that_is_junk_holds_nothing_up(rabbit: Rabbit) -> None:
    async with connected(rabbit.url) as broker:
        for junk in ("soon", -5, {"a": 1}):
            put_to(broker, rabbit.url, junk)
        await broker.publish([outgoing("last")])

        assert 4 == len(await take(broker, 4))


def put_to(broker: Any, url: str, due_at: Any) -> None:
    with plain(url) as channel:
        channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "classic"})
    put(url, QUEUE, headers={HEADER_DUE_AT: due_at})


# ------------------------------------------------------------------------------------------------- workers


async def test_a_worker_is_gone_once_its_connection_is_over(rabbit: Rabbit) -> None:
    async with connected(rabbit.url) as watching:
        async with connected(rabbit.url) as broker:
            await receive(broker, 1, worker="host:1:ab", wait_ms=0)
            alive = await watching.gone(["host:1:ab", "never seen"])
        async with asyncio.timeout(PATIENCE_S):
            while await watching.gone(["host:1:ab"]) != {"host:1:ab"}:
                await asyncio.sleep(0.05)  # sleep: asked again until it is so

    assert {"never seen"} == alive


async def test_a_worker_with_a_name_no_queue_has_is_known_too(rabbit: Rabbit) -> None:
    name = "w\n" + "é" * 200
    async with connected(rabbit.url) as watching, connected(rabbit.url) as broker:
        await receive(broker, 1, worker=name, wait_ms=0)

        assert set() == await watching.gone([name])


async def test_a_worker_whose_connection_broke_is_back_with_its_next_receive(
    rabbit: Rabbit, rabbit_proxy: FaultProxy
) -> None:
    url = rabbit.vhost.url_by("127.0.0.1", rabbit_proxy.port)
    async with connected(rabbit.url) as watching, connected(url) as broker:
        await broker.publish([outgoing("m-1")])
        await take(broker, 1)
        rabbit_proxy.drop()
        await take_through(broker, 1)

        assert set() == await watching.gone(["w1"])


# ------------------------------------------------------------------------------------------------- topologies


async def test_the_topology_is_declared_when_the_broker_is_opened(rabbit: Rabbit) -> None:
    topology = Topology(
        exchanges=(Exchange(name="shop", type="topic"),),
        queues=(Queue(name=QUEUE, arguments={"x-queue-type": "quorum"}), Queue(name="other")),
    )

    async with connected(rabbit.url, topology) as broker:
        assert {QUEUE, "other"} == {each.queue for each in await broker.depths()}

    assert ("classic", "quorum") == (queue_of(rabbit, "other")["type"], queue_of(rabbit, QUEUE)["type"])


async def test_a_topology_that_is_there_already_is_no_trouble(rabbit: Rabbit) -> None:
    topology = Topology(queues=(Queue(name=QUEUE, arguments={"x-queue-type": "quorum"}),))

    for _ in range(3):
        async with connected(rabbit.url, topology) as broker:
            await broker.publish([outgoing("m-1")])

    assert 3 == depth(rabbit.url, QUEUE)


async def test_a_queue_that_is_there_with_other_arguments_is_a_configuration_error(rabbit: Rabbit) -> None:
    with plain(rabbit.url) as channel:
        channel.queue_declare(QUEUE, durable=True, arguments={"x-message-ttl": 1_000})
    topology = Topology(queues=(Queue(name=QUEUE, arguments={"x-message-ttl": 2_000}),))

    with pytest.raises(
        ConfigurationError, match=r"\"orders\" is on the broker with other settings.*1000.*topology plan"
    ):
        async with connected(rabbit.url, topology):
            pass


async def test_priorities_on_a_quorum_queue_are_refused_where_there_are_none(rabbit: Rabbit) -> None:
    queue = Queue(name=QUEUE, arguments={"x-queue-type": "quorum", "x-max-priority": 5})

    with pytest.raises(ConfigurationError, match="x-max-priority"):
        async with connected(rabbit.url, Topology(queues=(queue,))):
            pass


async def test_a_topology_with_a_bad_name_declares_nothing(rabbit: Rabbit) -> None:
    topology = Topology(queues=(Queue(name=QUEUE), Queue(name="é" * 128)))

    with pytest.raises(ConfigurationError, match="256 bytes"):
        async with connected(rabbit.url, topology):
            pass

    async with connected(rabbit.url, EMPTY) as broker:
        assert not await broker._declarer.exists(QUEUE)
