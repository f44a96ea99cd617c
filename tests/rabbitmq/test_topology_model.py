"""What the model of a topology says about the broker, asked of the broker itself (case TP-05)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import AMQPError

from redrive.core.topology.definitions import export_definitions, read_definitions
from redrive.core.topology.equivalence import queue_differences
from redrive.core.topology.fit import for_version, in_vhost
from redrive.core.topology.model import Binding, Exchange, Policy, Queue, Topology
from redrive.core.topology.plan import NO_CHANGE, plan
from redrive.core.topology.recipes import delay_levels, fanout_bus, retry_per_queue, tiered_retry
from tests.rabbit import Rabbit, RabbitAlone

CASE = Topology(
    exchanges=(Exchange(name="by-header", type="headers"), Exchange(name="by-key")),
    queues=(
        Queue(
            name="naïve-Ω",
            arguments={
                "x-queue-type": "quorum",
                "x-delivery-limit": 7,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": "dead",
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
            },
        ),
        Queue(name="dead"),
    ),
    bindings=(
        Binding(
            source="by-header",
            destination="naïve-Ω",
            arguments={"x-match": "all", "tenant": "t1", "n": 5, "flag": True, "list": [1, "a"]},
        ),
        Binding(source="by-key", destination="by-header", destination_type="exchange", routing_key="k"),
    ),
    policies=(Policy(name="p", pattern="^n", definition={"max-length": 10}, priority=0),),
    operator_policies=(Policy(name="o", pattern="^n", definition={"max-length": 100}, apply_to="queues"),),
)
WANTED = {
    "case": CASE,
    "bus": fanout_bus("wms-cincout", "wms-labels"),
    "tiers": tiered_retry("freeflow", domains=["user", "auth"]),
    "queues": retry_per_queue({"q.audit": {"domain.events": "#"}, "q.upload": {"domain.commands": ["a.#", "b.*"]}}),
    "safe": fanout_bus("wms-cincout", safe=True)
    + tiered_retry("freeflow", domains=["user"], safe=True)
    + retry_per_queue({"q.audit": {"domain.events": "#"}}, safe=True),
    "levels": delay_levels("orders"),
}


def wanted(name: str, rabbit: Rabbit) -> Topology:
    return in_vhost(for_version(WANTED[name], rabbit.version), rabbit.vhost.name)


def exported(rabbit: Rabbit) -> Topology:
    """What the broker exports of the test's virtual host."""
    document = rabbit.server.api("GET", f"/api/definitions/{quote(rabbit.vhost.name, safe='')}")
    return read_definitions(document, vhost=rabbit.vhost.name).topology


@pytest.mark.parametrize("name", WANTED)
def test_the_broker_imports_what_was_exported_and_then_the_plan_says_no_change(rabbit: Rabbit, name: str) -> None:
    want = wanted(name, rabbit)
    text = export_definitions(want, names_vhost=False)

    rabbit.server.api("POST", f"/api/definitions/{quote(rabbit.vhost.name, safe='')}", json.loads(text))

    have = exported(rabbit)
    found = plan(want, have)
    assert () == found.steps
    assert NO_CHANGE == found.exit_code
    assert text == export_definitions(replace(have, version=None, queues=as_wanted(have, want)), names_vhost=False)


def as_wanted(have: Topology, want: Topology) -> tuple[Queue, ...]:
    """Its queues; the type that a 4.x broker writes out where none was said is taken away again."""
    unsaid = {queue.name for queue in want.queues if "x-queue-type" not in queue.arguments}
    return tuple(
        replace(queue, arguments={name: each for name, each in queue.arguments.items() if name != "x-queue-type"})
        if queue.name in unsaid
        else queue
        for queue in have.queues
    )


def test_the_brokers_own_tool_imports_it_and_exports_the_same(rabbit_alone: RabbitAlone) -> None:
    want = wanted("case", rabbit_alone) + wanted("bus", rabbit_alone)

    rabbit_alone.node.import_definitions(export_definitions(want))

    document = json.loads(rabbit_alone.node.ctl("export_definitions", "-"))
    assert () == plan(want, read_definitions(document).topology).steps


def table(**arguments: Any) -> dict[str, Any]:
    return {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}


PAIRS = [
    (table(), table(queue_type="classic")),
    (table(queue_type="classic"), table()),
    (table(), table(foo=1)),
    (table(foo=1), table(foo=2)),
    (table(), table(delivery_limit=5)),
    (table(), table(dead_letter_strategy="at-least-once")),
    (table(queue_type="quorum"), table(queue_type="quorum", queue_mode="lazy")),
    (table(queue_type="quorum"), table(queue_type="quorum", consumer_timeout=100_000)),
    (table(), table(queue_type="quorum")),
    (table(queue_type="quorum"), table()),
    (table(message_ttl=60_000), table(message_ttl=70_000)),
    (table(message_ttl=60_000), table()),
    (table(max_length=5), table(max_length="5")),
    (table(single_active_consumer=True), table(single_active_consumer=1)),
    (table(dead_letter_exchange=""), table(dead_letter_exchange="", dead_letter_routing_key="x")),
    (table(overflow="drop-head"), table(overflow="reject-publish")),
    (table(max_priority=5), table(max_priority=6)),
    (table(queue_type="quorum"), table(queue_type="quorum", delivery_limit=-1)),
    (table(queue_type="quorum", delivery_limit=5), table(queue_type="quorum", delivery_limit=6)),
]


@pytest.fixture
def connection(rabbit: Rabbit) -> Iterator[BlockingConnection]:
    with BlockingConnection(pika.URLParameters(rabbit.url)) as opened:
        yield opened


def test_a_declaration_is_refused_exactly_where_a_difference_is_found(connection: BlockingConnection) -> None:
    wrong = []
    for number, (have, want) in enumerate(PAIRS):
        name = f"q{number}"
        connection.channel().queue_declare(name, durable=True, arguments=have)
        differences = queue_differences(Queue(name=name, arguments=want), Queue(name=name, arguments=have))
        try:
            connection.channel().queue_declare(name, durable=True, arguments=want)
        except AMQPError as error:
            if not differences:
                wrong.append((have, want, str(error)))
        else:
            if differences:
                wrong.append((have, want, f"accepted, but {differences[0]}"))

    assert [] == wrong


def test_a_limit_of_minus_one_gives_a_message_up_at_its_first_return_where_it_is_not_known(
    rabbit: Rabbit, connection: BlockingConnection
) -> None:
    quorum = table(queue_type="quorum", dead_letter_exchange="", dead_letter_routing_key="given-up")
    fitted = for_version(Topology(queues=(Queue(name="fitted", arguments=quorum),)), rabbit.version)
    channel = connection.channel()
    channel.queue_declare("given-up", durable=True)
    channel.queue_declare("said", durable=True, arguments={**quorum, "x-delivery-limit": -1})
    channel.queue_declare("fitted", durable=True, arguments=dict(fitted.queues[0].arguments))

    back = {name: is_returned(connection, name, times=3) for name in ("said", "fitted")}

    assert {"said": rabbit.major >= 4, "fitted": True} == back


def is_returned(connection: BlockingConnection, queue: str, *, times: int) -> bool:
    """Whether a message still comes after it was handed back so often; False once it lies in "given-up"."""
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"x")
    seen = 0
    for found, _, _ in channel.consume(queue, inactivity_timeout=0.1):
        if found is None:
            if channel.queue_declare("given-up", passive=True).method.message_count:
                return False
        elif seen == times:
            return True
        else:
            seen += 1
            channel.basic_nack(found.delivery_tag, requeue=True)
    return False
