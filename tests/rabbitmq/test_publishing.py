"""Publishing to RabbitMQ: confirmed and routed, or an error that names the message and says what is true.
Cases DS-02, DS-03, NM-02.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from redrive.brokers.rabbitmq.headers import to_wire
from redrive.brokers.rabbitmq.publishing import Parcel
from redrive.brokers.rabbitmq.tables import Content, write_content
from redrive.core.ports import Outgoing, Published
from redrive.core.topology.ladder import level_for
from redrive.core.topology.model import Binding, Exchange, Queue, Topology
from redrive.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    InvalidMessageError,
    QueueNotFoundError,
)
from redrive.testing.samples import QUEUE, message, outgoing
from redrive.testing.servers.proxy import FaultProxy
from tests.rabbit import Rabbit, RabbitAlone
from tests.rabbitmq.connected import (
    PATIENCE_S,
    connected,
    delete_queue,
    depth,
    get,
    ids,
    plain,
    queue_of,
    receive,
    take,
    until,
)

SHOP = Topology(
    exchanges=(Exchange(name="shop", type="topic"),),
    queues=(Queue(name=QUEUE, arguments={"x-queue-type": "quorum"}),),
    bindings=(Binding(source="shop", destination=QUEUE, routing_key="order.#"),),
)


def to_exchange(name: str, key: str, exchange: str = "shop") -> Outgoing:
    return Outgoing(queue=key, exchange=exchange, message=message(name))


def parcel(name: str, **changes: Any) -> Parcel:
    header = to_wire(message(name), exchange="", routing_key=QUEUE)
    given = {"exchange": "", "routing_key": QUEUE, "header": header, "body": b"{}", "message_id": name}
    return Parcel(**{**given, **changes})


# ------------------------------------------------------------------------------------------------- queues


async def test_a_queue_that_is_not_there_is_made_in_the_safe_shape(rabbit: Rabbit) -> None:
    async with connected(rabbit.url) as broker:
        await broker.publish([outgoing("m-1")])

    made, dead = queue_of(rabbit, QUEUE), queue_of(rabbit, f"{QUEUE}.dead")
    no_limit = {"x-delivery-limit": -1} if rabbit.major >= 4 else {}
    assert {
        "x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{QUEUE}.dead",
        "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", **no_limit,
    } == made["arguments"]  # fmt: skip
    assert {"x-queue-type": "quorum", **no_limit} == dead["arguments"]


async def test_a_queue_that_is_there_is_taken_as_it_is(rabbit: Rabbit) -> None:
    with plain(rabbit.url) as channel:
        channel.queue_declare(QUEUE, durable=True, arguments={"x-max-length": 10})

    async with connected(rabbit.url) as broker:
        await broker.publish([outgoing("m-1")])
        (received,) = await take(broker, 1)

    assert "m-1" == received.message.id


async def test_a_queue_that_was_deleted_is_missed_once_and_then_made_again(rabbit: Rabbit) -> None:
    async with connected(rabbit.url) as broker:
        await broker.publish([outgoing("m-1")])
        await asyncio.to_thread(delete_queue, rabbit.url, QUEUE)

        with pytest.raises(QueueNotFoundError, match=r'"m-2" came back: no queue takes it from queue "orders"'):
            await broker.publish([outgoing("m-2")])
        await broker.publish([outgoing("m-2")])

    assert ["m-2"] == ids(rabbit.url, QUEUE)


async def test_a_level_of_the_ladder_that_was_deleted_is_made_again(rabbit: Rabbit) -> None:
    async with connected(rabbit.url) as broker:
        due = broker._clock.now() + 86_000_000
        await broker.publish([outgoing("m-1", due_at=due)])
        level = level_for(86_000_000).name
        await asyncio.to_thread(delete_queue, rabbit.url, level)

        with pytest.raises(QueueNotFoundError):
            await broker.publish([outgoing("m-2", due_at=due)])
        await broker.publish([outgoing("m-2", due_at=due)])

    assert 1 == depth(rabbit.url, level)


@pytest.mark.parametrize("name", ["", "amq.orders", "é" * 128, "a\nb"], ids=["empty", "reserved", "256 bytes", "line"])
async def test_a_name_no_broker_takes_is_refused_before_anything_is_sent(rabbit: Rabbit, name: str) -> None:
    async with connected(rabbit.url) as broker:
        with pytest.raises(InvalidMessageError, match="is no name for a queue"):
            await broker.publish([outgoing("m-1"), outgoing("m-2", queue=name)])

        assert [] == await receive(broker, 1, wait_ms=200)


async def test_a_name_of_255_bytes_is_a_name(rabbit: Rabbit) -> None:
    name = "é" * 127 + "a"

    async with connected(rabbit.url) as broker:
        await broker.publish([outgoing("m-1", queue=name)])

        assert ["m-1"] == [received.message.id for received in await take(broker, 1, name)]


# ------------------------------------------------------------------------------------------------- exchanges


async def test_what_an_exchange_routes_arrives_with_its_routing_key(rabbit: Rabbit) -> None:
    async with connected(rabbit.url, SHOP) as broker:
        await broker.publish([to_exchange("m-1", "order.created")])
        (received,) = await take(broker, 1)

    properties = received.message.properties
    assert ("shop", "order.created") == (properties.exchange, properties.routing_key)


async def test_what_no_queue_takes_is_an_error_that_names_it_and_the_rest_of_the_batch_is_there(rabbit: Rabbit) -> None:
    async with connected(rabbit.url, SHOP) as broker:
        batch = [to_exchange("m-1", "order.a"), to_exchange("m-2", "nobody"), to_exchange("m-3", "order.b")]

        with pytest.raises(QueueNotFoundError, match=r'"m-2" came back.*"shop".*"nobody".*Of 3 messages 2 were'):
            await broker.publish(batch)

    assert ["m-1", "m-3"] == ids(rabbit.url, QUEUE)


async def test_equal_copies_of_which_some_come_back_are_told_apart(rabbit: Rabbit) -> None:
    async with connected(rabbit.url, SHOP) as broker:
        twins = [to_exchange("m-1", "nobody"), to_exchange("m-1", "order.a"), to_exchange("m-1", "nobody")]
        copies = [broker._routes.first(each, 0).parcel for each in twins]

        outcomes = await broker._publisher.send(copies)

    assert [QueueNotFoundError, type(None), QueueNotFoundError] == [type(outcome) for outcome in outcomes]


async def test_an_exchange_that_is_not_there_fails_its_own_messages_only(rabbit: Rabbit) -> None:
    async with connected(rabbit.url, SHOP) as broker:
        good = asyncio.gather(*(broker.publish([to_exchange(f"m-{number}", "order.a")]) for number in range(200)))
        with pytest.raises(QueueNotFoundError, match=r'"lost".*no exchange \'nowhere\''):
            await broker.publish([to_exchange("lost", "order.a", "nowhere")])
        await good

    assert {f"m-{number}" for number in range(200)} == set(ids(rabbit.url, QUEUE))


async def test_an_exchange_the_user_may_not_write_to_is_a_configuration_error(rabbit: Rabbit) -> None:
    async with connected(rabbit.url) as broker:
        with plain(rabbit.url) as channel:
            channel.exchange_declare("inside", "fanout", internal=True)

        with pytest.raises(ConfigurationError, match=r'"m-1" was not published to exchange "inside"'):
            await broker.publish([to_exchange("m-1", "k", "inside")])


# ------------------------------------------------------------------------------------------------- refused


async def test_a_full_queue_is_an_error_and_nothing_is_claimed_of_what_it_holds(rabbit: Rabbit) -> None:
    arguments = {"x-queue-type": "classic", "x-max-length": 3, "x-overflow": "reject-publish"}
    full = Topology(queues=(Queue(name=QUEUE, arguments=arguments),))

    async with connected(rabbit.url, full) as broker:
        with pytest.raises(BrokerUnavailableError, match="was refused by a queue behind") as raised:
            await broker.publish([outgoing(f"m-{number}") for number in range(10)])

        assert "Of 10 messages" in raised.value.text
        assert "m-" in raised.value.text


async def test_one_message_the_broker_refuses_is_found_and_the_others_go_through(rabbit: Rabbit) -> None:
    async with connected(rabbit.url) as broker:
        await broker.publish([outgoing("first")])
        bad = parcel("bad", header=write_content(Content(message_id="bad", expiration="never")))
        batch = [
            *(parcel(f"m-{number}") for number in range(50)),
            bad,
            *(parcel(f"n-{number}") for number in range(50)),
        ]

        outcomes = await broker._publisher.send(batch)

    refused = [each for each in outcomes if each is not None]
    assert [InvalidMessageError] == [type(each) for each in refused]
    assert '"bad" was refused' in refused[0].text
    assert outcomes[50] is refused[0]
    there = ids(rabbit.url, QUEUE)
    assert {"first", *(f"m-{number}" for number in range(50)), *(f"n-{number}" for number in range(50))} == set(there)


async def test_headers_too_large_for_a_frame_are_refused_and_the_connection_lives_on(rabbit: Rabbit) -> None:
    async with connected(rabbit.url) as broker:
        with pytest.raises(InvalidMessageError, match=r"bytes of headers and properties, the connection takes"):
            await broker.publish([outgoing("large", headers={"a": "b" * 200_000})])

        assert [Published()] == await broker.publish([outgoing("m-1", headers={"a": "b" * 100_000})])


async def test_a_body_larger_than_a_frame_arrives_whole(rabbit: Rabbit) -> None:
    body = bytes(range(256)) * 8_000

    async with connected(rabbit.url) as broker:
        await broker.publish([outgoing("m-1", body=body), outgoing("m-2")])

        assert [body, message().body] == [received.message.body for received in await take(broker, 2)]


# ------------------------------------------------------------------------------------------------- broken connections


async def test_publishing_while_the_broker_is_away_fails_in_time_and_can_be_repeated(
    rabbit: Rabbit, rabbit_proxy: FaultProxy
) -> None:
    url = f"{rabbit.vhost.url_by('127.0.0.1', rabbit_proxy.port)}?publish_timeout=1"
    batch = [outgoing(f"p-{number}") for number in range(10)]

    async with connected(url) as broker:
        await broker.publish([outgoing("before")])
        rabbit_proxy.refuse()
        rabbit_proxy.drop()
        began = time.monotonic()
        failed = await asyncio.gather(*(broker.publish([each]) for each in batch), return_exceptions=True)
        lasted = time.monotonic() - began
        rabbit_proxy.heal()
        async with asyncio.timeout(PATIENCE_S):
            for each in batch:
                while not await published(broker, each):
                    pass

    assert {BrokerUnavailableError} == {type(each) for each in failed}
    assert lasted < 20
    assert {"before", *(f"p-{number}" for number in range(10))} == set(ids(rabbit.url, QUEUE))


async def published(broker: Any, each: Outgoing) -> bool:
    try:
        await broker.publish([each])
    except BrokerUnavailableError:
        return False
    return True


async def test_what_was_not_confirmed_when_the_connection_broke_is_sent_again(
    rabbit: Rabbit, rabbit_proxy: FaultProxy
) -> None:
    url = rabbit.vhost.url_by("127.0.0.1", rabbit_proxy.port)

    async with connected(url) as broker:
        await broker.publish([outgoing("first")])
        rabbit_proxy.cut_after(100_000)
        await broker.publish([outgoing(f"m-{number}", body=b"x" * 200) for number in range(3_000)])

    assert {"first", *(f"m-{number}" for number in range(3_000))} == set(ids(rabbit.url, QUEUE))


async def test_confirms_that_are_lost_leave_copies_under_the_same_ids_only(
    rabbit: Rabbit, rabbit_proxy: FaultProxy
) -> None:
    from redrive.testing.servers.proxy import Way

    url = rabbit.vhost.url_by("127.0.0.1", rabbit_proxy.port)

    async with connected(url) as broker:
        await broker.publish([outgoing("first")])
        rabbit_proxy.stall(Way.TO_CLIENT)
        sending = asyncio.create_task(broker.publish([outgoing(f"m-{number}") for number in range(20)]))
        await until(lambda: depth(rabbit.url, QUEUE) == 21)
        rabbit_proxy.drop()
        rabbit_proxy.heal()
        await asyncio.wait_for(sending, PATIENCE_S)

    there = ids(rabbit.url, QUEUE)
    assert 41 == len(there)
    assert {"first", *(f"m-{number}" for number in range(20))} == set(there)


async def test_a_blocked_broker_makes_publishers_wait_and_lets_handlers_finish(rabbit_alone: RabbitAlone) -> None:
    node = rabbit_alone.node

    async with connected(f"{rabbit_alone.url}?publish_timeout=3") as broker:
        await broker.publish([outgoing("m-1"), outgoing("m-2")])
        first, second = await take(broker, 2)
        await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", "absolute", "1MB")
        try:
            with pytest.raises(BrokerUnavailableError, match="takes nothing from publishers"):
                await publish_until_refused(broker)
            assert [True, True] == await broker.settle([_ack(first), _ack(second)])
        finally:
            await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", "0.9")
        async with asyncio.timeout(PATIENCE_S):
            while not await published(broker, outgoing("m-4")):
                pass

    assert {"m-3", "m-4"} == set(ids(rabbit_alone.url, QUEUE))


async def publish_until_refused(broker: Any) -> None:
    """The alarm takes a moment to be raised."""
    while True:
        await broker.publish([outgoing("m-3")])


def _ack(received: Any) -> Any:
    from redrive.core import settlement
    from redrive.core.ports import Settle

    return Settle(lease=received.lease, settlement=settlement.ACK)


async def test_a_closed_broker_takes_nothing(rabbit: Rabbit) -> None:
    async with connected(rabbit.url) as broker:
        await broker.publish([outgoing("m-1")])

    with pytest.raises(BrokerUnavailableError, match="it is not open"):
        await broker.publish([outgoing("m-2")])


async def test_a_publish_that_is_cancelled_leaves_the_publisher_well(rabbit: Rabbit) -> None:
    async with connected(rabbit.url) as broker:
        await broker.publish([outgoing("first")])
        cancelled = asyncio.create_task(broker.publish([outgoing(f"c-{number}") for number in range(2_000)]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)

        assert [Published()] == await broker.publish([outgoing("last")])

    assert "last" in ids(rabbit.url, QUEUE)


async def test_more_messages_than_may_be_under_way_all_arrive_in_order(rabbit: Rabbit) -> None:
    async with connected(rabbit.url) as broker:
        await broker.publish([outgoing(f"m-{number}") for number in range(9_000)])

    _, properties, _ = await asyncio.to_thread(get, rabbit.url, QUEUE)
    assert "m-0" == properties.message_id
    assert [f"m-{number}" for number in range(1, 9_000)] == ids(rabbit.url, QUEUE)
