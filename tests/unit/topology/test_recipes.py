"""Recipes give the topologies of the systems letter by letter, and the safe form keeps every name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.topology.fit import for_version, in_vhost
from redrive.core.topology.ladder import LEVELS
from redrive.core.topology.model import Binding, Exchange, Queue, Topology
from redrive.core.topology.recipes import delay_levels, fanout_bus, retry_per_queue, safe_queue, tiered_retry
from redrive.core.topology.wiring import DeadLetterRoute, LadderRetry, RejectRetry, Tier, TierRetry, Wiring
from redrive.errors import ConfigurationError

DOMAINS = ["user", "auth", "alarm", "document", "workflow", "notification", "audit"]
PIPELINE: dict[str, dict[str, str | list[str]]] = {
    "q.upload.commands": {"domain.commands": ["commands.upload.#", "commands.file.reprocess.*"]},
    "q.validator": {"domain.events": "files.uploaded.*"},
    "q.thumbnail": {"domain.events": "files.validated.*"},
    "q.extractor": {"domain.events": "files.validated.*"},
    "q.projection": {"domain.events": "#"},
    "q.notification": {"domain.events": ["processing.#", "files.rejected.*"]},
    "q.audit": {"domain.events": "#"},
}
Recipe = Callable[..., Topology]
RECIPES: list[Recipe] = [
    lambda **options: fanout_bus("wms-cincout", "wms-labels", **options),
    lambda **options: tiered_retry("freeflow", domains=DOMAINS, **options),
    lambda **options: retry_per_queue(PIPELINE, **options),
]


def by_name(topology: Topology) -> dict[str, dict[str, Any]]:
    assert len(topology.queues) == len({queue.name for queue in topology.queues})
    return {queue.name: dict(queue.arguments) for queue in topology.queues}


def classic(**arguments: Any) -> dict[str, Any]:
    return {"x-queue-type": "classic"} | {
        f"x-{name.replace('_', '-')}": value for name, value in arguments.items() if value is not None
    }


def test_the_bus_is_system_b_letter_by_letter() -> None:
    made = fanout_bus("wms-cincout")

    assert (
        Exchange(name="wms.main-exchange", type="fanout"),
        Exchange(name="wms.retry-exchange.wms-cincout", type="direct"),
    ) == made.exchanges
    assert {
        "wms.queue.wms-cincout": classic(
            dead_letter_exchange="wms.retry-exchange.wms-cincout", dead_letter_routing_key="retry"
        ),
        "wms.retry-queue.wms-cincout": classic(
            message_ttl=5_000, dead_letter_exchange="", dead_letter_routing_key="wms.queue.wms-cincout"
        ),
        "wms.dlq.wms-cincout": classic(),
    } == by_name(made)
    assert (
        Binding(source="wms.main-exchange", destination="wms.queue.wms-cincout"),
        Binding(
            source="wms.retry-exchange.wms-cincout", destination="wms.retry-queue.wms-cincout", routing_key="retry"
        ),
    ) == made.bindings
    assert all(queue.durable for queue in made.queues)


def test_the_bus_rejects_for_a_retry_publishes_a_dead_letter_and_waits_locally() -> None:
    made = fanout_bus("wms-cincout")

    expected = Wiring(
        queue="wms.queue.wms-cincout",
        retry=RejectRetry(delay_ms=5_000),
        dead_letter=DeadLetterRoute(
            exchange="",
            routing_key="wms.dlq.wms-cincout",
            headers={
                "queue": "x-original-queue",
                "status_code": "x-final-status-code",
                "error": "x-final-error",
                "retry_count": "x-final-retry-count",
            },
        ),
        dead_letter_queue="wms.dlq.wms-cincout",
        waits_locally=True,
    )
    assert expected == made.wiring("wms.queue.wms-cincout")


@pytest.mark.parametrize(
    ("service", "prefix", "expected"),
    [
        ("wms-cincout", None, "wms"), ("xyz-service", None, "xyz"), ("a-b-c", None, "a"), ("billing", None, "default"),
        ("-odd", None, "default"), ("wms-cincout", "shop", "shop"),
    ],
)  # fmt: skip
def test_the_prefix_is_the_name_before_the_first_hyphen(service: str, prefix: str | None, expected: str) -> None:
    made = fanout_bus(service, prefix=prefix)

    assert f"{expected}.main-exchange" == made.exchanges[0].name
    assert f"{expected}.queue.{service}" == made.wirings[0].queue


def test_services_of_one_prefix_are_on_one_bus_and_each_has_its_own_retries() -> None:
    made = fanout_bus("wms-cincout", "wms-labels", delay="250ms")

    assert 1 == [exchange.type for exchange in made.exchanges].count("fanout")
    bound = [each.destination for each in made.bindings if each.source == "wms.main-exchange"]
    assert ["wms.queue.wms-cincout", "wms.queue.wms-labels"] == bound
    assert [RejectRetry(delay_ms=250)] * 2 == [wiring.retry for wiring in made.wirings]


def test_the_tiers_are_system_c_letter_by_letter() -> None:
    made = tiered_retry("freeflow", domains=DOMAINS)

    assert (
        Exchange(name="freeflow.events", type="topic"),
        Exchange(name="freeflow.events.retry", type="direct"),
        Exchange(name="freeflow.events.dlx", type="fanout"),
    ) == made.exchanges
    expected = {"freeflow.events.dlq": classic()}
    keys = {("freeflow.events.dlx", "freeflow.events.dlq", "")}
    for domain in DOMAINS:
        expected[f"freeflow.{domain}"] = classic(dead_letter_exchange="freeflow.events.dlx")
        keys.add(("freeflow.events", f"freeflow.{domain}", f"{domain}.*"))
        for tier, ttl in (("30s", 30_000), ("5m", 300_000), ("30m", 1_800_000)):
            expected[f"freeflow.{domain}.retry.{tier}"] = classic(
                message_ttl=ttl, dead_letter_exchange="freeflow.events", dead_letter_routing_key=f"{domain}.retry"
            )
            keys.add(("freeflow.events.retry", f"freeflow.{domain}.retry.{tier}", f"{domain}.{tier}"))
    assert expected == by_name(made)
    assert keys == {(each.source, each.destination, each.routing_key) for each in made.bindings}
    assert len(keys) == len(made.bindings)


def test_a_domain_publishes_its_retries_shortest_tier_first_and_rejects_its_dead_letters() -> None:
    made = tiered_retry("freeflow", domains=["user"], tiers={"late": "30m", "soon": "30s"})

    expected = Wiring(
        queue="freeflow.user",
        retry=TierRetry(
            exchange="freeflow.events.retry",
            tiers=(
                Tier(delay_ms=30_000, routing_key="user.soon"),
                Tier(delay_ms=1_800_000, routing_key="user.late"),
            ),
            count_header="x-retry-count",
            routing_key_header="x-original-routing-key",
            exchange_header="x-original-exchange",
        ),
        dead_letter=DeadLetterRoute(exchange="freeflow.events.dlx", routing_key="", by_reject=True),
        dead_letter_queue="freeflow.events.dlq",
    )
    assert expected == made.wiring("freeflow.user")


def test_safe_tiers_give_a_retry_back_to_the_queue_that_failed_and_to_no_other() -> None:
    made = tiered_retry("freeflow", domains=["user", "auth"], safe=True)

    waits = [queue for queue in made.queues if "x-message-ttl" in queue.arguments]
    assert 6 == len(waits)
    for wait in waits:
        assert "" == wait.arguments["x-dead-letter-exchange"]
        assert wait.name.startswith(f"{wait.arguments['x-dead-letter-routing-key']}.retry.")
    assert not any(wiring.dead_letter.by_reject for wiring in made.wirings)
    assert {"alternate-exchange": "freeflow.events.dlx"} == made.exchanges[1].arguments


def test_other_exchanges_can_be_named() -> None:
    made = tiered_retry("shop", domains=["user"], events="bus")

    assert ["bus", "bus.retry", "bus.dlx"] == [exchange.name for exchange in made.exchanges]
    assert "bus.dlq" == made.wirings[0].dead_letter_queue


def test_a_retry_per_queue_is_system_d_letter_by_letter() -> None:
    made = retry_per_queue(PIPELINE)

    queues, exchanges, keys = {}, {("domain.events", "topic"), ("domain.commands", "topic")}, set()
    for name, bound in PIPELINE.items():
        queues[name] = classic(dead_letter_exchange=f"retry.{name}", dead_letter_routing_key="retry")
        queues[f"{name}.retry"] = classic(message_ttl=15_000, dead_letter_exchange="", dead_letter_routing_key=name)
        queues[f"{name}.dlq"] = classic()
        exchanges |= {(f"retry.{name}", "direct"), (f"dlq.{name}", "direct")}
        keys |= {(f"retry.{name}", f"{name}.retry", "retry"), (f"dlq.{name}", f"{name}.dlq", "parking")}
        for source, patterns in bound.items():
            keys |= {(source, name, key) for key in ([patterns] if isinstance(patterns, str) else patterns)}
    assert queues == by_name(made)
    assert exchanges == {(each.name, each.type) for each in made.exchanges}
    assert len(exchanges) == len(made.exchanges)
    assert keys == {(each.source, each.destination, each.routing_key) for each in made.bindings}
    assert 23 == len(made.bindings) == len(keys)


def test_a_dead_message_is_parked() -> None:
    made = retry_per_queue({"q.audit": {"domain.events": "#"}}, delay="1s")

    expected = Wiring(
        queue="q.audit",
        retry=RejectRetry(delay_ms=1_000),
        dead_letter=DeadLetterRoute(exchange="dlq.q.audit", routing_key="parking"),
        dead_letter_queue="q.audit.dlq",
    )
    assert (expected,) == made.wirings


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_safe_form_keeps_every_name_and_moves_messages_out_of_quorum_queues_at_least_once(recipe: Recipe) -> None:
    seed, safe = recipe(), recipe(safe=True)

    assert by_name(seed).keys() == by_name(safe).keys()
    assert [each.name for each in seed.exchanges] == [each.name for each in safe.exchanges]
    assert seed.bindings == safe.bindings
    for queue in safe.queues:
        assert "quorum" == queue.arguments["x-queue-type"]
        if "x-dead-letter-exchange" in queue.arguments:
            assert "at-least-once" == queue.arguments["x-dead-letter-strategy"]
            assert "reject-publish" == queue.arguments["x-overflow"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_form_in_use_writes_the_classic_type_out(recipe: Recipe) -> None:
    assert {"classic"} == {queue.arguments["x-queue-type"] for queue in recipe().queues}


def test_delay_levels_give_each_queue_the_safe_shape_and_all_one_ladder() -> None:
    made = delay_levels("orders", "mails")

    assert len(LEVELS) + 4 == len(made.queues)
    arguments = {
        "x-queue-type": "quorum",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "orders.dead",
    }
    assert Queue(name="orders", arguments=arguments) in made.queues
    assert Queue(name="orders.dead", arguments={"x-queue-type": "quorum"}) in made.queues
    wiring = made.wiring("mails")
    assert wiring is not None
    assert LadderRetry() == wiring.retry
    assert DeadLetterRoute(exchange="", routing_key="mails.dead") == wiring.dead_letter


def test_a_ladder_can_be_added_to_any_recipe() -> None:
    made = fanout_bus("wms-cincout") + delay_levels()

    assert 3 + len(LEVELS) == len(made.queues)
    assert 1 == len(made.wirings)


def test_the_dead_letter_queue_of_a_safe_queue_can_be_named() -> None:
    made = safe_queue("orders", "graveyard")

    assert ["orders", "graveyard"] == [queue.name for queue in made.queues]
    assert "graveyard" == made.wirings[0].dead_letter_queue


def test_a_delivery_limit_is_switched_off_only_by_a_broker_that_has_one() -> None:
    made = delay_levels("orders")

    old, new = for_version(made, "3.13.7"), for_version(made, "4.1.0-rc.1")

    assert made == old == for_version(made, None)
    assert {-1} == {queue.arguments["x-delivery-limit"] for queue in new.queues}
    assert new == for_version(new, "4.0.5")


def test_a_delivery_limit_that_is_said_stays_and_classic_queues_get_none() -> None:
    said = Queue(name="a", arguments={"x-queue-type": "quorum", "x-delivery-limit": 7})
    made = Topology(queues=(said,)) + fanout_bus("wms-cincout")

    assert made == for_version(made, "4.0.5")


def test_a_topology_can_be_put_into_another_virtual_host() -> None:
    moved = in_vhost(tiered_retry("freeflow", domains=["user"]), "prod")

    assert {"prod"} == {each.vhost for each in moved.exchanges} | {each.vhost for each in moved.queues}
    assert {"prod"} == {each.vhost for each in moved.bindings}


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (fanout_bus, "service"),
        (lambda: fanout_bus("wms-a", ""), "service"),
        (lambda: fanout_bus("wms-a", delay="soon"), "delay"),
        (lambda: fanout_bus("wms-a", delay=0), "delay"),
        (lambda: tiered_retry("f", domains=[]), "domain"),
        (lambda: tiered_retry("f", domains="user"), "domain"),
        (lambda: tiered_retry("f", domains=["user"], tiers=["eventually"]), "eventually"),
        (lambda: tiered_retry("f", domains=["user"], tiers=[]), "tier"),
        (lambda: retry_per_queue({}), "queue"),
        (lambda: retry_per_queue({"": {}}), "queue"),
    ],
)  # fmt: skip
def test_what_makes_no_topology_is_refused_by_name(make: Callable[[], Topology], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        make()


@given(st.lists(st.text("abc-", min_size=1, max_size=8), min_size=1, max_size=4, unique=True))
def test_any_services_have_a_bus_on_which_every_queue_has_one_wiring(services: list[str]) -> None:
    made = fanout_bus(*services)

    assert len(services) == len(made.wirings) == len({wiring.queue for wiring in made.wirings})
    assert 3 * len(services) == len(by_name(made))
