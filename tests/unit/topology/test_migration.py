"""A queue gets other arguments and loses nothing, also when its migration is killed anywhere (case TP-03)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.core.topology.equivalence import queue_differences
from redrive.core.topology.fit import for_version
from redrive.core.topology.migration import (
    SUFFIX,
    Action,
    AwaitEmpty,
    Bind,
    Declare,
    Delete,
    Migration,
    Move,
    Unbind,
    can_migrate,
    holding_name,
    migrations,
)
from redrive.core.topology.model import EMPTY, Binding, Queue, Topology
from redrive.core.topology.plan import DRIFT, NO_CHANGE, Kind, plan
from redrive.core.topology.recipes import fanout_bus, retry_per_queue, safe_queue, tiered_retry

VERSION = "4.0.5"


@dataclass
class Model:
    """A broker as far as a migration sees it: queues with messages, bindings, expiry. Refuses what a broker refuses."""

    topology: Topology
    messages: dict[str, list[str]] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)

    def queue(self, name: str) -> Queue | None:
        return next((queue for queue in self.topology.queues if queue.name == name), None)

    def publish(self, exchange: str, key: str, message: str) -> None:
        """Lost where no queue is bound, as at most brokers of most people."""
        found = [
            each.destination
            for each in self.topology.bindings
            if each.source == exchange and fits(each.routing_key, key)
        ]
        for name in found:
            self.messages.setdefault(name, []).append(message)
        if not found:
            self.lost.append(message)

    def do(self, action: Action) -> None:
        match action:
            case Declare(queue=queue):
                have = self.queue(queue.name)
                assert have is None or () == queue_differences(queue, have), "406"
                if have is None:
                    self._replace(queues=(*self.topology.queues, queue))
            case Bind(binding=binding):
                assert self.queue(binding.destination) is not None, "404"
                if binding not in self.topology.bindings:
                    self._replace(bindings=(*self.topology.bindings, binding))
            case Unbind(binding=binding):
                self._replace(bindings=tuple(each for each in self.topology.bindings if each != binding))
            case Move(source=source, target=target):
                assert self.queue(target) is not None, "returned"
                self.messages.setdefault(target, []).extend(self.messages.pop(source, []))
            case AwaitEmpty(queue=name):
                queue_ = self.queue(name)
                assert queue_ is not None
                assert "x-message-ttl" in queue_.arguments
                self.expire(name)
            case Delete(queue=name):
                assert not self.messages.get(name), "not empty"
                self._replace(
                    queues=tuple(each for each in self.topology.queues if each.name != name),
                    bindings=tuple(each for each in self.topology.bindings if each.destination != name),
                )

    def expire(self, name: str) -> None:
        """Everything in the queue goes on."""
        queue = self.queue(name)
        assert queue is not None
        exchange, key = queue.arguments["x-dead-letter-exchange"], queue.arguments["x-dead-letter-routing-key"]
        for message in self.messages.pop(name, []):
            if exchange:
                self.publish(exchange, key, message)
            elif self.queue(key) is None:
                self.lost.append(message)
            else:
                self.messages.setdefault(key, []).append(message)

    def _replace(self, **parts: Any) -> None:
        self.topology = replace(self.topology, **parts)

    @property
    def all_messages(self) -> set[str]:
        return {message for messages in self.messages.values() for message in messages}


def fits(pattern: str, key: str) -> bool:
    if pattern.endswith(".*"):
        return key.rpartition(".")[0] == pattern.removesuffix(".*")
    return pattern in ("", "#", key)


def broker(declared: Topology) -> Model:
    return Model(replace(for_version(declared, VERSION), wirings=(), version=VERSION))


def wait_queue(ttl_ms: int, **more: Any) -> Topology:
    arguments = {"x-message-ttl": ttl_ms, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}
    return Topology(queues=(Queue(name="orders.retry.30s", arguments=arguments | more), Queue(name="orders")))


CHANGES = [
    (fanout_bus("wms-a"), fanout_bus("wms-a", safe=True)),
    (fanout_bus("wms-a", safe=True), fanout_bus("wms-a", delay="45s")),
    (fanout_bus("wms-a"), fanout_bus("wms-a", delay="45s")),
    (
        tiered_retry("f", domains=["user"]),
        tiered_retry("f", domains=["user"], tiers={"30s": "45s", "5m": "5m"}, safe=True),
    ),
    (retry_per_queue({"q.a": {"events": "#"}}), retry_per_queue({"q.a": {"events": "#"}}, delay="2d", safe=True)),
    (retry_per_queue({"q.a": {"events": "#"}}, delay="2d"), retry_per_queue({"q.a": {"events": "#"}}, safe=True)),
    (Topology(queues=(Queue(name="orders"),)), safe_queue("orders")),
]


def carry_out(model: Model, found: tuple[Migration, ...], *, steps: int) -> int:
    """At most this many steps; how many were left to do."""
    left = steps
    for migration in found:
        for step in migration.steps:
            if left == 0:
                return 0
            model.do(step.action)
            left -= 1
    return left


def declared(want: Topology, model: Model) -> Topology:
    """What `apply` makes first: all that is missing."""
    steps = plan(want, model.topology).changes
    for step in steps:
        if isinstance(step.entity, Queue):
            model.do(Declare(queue=step.entity))
        elif isinstance(step.entity, Binding):
            model.do(Bind(binding=step.entity))
        else:
            model.topology = model.topology + Topology(exchanges=(step.entity,))  # type: ignore[arg-type]
    return model.topology


def test_the_messages_of_a_retry_queue_end_in_the_work_queue() -> None:
    model = broker(wait_queue(30_000))
    model.messages = {"orders.retry.30s": ["a", "b", "c"]}

    (found,) = migrations(wait_queue(45_000), model.topology)
    carry_out(model, (found,), steps=99)

    assert {"orders": ["a", "b", "c"]} == model.messages
    assert NO_CHANGE == plan(wait_queue(45_000), model.topology).exit_code
    assert [AwaitEmpty, AwaitEmpty] == [
        type(step.action) for step in found.steps if isinstance(step.action, AwaitEmpty | Move)
    ]


def test_a_wait_of_days_is_not_waited_for() -> None:
    found = migrations(wait_queue(30_000), broker(wait_queue(7 * 86_400_000)).topology)

    moves = [step.action for step in found[0].steps if isinstance(step.action, AwaitEmpty | Move)]
    held = f"orders.retry.30s{SUFFIX}"
    assert Move(source="orders.retry.30s", target=held, vhost="/") == moves[0]
    assert isinstance(moves[1], AwaitEmpty)
    assert held == moves[1].queue


def test_a_wait_queue_that_lets_nothing_go_is_moved_and_not_waited_for() -> None:
    stuck = Topology(queues=(Queue(name="orders.retry.30s"), Queue(name="orders")))

    (found,) = migrations(wait_queue(30_000), broker(stuck).topology)

    assert any(isinstance(step.action, Move) and step.action.source == "orders.retry.30s" for step in found.steps)


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_afterwards_the_queues_are_as_wanted_and_no_holding_queue_is_left(old: Topology, new: Topology) -> None:
    model = broker(old)
    declared(new, model)

    carry_out(model, migrations(new, model.topology), steps=999)

    assert () == migrations(new, model.topology)
    assert [] == [queue.name for queue in model.topology.queues if queue.name.endswith(SUFFIX)]
    assert () == plan(new, model.topology).changes


@settings(max_examples=60)
@given(
    st.sampled_from(CHANGES),
    st.lists(st.integers(0, 12), max_size=4),
    st.lists(st.booleans(), max_size=60),
)
def test_a_migration_killed_anywhere_goes_on_and_no_message_is_lost(
    change: tuple[Topology, Topology], kills: list[int], publishes: list[bool]
) -> None:
    old, new = change
    model = broker(old)
    declared(new, model)
    model.messages = {queue.name: [f"{queue.name}:{number}" for number in (1, 2)] for queue in old.queues}
    published = model.all_messages
    sources = sorted({each.source for each in new.bindings if each.routing_key in ("", "#")})

    for steps in [*kills, 999]:
        for action in [step.action for each in migrations(new, model.topology) for step in each.steps][:steps]:
            model.do(action)
            if sources and publishes and publishes.pop():
                message = f"new:{len(published)}"
                published |= {message}
                model.publish(sources[0], "", message)

    assert [] == model.lost
    assert published == model.all_messages
    assert () == migrations(new, model.topology)
    assert [] == [step.name for step in plan(new, model.topology).drift if step.kind is Kind.QUEUE]


def test_a_binding_nobody_wanted_any_more_is_kept() -> None:
    want = retry_per_queue({"q.a": {"events": "#"}}, safe=True)
    old = Binding(source="events", destination="q.a", routing_key="files.*")
    model = broker(retry_per_queue({"q.a": {"events": "#"}}) + Topology(bindings=(old,)))

    carry_out(model, migrations(want, model.topology), steps=999)

    assert old in model.topology.bindings
    assert DRIFT == plan(want, model.topology).exit_code


def test_wait_queues_come_first_and_queues_with_workers_last() -> None:
    found = migrations(fanout_bus("wms-a", safe=True), broker(fanout_bus("wms-a")).topology)

    assert ["wms.retry-queue.wms-a", "wms.dlq.wms-a", "wms.queue.wms-a"] == [each.queue.name for each in found]
    assert [] == [line for line in found[0].before if "consumes" in line]
    assert 'Stop whoever consumes from "wms.queue.wms-a"' in found[2].before[0]


def test_what_waits_for_a_queue_by_its_name_is_waited_for_before_the_queue_is_deleted() -> None:
    want = fanout_bus("wms-a", delay="10s") + Topology()
    work = replace(want.queues[0], arguments={**want.queues[0].arguments, "x-max-length": 1_000_000})
    want = replace(want, queues=(work, *want.queues[1:]))

    (found,) = migrations(want, broker(fanout_bus("wms-a", delay="10s")).topology)

    actions = [step.action for step in found.steps]
    waited = next(index for index, action in enumerate(actions) if isinstance(action, AwaitEmpty))
    assert AwaitEmpty(queue="wms.retry-queue.wms-a", at_most_ms=250_000, vhost="/") == actions[waited]
    assert waited < actions.index(Delete(queue="wms.queue.wms-a", vhost="/"))


def test_a_holding_queue_that_is_left_is_waited_for_by_its_own_migration_alone() -> None:
    seed, want = fanout_bus("wms-a", safe=True), fanout_bus("wms-a", delay="45s")
    model = broker(seed)
    carry_out(model, migrations(want, model.topology)[:1], steps=5)

    found = migrations(want, model.topology)

    held = f"wms.retry-queue.wms-a{SUFFIX}"
    assert held in {queue.name for queue in model.topology.queues}
    assert [found[0].queue.name] == [
        each.queue.name
        for each in found
        for step in each.steps
        if isinstance(step.action, AwaitEmpty) and step.action.queue == held
    ]


def test_a_queue_that_would_drop_the_oldest_is_never_filled_beyond_its_length() -> None:
    bounded = Topology(queues=(Queue(name="orders", arguments={"x-max-length": 10}),))
    refusing = Topology(queues=(Queue(name="orders", arguments={"x-max-length": 10, "x-overflow": "reject-publish"}),))
    have = broker(Topology(queues=(Queue(name="orders"),))).topology

    def limit(want: Topology) -> list[int | None]:
        return [step.action.limit for step in migrations(want, have)[0].steps if isinstance(step.action, Move)]

    assert [None, 10] == limit(bounded)
    assert [None, None] == limit(refusing)


def test_every_step_says_what_is_done_and_what_is_true_when_it_is_killed_there() -> None:
    model = broker(tiered_retry("f", domains=["user"]))

    for migration in migrations(tiered_retry("f", domains=["user"], safe=True), model.topology):
        assert migration.risks
        assert holding_name(migration.queue.name) == migration.holding
        for step in migration.steps:
            assert step.text.endswith(".")
            assert step.killed_here.endswith(".")


def test_nothing_is_migrated_that_is_as_wanted_or_not_there() -> None:
    want = fanout_bus("wms-a")

    assert () == migrations(want, broker(want).topology)
    assert () == migrations(want, EMPTY)


def test_a_stream_is_not_migrated() -> None:
    stream = Queue(name="q", arguments={"x-queue-type": "stream"})

    assert not can_migrate(Queue(name="q"), stream)
    assert () == migrations(Topology(queues=(Queue(name="q"),)), broker(Topology(queues=(stream,))).topology)


@given(st.text(min_size=1, max_size=255))
def test_a_holding_queue_has_a_name_a_broker_takes_and_the_same_one_each_time(name: str) -> None:
    held = holding_name(name)

    assert held == holding_name(name)
    assert held.endswith(SUFFIX)
    assert len(held.encode()) <= 255


def test_two_long_names_have_two_holding_queues() -> None:
    assert holding_name("a" * 254) != holding_name("a" * 255)
