"""Topologies other libraries make: what is wrong with them is found, and nothing that is not."""

from __future__ import annotations

import time

import pytest

from redrive.core.topology.model import Binding, Exchange, Policy, Queue, Topology
from redrive.core.topology.verify import REDRIVE, UNKNOWN, Severity, verify
from tests.unit.topology.verifying import QUORUM, SAFE, queue, topology

LEVELS = 28


def binary_levels(prefix: str) -> Topology:
    """Delays as a binary number in the routing key: a queue and an exchange per bit, the highest first."""
    exchanges, queues, bindings = [Exchange(name=f"{prefix}_delivery", type="topic")], [], []
    for level in range(LEVELS):
        name, below = f"{prefix}_{level}", f"{prefix}_{level - 1}" if level else f"{prefix}_delivery"
        before = "*." * (LEVELS - 1 - level)
        exchanges.append(Exchange(name=name, type="topic"))
        waits = {**SAFE, "x-message-ttl": 1_000 * 2**level, "x-dead-letter-exchange": below}
        queues.append(Queue(name=name, arguments=waits))
        bindings.append(Binding(source=name, destination=name, routing_key=f"{before}1.#"))
        bindings.append(
            Binding(source=name, destination=below, destination_type="exchange", routing_key=f"{before}0.#")
        )
    orders = Queue(
        name="orders", arguments={**SAFE, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.dlq"}
    )
    return Topology(
        exchanges=tuple(exchanges),
        queues=(*queues, orders, Queue(name="orders.dlq", arguments=QUORUM)),
        bindings=(*bindings, Binding(source=f"{prefix}_delivery", destination="orders", routing_key="#.orders")),
        version="4.0.5",
    )


def test_delays_in_binary_levels_are_walked_in_time_and_nothing_is_wrong_with_them() -> None:
    begin = time.process_time()

    report = verify(binary_levels("celery_delayed"), client=REDRIVE)

    assert () == report.at_least(Severity.WARNING)
    assert time.process_time() - begin < 20


def test_a_policy_of_all_queues_makes_the_queue_of_dead_letters_no_loop() -> None:
    everywhere = Policy(name="dlx", pattern=".*", definition={"dead-letter-exchange": "dlx"}, apply_to="queues")
    shape = topology(
        Exchange(name="dlx", type="fanout"),
        queue("orders"),
        queue("delay-service"),
        queue("errors"),
        Binding(source="dlx", destination="errors"),
        everywhere,
    )

    report = verify(shape, client=REDRIVE)

    assert ("L6",) == report.codes(Severity.WARNING)
    assert {"orders", "delay-service"} == {each.queue for each in report.at_least(Severity.WARNING)}


def test_messages_published_to_arrive_later_at_many_are_no_retries() -> None:
    def shape(name: str) -> Topology:
        wait = Queue(
            name=name,
            arguments={
                **SAFE,
                "x-message-ttl": 1_000,
                "x-dead-letter-exchange": "events",
                "x-dead-letter-routing-key": "x",
            },
        )
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dlq"}
        return topology(
            Exchange(name="events", type="topic"),
            wait,
            *(Queue(name=each, arguments={**SAFE, **dead}) for each in ("mail", "billing")),
            Queue(name="dlq", arguments=QUORUM),
            *(Binding(source="events", destination=each, routing_key="#") for each in ("mail", "billing")),
        )

    assert () == verify(shape("reminders.delay"), client=REDRIVE).at_least(Severity.WARNING)
    assert ("L23",) == verify(shape("billing.retry"), client=REDRIVE).codes(Severity.WARNING)


def test_queues_of_answers_are_temporary_and_meant_to_be() -> None:
    answers = Queue(name="amq.gen-1", durable=False, auto_delete=True)

    assert () == verify(topology(answers), client=REDRIVE).at_least(Severity.WARNING)


@pytest.mark.parametrize("client", [UNKNOWN, REDRIVE], ids=["unknown", "known"])
def test_a_plain_classic_queue_drops_what_is_rejected_and_that_is_all(client: object) -> None:
    report = verify(topology(queue("celery")), client=UNKNOWN if client is UNKNOWN else REDRIVE)

    assert ("L21",) == report.codes(Severity.WARNING)


def test_an_empty_topology_has_nothing_to_lose() -> None:
    report = verify(Topology())

    assert ((), ()) == (report.findings, report.proofs)
