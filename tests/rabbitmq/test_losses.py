"""Losses that `verify` predicts, reproduced on a real broker with a plain client; the repaired twin loses nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError

from redrive.core.topology.fit import for_version
from redrive.core.topology.model import Binding, Exchange, Policy, Queue, Topology
from redrive.core.topology.verify import REDRIVE, Severity, verify
from redrive.testing.servers.processes import ServerFailed
from tests.conftest import PATIENCE
from tests.rabbit import Rabbit

QUORUM = {"x-queue-type": "quorum"}
CLASSIC = {"x-queue-type": "classic"}
DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.dead"}
PERSISTENT = pika.BasicProperties(delivery_mode=2)


class World:
    """A topology on a broker, and a plain client's hands."""

    def __init__(self, rabbit: Rabbit, connection: pika.BlockingConnection) -> None:
        self.rabbit = rabbit
        self.connection = connection
        self.channel: BlockingChannel = connection.channel()
        self.channel.confirm_delivery()

    def declare(self, topology: Topology) -> None:
        for policy in topology.policies:
            self._put_policy(policy)
        for exchange in topology.exchanges:
            self.channel.exchange_declare(exchange.name, exchange.type, durable=True)
        for queue in topology.queues:
            self.channel.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments))
        for binding in topology.bindings:
            self.channel.queue_bind(binding.destination, binding.source, binding.routing_key)

    def _put_policy(self, policy: Policy) -> None:
        body = {
            "pattern": policy.pattern,
            "definition": dict(policy.definition),
            "priority": policy.priority,
            "apply-to": policy.apply_to,
        }
        self.rabbit.server.api("PUT", f"/api/policies/{self._vhost}/{quote(policy.name, safe='')}", body)

    @property
    def _vhost(self) -> str:
        return quote(self.rabbit.vhost.name, safe="")

    def publish(self, queue: str = "orders", body: bytes = b"1") -> None:
        """Confirmed, persistent and mandatory: the broker has said that it has the message."""
        self.channel.basic_publish("", queue, body, PERSISTENT, mandatory=True)

    def take(self, queue: str = "orders") -> Any:
        """The next message, not acknowledged, as soon as there is one; None if there is none for a second."""
        begin = time.monotonic()
        while time.monotonic() - begin < 1:
            method, _, _ = self.channel.basic_get(queue)
            if method is not None:
                return method
            self.connection.sleep(0.02)
        return None

    def reject(self, queue: str = "orders") -> None:
        method = until(lambda: self.take(queue))
        self.channel.basic_reject(method.delivery_tag, requeue=False)

    def hand_back(self, queue: str = "orders") -> bool:
        """Take one and put it back, as a consumer that dies does; False: there was none."""
        method = self.take(queue)
        if method is not None:
            self.channel.basic_reject(method.delivery_tag, requeue=True)
        return method is not None

    def ready(self, queue: str) -> int:
        declared: int = self.channel.queue_declare(queue, passive=True).method.message_count
        return declared

    def is_gone(self, queue: str) -> bool:
        """Asked for over HTTP: a passive declaration would be a use of the queue."""
        try:
            self.rabbit.server.api("GET", f"/api/queues/{self._vhost}/{quote(queue, safe='')}")
        except ServerFailed:
            return True
        return False

    def stays_empty(self, *queues: str) -> bool:
        """Nothing is in any of them, again and again for two seconds."""
        return self._stays(lambda: not any(self.ready(queue) for queue in queues))

    def holds(self, queue: str, count: int) -> bool:
        """So many are in it, again and again for two seconds."""
        return self._stays(lambda: self.ready(queue) == count)

    def _stays(self, condition: Callable[[], bool]) -> bool:
        begin = time.monotonic()
        while time.monotonic() - begin < 2:
            if not condition():
                return False
            self.connection.sleep(0.05)
        return True


def until(found: Callable[[], Any]) -> Any:
    """What it gives, as soon as it gives something."""
    begin = time.monotonic()
    while time.monotonic() - begin < PATIENCE.total_seconds():
        if result := found():
            return result
        time.sleep(0.02)  # sleep: the broker moves messages by itself and tells nobody
    pytest.fail("It did not come true.")


@contextmanager
def connected(rabbit: Rabbit) -> Iterator[World]:
    connection = pika.BlockingConnection(pika.URLParameters(rabbit.url))
    try:
        yield World(rabbit, connection)
    finally:
        connection.close()


@pytest.fixture
def world(rabbit: Rabbit) -> Iterator[World]:
    with connected(rabbit) as world:
        yield world


def predicted(rabbit: Rabbit, topology: Topology) -> set[str]:
    """The codes of what loses messages on this broker."""
    report = verify(replace(topology, version=rabbit.version), client=REDRIVE, consumers=["orders"])
    return set(report.codes(Severity.WARNING))


def queues(*given: Queue) -> Topology:
    return Topology(queues=given)


DEAD_QUEUE = Queue(name="orders.dead", arguments=CLASSIC)


def test_l1_a_message_is_dropped_at_the_delivery_limit(rabbit: Rabbit, world: World) -> None:
    limit = {"x-delivery-limit": 20} if rabbit.major < 4 else {}
    topology = queues(Queue(name="orders", arguments={**QUORUM, **limit}))
    assert "L1" in predicted(rabbit, topology)
    world.declare(topology)
    world.publish()

    times = 0
    while world.hand_back():
        times += 1

    assert 21 == times
    assert world.stays_empty("orders")


def test_l1_without_a_limit_it_is_kept(rabbit: Rabbit, world: World) -> None:
    topology = for_version(queues(Queue(name="orders", arguments={**QUORUM, **DEAD}), DEAD_QUEUE), rabbit.version)
    assert "L1" not in predicted(rabbit, topology)
    world.declare(topology)
    world.publish()

    for _ in range(40):
        assert world.hand_back()

    until(lambda: world.ready("orders") == 1)


def test_l1_minus_one_is_no_limit_from_four_on_and_the_first_return_before(rabbit: Rabbit, world: World) -> None:
    topology = queues(Queue(name="orders", arguments={**QUORUM, "x-delivery-limit": -1}))
    assert ("L1" in predicted(rabbit, topology)) is (rabbit.major < 4)
    world.declare(topology)
    world.publish()

    world.hand_back()

    assert world.hand_back() is (rabbit.major >= 4)


@pytest.mark.parametrize("kind", [CLASSIC, QUORUM], ids=["classic", "quorum"])
def test_l2_a_dead_letter_exchange_that_does_not_exist(rabbit: Rabbit, world: World, kind: dict[str, str]) -> None:
    lost = Queue(
        name="orders", arguments={**kind, "x-dead-letter-exchange": "dxl", "x-dead-letter-routing-key": "dead"}
    )
    there = (Exchange(name="dlx"), Binding(source="dlx", destination="orders.dead", routing_key="dead"))
    topology = Topology(exchanges=there[:1], queues=(lost, DEAD_QUEUE), bindings=there[1:])
    assert "L2" in predicted(rabbit, topology)
    world.declare(topology)
    world.publish()

    world.reject()

    assert world.stays_empty("orders", "orders.dead")


@pytest.mark.parametrize("kind", [CLASSIC, QUORUM], ids=["classic", "quorum"])
@pytest.mark.parametrize(("bound", "is_kept"), [("ded", False), ("dead", True)])
def test_l3_a_dead_letter_exchange_without_the_binding(
    rabbit: Rabbit, world: World, kind: dict[str, str], *, bound: str, is_kept: bool
) -> None:
    orders = Queue(
        name="orders", arguments={**kind, "x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "dead"}
    )
    topology = Topology(
        exchanges=(Exchange(name="dlx"),),
        queues=(orders, DEAD_QUEUE),
        bindings=(Binding(source="dlx", destination="orders.dead", routing_key=bound),),
    )
    assert is_kept is predicted(rabbit, topology).isdisjoint({"L2", "L3"})
    world.declare(topology)
    world.publish()

    world.reject()

    if is_kept:
        until(lambda: world.ready("orders.dead") == 1)
    else:
        assert world.stays_empty("orders", "orders.dead")


@pytest.mark.parametrize("kind", [CLASSIC, QUORUM], ids=["classic", "quorum"])
def test_l7_a_full_queue_of_dead_letters_drops_the_oldest(rabbit: Rabbit, world: World, kind: dict[str, str]) -> None:
    orders = Queue(name="orders", arguments={**CLASSIC, **DEAD})
    bounded = queues(orders, Queue(name="orders.dead", arguments={**kind, "x-max-length": 3}))
    assert "L7" in predicted(rabbit, bounded)
    world.declare(bounded)

    for number in range(6):
        world.publish(body=b"%d" % number)
        world.reject()

    until(lambda: world.holds("orders.dead", 3))


def test_l7_without_a_limit_all_are_kept(rabbit: Rabbit, world: World) -> None:
    whole = queues(Queue(name="orders", arguments={**CLASSIC, **DEAD}), DEAD_QUEUE)
    assert "L7" not in predicted(rabbit, whole)
    world.declare(whole)

    for number in range(6):
        world.publish(body=b"%d" % number)
        world.reject()

    until(lambda: world.ready("orders.dead") == 6)


@pytest.mark.parametrize("kind", [CLASSIC, QUORUM], ids=["classic", "quorum"])
def test_l8_a_queue_that_expires_takes_its_messages_with_it(rabbit: Rabbit, world: World, kind: dict[str, str]) -> None:
    leased = queues(Queue(name="orders.dead", arguments={**kind, "x-expires": 2_000}))
    kept = queues(Queue(name="orders.rest.dead", arguments=kind))
    assert "L8" in predicted(rabbit, leased)
    assert "L8" not in predicted(rabbit, kept)
    world.declare(leased + kept)
    world.publish("orders.dead")
    world.publish("orders.rest.dead")

    until(lambda: world.is_gone("orders.dead"))

    world.declare(leased)
    assert (0, 1) == (world.ready("orders.dead"), world.ready("orders.rest.dead"))


@pytest.mark.parametrize("kind", [CLASSIC, QUORUM], ids=["classic", "quorum"])
def test_l9_a_cycle_of_waits_drops_and_a_chain_arrives(rabbit: Rabbit, world: World, kind: dict[str, str]) -> None:
    def wait(name: str, then: str) -> Queue:
        told = {"x-message-ttl": 300, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": then}
        return Queue(name=name, arguments={**kind, **told})

    orders = Queue(name="orders", arguments={**kind, **DEAD})
    cycle = queues(wait("wait.a", "wait.b"), wait("wait.b", "wait.a"))
    chain = queues(wait("wait.c", "wait.d"), wait("wait.d", "orders"), orders, DEAD_QUEUE)
    assert "L9" in predicted(rabbit, cycle)
    assert "L9" not in predicted(rabbit, chain)
    world.declare(cycle + chain)
    world.publish("wait.a")
    world.publish("wait.c")

    until(lambda: world.ready("orders") == 1)

    until(lambda: world.stays_empty("wait.a", "wait.b"))


def test_l9_a_message_that_reaches_its_delivery_limit_does_not_come_back_from_its_wait(
    rabbit: Rabbit, world: World
) -> None:
    limit = {"x-delivery-limit": 2}
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.wait"}
    wait = {"x-message-ttl": 200, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}
    topology = queues(
        Queue(name="orders", arguments={**QUORUM, **limit, **back}),
        Queue(name="orders.wait", arguments={**CLASSIC, **wait}),
    )
    assert "L9" in predicted(rabbit, topology)
    world.declare(topology)
    world.publish()

    times = 0
    while world.hand_back():
        times += 1

    assert world.stays_empty("orders", "orders.wait")
    assert 3 == times


def test_l9_a_rejection_in_each_round_keeps_the_message(rabbit: Rabbit, world: World) -> None:
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.wait"}
    wait = {"x-message-ttl": 100, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}
    topology = queues(
        Queue(name="orders", arguments={**CLASSIC, **back}),
        Queue(name="orders.wait", arguments={**CLASSIC, **wait}),
    )
    assert "L9" not in predicted(rabbit, topology)
    world.declare(topology)
    world.publish()

    for _ in range(5):
        world.reject()

    until(lambda: world.ready("orders") == 1)


def test_l11_a_policy_with_a_key_of_another_type_gives_no_dead_letter_exchange(rabbit: Rabbit, world: World) -> None:
    definition = {"dead-letter-exchange": "", "dead-letter-routing-key": "orders.dead", "delivery-limit": 5}
    mixed = Policy(name="mixed", pattern="^orders$", definition=definition, apply_to="queues")
    fit = replace(mixed, definition={key: definition[key] for key in definition if key != "delivery-limit"})
    orders = queues(Queue(name="orders", arguments=CLASSIC), DEAD_QUEUE)
    assert "L11" in predicted(rabbit, replace(orders, policies=(mixed,)))
    assert "L11" not in predicted(rabbit, replace(orders, policies=(fit,)))

    world.declare(replace(orders, policies=(mixed,)))
    world.publish()
    world.reject()
    assert world.stays_empty("orders", "orders.dead")

    world.declare(replace(orders, policies=(fit,)))
    world.publish()
    until(lambda: dead_lettered(world))


def dead_lettered(world: World) -> bool:
    """One more is rejected; whether one has arrived by then (a policy takes effect a little after it is set)."""
    if world.ready("orders"):
        world.reject()
    else:
        world.publish()
    return world.ready("orders.dead") > 0


def test_l5_the_overflow_of_a_policy_wins_on_a_quorum_queue(rabbit: Rabbit, world: World) -> None:
    told = {
        **QUORUM,
        **DEAD,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-max-length": 1,
    }
    drop = Policy(name="drop", pattern="^orders$", definition={"overflow": "drop-head"}, apply_to="queues")
    orders = queues(Queue(name="orders", arguments=told), DEAD_QUEUE)
    assert "L5" in predicted(rabbit, replace(orders, policies=(drop,)))
    assert "L5" not in predicted(rabbit, orders)

    world.declare(replace(orders, policies=(drop,)))
    for _ in range(8):
        world.publish()

    until(lambda: world.ready("orders.dead") > 0)


def test_a_quorum_queue_that_refuses_says_so_where_no_policy_drops(rabbit: Rabbit, world: World) -> None:
    told = {**QUORUM, "x-overflow": "reject-publish", "x-max-length": 1}
    world.declare(queues(Queue(name="orders", arguments=told)))

    with pytest.raises(NackError):
        publish_many(world)


def publish_many(world: World) -> None:
    for _ in range(8):
        world.publish()


@pytest.mark.parametrize("key", ["x-delivery-limit", "x-dead-letter-strategy"])
def test_l29_what_a_type_does_not_know_is_refused(rabbit: Rabbit, world: World, key: str) -> None:
    value = 5 if key == "x-delivery-limit" else "at-least-once"
    topology = queues(Queue(name="orders", arguments={**CLASSIC, **DEAD, key: value}), DEAD_QUEUE)
    assert "L29" in predicted(rabbit, topology)

    with pytest.raises(ChannelClosedByBroker, match="PRECONDITION_FAILED"):
        world.declare(topology)
