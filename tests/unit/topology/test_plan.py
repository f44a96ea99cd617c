"""The plan: what is to be declared, what cannot be changed in place, what is left alone (case TP-03)."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.topology.fit import for_version
from redrive.core.topology.migration import holding_name
from redrive.core.topology.model import EMPTY, Binding, Exchange, Policy, Queue, Topology
from redrive.core.topology.plan import CHANGES, DRIFT, NO_CHANGE, Kind, Mark, Needs, Plan, Step, name_of, plan
from redrive.core.topology.recipes import delay_levels, fanout_bus, retry_per_queue, tiered_retry
from redrive.errors import ConfigurationError

WANTED = [
    fanout_bus("wms-cincout", "wms-labels"),
    fanout_bus("wms-cincout", safe=True),
    tiered_retry("freeflow", domains=["user", "auth"]),
    tiered_retry("freeflow", domains=["user", "auth"], safe=True),
    retry_per_queue({"q.audit": {"domain.events": "#"}}),
    delay_levels("orders"),
]


def retry_queue(ttl_ms: int) -> Queue:
    arguments = {"x-message-ttl": ttl_ms, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}
    return Queue(name="orders.retry.30s", arguments=arguments)


def only(found: Plan, mark: Mark, kind: Kind) -> Step:
    steps = [step for step in found.steps if (step.mark, step.kind) == (mark, kind)]
    assert 1 == len(steps), [(step.mark, step.kind, step.name) for step in found.steps]
    return steps[0]


@pytest.mark.parametrize("version", ["3.10.8", "4.0.5"])
@pytest.mark.parametrize("want", WANTED)
def test_what_was_declared_needs_no_change(want: Topology, version: str) -> None:
    have = replace(for_version(want, version), wirings=(), version=version)

    found = plan(want, have)

    assert () == found.steps
    assert NO_CHANGE == found.exit_code


@pytest.mark.parametrize("want", WANTED)
def test_on_an_empty_broker_everything_is_declared_in_an_order_in_which_nothing_is_lost(want: Topology) -> None:
    found = plan(want, EMPTY)

    assert CHANGES == found.exit_code
    assert found.steps == found.changes
    assert len(want.exchanges) + len(want.queues) + len(want.bindings) == len(found.steps)
    declared: set[str] = {""}
    bound: set[str] = set()
    for step in found.steps:
        entity = step.entity
        if isinstance(entity, Binding):
            assert {entity.source, entity.destination} <= declared
            bound.add(entity.source)
        elif isinstance(entity, Queue):
            declared.add(entity.name)
            if entity.arguments.get("x-dead-letter-exchange") == "" and "x-message-ttl" not in entity.arguments:
                assert entity.arguments["x-dead-letter-routing-key"] in declared
        else:
            declared.add(step.name)
    order = [step.entity.source for step in found.steps if isinstance(step.entity, Binding)]
    carriers = {queue.arguments.get("x-dead-letter-exchange") for queue in want.queues}
    carries = [source in carriers for source in order]
    assert sorted(carries, reverse=True) == carries


def test_drift_is_one_line_with_queue_argument_have_and_want() -> None:
    want = Topology(queues=(retry_queue(45_000), Queue(name="orders"), Queue(name="orders.dead")))
    have = Topology(queues=(retry_queue(30_000),), version="3.10.8")

    found = plan(want, have)

    drift = only(found, Mark.CHANGE, Kind.QUEUE)
    assert ("orders.retry.30s", ["x-message-ttl: have 30000, want 45000"]) == (
        drift.name,
        [str(each) for each in drift.differences],
    )
    assert Needs.MIGRATION is drift.needs
    assert "messages wait 30000 ms in it" in drift.consequence
    assert DRIFT == found.exit_code
    assert (drift,) == found.drift
    assert ["orders", "orders.dead"] == [step.name for step in found.changes]


def test_a_queue_of_another_type_tells_what_a_crash_costs_until_it_is_migrated() -> None:
    want, have = fanout_bus("wms-cincout", safe=True), replace(fanout_bus("wms-cincout"), version="4.0.5")

    found = plan(want, have)

    work = next(step for step in found.steps if step.name == "wms.queue.wms-cincout")
    assert "a crash of the broker can lose what it moves out of this classic queue" in work.consequence
    assert {"x-queue-type", "x-dead-letter-strategy", "x-overflow", "x-delivery-limit"} == {
        each.setting for each in work.differences
    }
    assert 3 == len(found.drift) == len(found.steps)


def test_a_delivery_limit_a_newer_broker_would_apply_is_drift_and_an_older_has_none() -> None:
    old = replace(delay_levels("orders"), wirings=(), version="3.13.7")

    assert NO_CHANGE == plan(delay_levels("orders"), old).exit_code
    found = plan(delay_levels("orders"), replace(old, version="4.1.0"))
    step = next(step for step in found.steps if step.name == "orders.dead")
    assert ["x-delivery-limit: have nothing, want -1"] == [str(each) for each in step.differences]
    assert "a message is given up after 20 returns" in step.consequence
    assert "a policy that says {delivery-limit: -1}" in step.notes[0]


def test_minus_one_on_a_broker_that_does_not_know_it_is_told_for_what_it_is() -> None:
    have = Topology(
        queues=(Queue(name="q", arguments={"x-queue-type": "quorum", "x-delivery-limit": -1}),), version="3.10.8"
    )

    found = plan(Topology(queues=(Queue(name="q", arguments={"x-queue-type": "quorum"}),)), have)

    assert "a message is given up at its first return" in only(found, Mark.CHANGE, Kind.QUEUE).consequence


def test_a_stream_needs_a_person() -> None:
    have = Topology(queues=(Queue(name="q", arguments={"x-queue-type": "stream"}),))

    found = plan(Topology(queues=(Queue(name="q"),)), have)

    assert Needs.PERSON is only(found, Mark.CHANGE, Kind.QUEUE).needs


def test_an_exchange_of_another_type_needs_a_person() -> None:
    found = plan(Topology(exchanges=(Exchange(name="e", type="topic"),)), Topology(exchanges=(Exchange(name="e"),)))

    step = only(found, Mark.CHANGE, Kind.EXCHANGE)
    assert Needs.PERSON is step.needs
    assert ['type: have "direct", want "topic"'] == [str(each) for each in step.differences]
    assert "while nobody publishes" in step.consequence
    assert DRIFT == found.exit_code


def test_what_nobody_wants_is_reported_and_left_alone() -> None:
    want = fanout_bus("wms-cincout")
    foreign = Topology(
        exchanges=(Exchange(name="theirs"), Exchange(name="amq.topic", type="topic"), Exchange(name="")),
        queues=(Queue(name="theirs"),),
        bindings=(
            Binding(source="theirs", destination="theirs"),
            Binding(source="", destination="theirs", routing_key="theirs"),
            Binding(source="wms.main-exchange", destination="theirs"),
        ),
    )

    found = plan(want, want + foreign)

    assert [
        (Mark.EXTRA, Kind.EXCHANGE, "theirs"),
        (Mark.EXTRA, Kind.QUEUE, "theirs"),
        (Mark.EXTRA, Kind.BINDING, "wms.main-exchange -> theirs"),
    ] == [(step.mark, step.kind, step.name) for step in found.steps]
    assert {Needs.PERSON} == {step.needs for step in found.steps}
    assert all("Left alone" in step.consequence for step in found.steps)
    assert NO_CHANGE == found.exit_code


def test_the_ladder_is_shared_and_no_extra() -> None:
    want = fanout_bus("wms-cincout")

    assert () == plan(want, want + delay_levels()).steps


def test_a_binding_too_many_into_a_wanted_queue_is_drift() -> None:
    want = retry_per_queue({"q.audit": {"domain.events": "#"}})
    old = Binding(source="domain.events", destination="q.audit", routing_key="files.*")

    found = plan(want, replace(want, bindings=(*want.bindings, old)))

    step = only(found, Mark.EXTRA, Kind.BINDING)
    assert 'domain.events -> q.audit "files.*"' == step.name
    assert "also gets what is published" in step.consequence
    assert DRIFT == found.exit_code
    assert () == found.changes


def test_bindings_are_told_apart_by_kinds_of_their_conditions() -> None:
    def bound(value: Any) -> Topology:
        arguments = {"x-match": "all", "n": value}
        return Topology(
            exchanges=(Exchange(name="h", type="headers"),),
            queues=(Queue(name="q"),),
            bindings=(Binding(source="h", destination="q", arguments=arguments),),
        )

    assert NO_CHANGE == plan(bound(1), bound(1)).exit_code
    for other in (True, "1", 1.0, [1]):
        found = plan(bound(1), bound(other))
        assert 'h -> q {n: 1, x-match: "all"}' == only(found, Mark.CREATE, Kind.BINDING).name


def test_policies_in_force_are_told_where_they_matter() -> None:
    want = Topology(queues=(retry_queue(30_000), Queue(name="orders")))
    policy = Policy(name="short", pattern="^orders", definition={"message-ttl": 1_000})

    found = plan(want, Topology(policies=(policy,)))

    created = next(step for step in found.steps if step.name == "orders.retry.30s")
    assert ('message-ttl: argument x-message-ttl says 30000, policy "short" says 1000; 1000 counts.',) == created.notes
    extra = only(found, Mark.EXTRA, Kind.POLICY)
    assert 'in force on "orders", "orders.retry.30s": {message-ttl: 1000}' in extra.consequence


def test_policies_that_concern_nothing_wanted_are_not_spoken_of() -> None:
    policy = Policy(name="theirs", pattern="^theirs", definition={"max-length": 1})

    assert () == plan(fanout_bus("a-b"), replace(fanout_bus("a-b"), policies=(policy,))).steps


def test_a_wanted_policy_is_made_and_changed_in_place() -> None:
    policy = Policy(name="p", pattern="^orders", definition={"max-length": 5})
    want = Topology(policies=(policy,))

    made = plan(want, EMPTY)
    changed = plan(want, Topology(policies=(replace(policy, definition={"max-length": 9}),)))

    assert CHANGES == made.exit_code == changed.exit_code
    step = only(changed, Mark.CHANGE, Kind.POLICY)
    assert ["definition: have {max-length: 9}, want {max-length: 5}"] == [str(each) for each in step.differences]
    assert Needs.APPLY is step.needs
    assert NO_CHANGE == plan(want, want).exit_code


def test_operator_policies_are_compared_as_such() -> None:
    policy = Policy(name="p", pattern="^orders", definition={"expires": 5_000})

    found = plan(Topology(operator_policies=(policy,)), Topology(policies=(policy,)))

    assert policy == only(found, Mark.CREATE, Kind.OPERATOR_POLICY).entity


def test_a_holding_queue_that_was_left_says_that_the_migration_is_to_be_finished() -> None:
    want = fanout_bus("wms-cincout")
    left = Topology(queues=(Queue(name=holding_name("wms.queue.wms-cincout")),))

    found = plan(want, want + left)

    step = only(found, Mark.EXTRA, Kind.QUEUE)
    assert "interrupted" in step.consequence
    assert Needs.MIGRATION is step.needs
    assert DRIFT == found.exit_code


def test_other_virtual_hosts_are_none_of_this_plans_business() -> None:
    have = Topology(
        queues=(Queue(name="q", vhost="other"), Queue(name="r")), exchanges=(Exchange(name="e", vhost="other"),)
    )

    found = plan(Topology(queues=(Queue(name="q"),)), have)

    assert [("+", "q"), ("-", "r")] == [(step.mark, step.name) for step in found.steps]


def test_bad_names_are_refused_before_anything_is_planned() -> None:
    with pytest.raises(ConfigurationError, match="amq"):
        plan(Topology(queues=(Queue(name="amq.q"),)), EMPTY)


def test_every_step_has_a_consequence_that_is_a_sentence() -> None:
    want = fanout_bus("wms-cincout", safe=True)
    have = replace(fanout_bus("wms-cincout") + delay_levels("orders"), version="4.0.5")

    for step in plan(want, have).steps:
        assert step.consequence[0].isupper()
        assert step.consequence.endswith(".")
        assert name_of(step.entity) == step.name


@given(st.sampled_from(WANTED), st.sampled_from(WANTED), st.randoms())
def test_the_same_topologies_give_the_same_plan_in_whatever_order_they_come(
    want: Topology, have: Topology, chance: random.Random
) -> None:
    def mixed(topology: Topology) -> Topology:
        parts: dict[str, Any] = {}
        for name in ("exchanges", "queues", "bindings"):
            parts[name] = list(getattr(topology, name))
            chance.shuffle(parts[name])
            parts[name] = tuple(parts[name])
        return replace(topology, **parts)

    assert plan(want, have) == plan(mixed(want), mixed(have))
