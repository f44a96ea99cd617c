"""What a broker must be told so that it has what is wanted, and what that does to messages.

`plan(want, have)` compares as the broker does when something is declared again (`redrive.core.topology.equivalence`).
The broker changes nothing in place: what exists with other settings is refused, so such a step needs a migration
(`redrive.core.topology.migration`) or a person. What is there and not wanted is reported and left alone.

Steps come in an order in which they can be carried out one by one and nothing is lost on the way: a queue after the
queues its dead letters go to, the bindings that carry dead letters before those that bring messages in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

from redrive.core.topology import consequences
from redrive.core.topology.definitions import is_built_in
from redrive.core.topology.equivalence import (
    Difference,
    exchange_differences,
    frozen,
    is_same,
    queue_differences,
    shown,
)
from redrive.core.topology.fit import for_version
from redrive.core.topology.ladder import is_level
from redrive.core.topology.migration import can_migrate, holding_name
from redrive.core.topology.model import Binding, Exchange, Policy, Queue, QueueType, Topology, ttl_of
from redrive.core.topology.names import check_names
from redrive.core.topology.verify.effective import Policies, effective, parse_version

Entity: TypeAlias = Exchange | Queue | Binding | Policy

NO_CHANGE: Final = 0
CHANGES: Final = 3
DRIFT: Final = 4
"""Exit codes: nothing to do; something is to be declared; something is not as wanted and does not change in place.
1 and 2 are failures of the command itself.
"""


class Mark(StrEnum):
    """What happens to the entity."""

    CREATE = "+"
    CHANGE = "~"
    EXTRA = "-"


class Kind(StrEnum):
    """What the entity is."""

    POLICY = "policy"
    OPERATOR_POLICY = "operator policy"
    EXCHANGE = "exchange"
    QUEUE = "queue"
    BINDING = "binding"


class Needs(StrEnum):
    """Who can carry the step out: `apply`; `apply` when a migration is asked for; only a person."""

    APPLY = "apply"
    MIGRATION = "migration"
    PERSON = "person"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do or to know. `entity`: as wanted; of an extra, as it is. `have`: what is there, of a change.
    `differences`: of a change, all of them. `consequence`: what it does to messages, in words. `notes`: what else is
    in force there, policies above all. `is_drift`: the broker does something else with messages than is wanted, and
    declaring does not change that.
    """

    mark: Mark
    kind: Kind
    entity: Entity
    consequence: str
    needs: Needs = Needs.APPLY
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    have: Entity | None = None
    is_drift: bool = False

    @property
    def name(self) -> str:
        """For a person, and unique within its kind and virtual host."""
        return name_of(self.entity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Steps in the order in which they are to be carried out, extras last."""

    steps: tuple[Step, ...] = ()

    @property
    def changes(self) -> tuple[Step, ...]:
        """What `apply` declares."""
        return tuple(step for step in self.steps if step.needs is Needs.APPLY)

    @property
    def drift(self) -> tuple[Step, ...]:
        """What is not as wanted and is not changed in place."""
        return tuple(step for step in self.steps if step.is_drift)

    @property
    def extras(self) -> tuple[Step, ...]:
        """What is there and not wanted: reported, never removed."""
        return tuple(step for step in self.steps if step.mark is Mark.EXTRA)

    @property
    def exit_code(self) -> int:
        """For a script: `NO_CHANGE`, `CHANGES` or `DRIFT`. Extras that concern nothing wanted are no change."""
        if self.drift:
            return DRIFT
        return CHANGES if self.changes else NO_CHANGE


def name_of(entity: Entity) -> str:
    """Of a binding: where from, where to, and with what."""
    if not isinstance(entity, Binding):
        return entity.name
    told = f' "{entity.routing_key}"' if entity.routing_key else ""
    told += f" {shown(entity.arguments)}" if entity.arguments else ""
    return f"{entity.source} -> {entity.destination}{told}"


def plan(want: Topology, have: Topology, *, default_types: Mapping[str, str] | None = None) -> Plan:
    """Compare. `have`: everything in the virtual hosts concerned, with the broker's version; `default_types`: of queues
    without a type, by virtual host, where it is not classic.

    Raises `ConfigurationError` for names no broker takes. Same arguments, same plan, in whatever order they come.
    """
    check_names(want)
    compared = _Compared(for_version(want, have.version), have, default_types or {})
    return Plan(
        steps=(
            *compared.policies(),
            *compared.exchanges(),
            *compared.queues(),
            *compared.bindings(),
            *compared.extras(),
        )
    )


class _Compared:
    """Both sides by name."""

    def __init__(self, want: Topology, have: Topology, default_types: Mapping[str, str]) -> None:
        self.want, self.have = want, have
        self._default_types = default_types
        self._vhosts = {each.vhost for each in want.exchanges} | {each.vhost for each in want.queues}
        self._exchanges = {(each.vhost, each.name): each for each in have.exchanges}
        self._queues = {(each.vhost, each.name): each for each in have.queues}
        self._bindings = {binding_key(each): each for each in have.bindings}
        self._in_force = Policies(_with_policies_of(want, have))
        self._version = parse_version(have.version)

    def policies(self) -> Iterator[Step]:
        for kind, wanted, there in (
            (Kind.POLICY, self.want.policies, self.have.policies),
            (Kind.OPERATOR_POLICY, self.want.operator_policies, self.have.operator_policies),
        ):
            found = {(each.vhost, each.name): each for each in there}
            for policy in sorted(wanted, key=_by_name):
                yield from _policy_steps(policy, found.get((policy.vhost, policy.name)), kind)

    def exchanges(self) -> Iterator[Step]:
        for exchange in sorted(self.want.exchanges, key=_by_name):
            if is_built_in(exchange.name):
                continue
            have = self._exchanges.get((exchange.vhost, exchange.name))
            if have is None:
                said = consequences.of_new_exchange(exchange)
                yield Step(mark=Mark.CREATE, kind=Kind.EXCHANGE, entity=exchange, consequence=said)
            elif differences := exchange_differences(exchange, have):
                yield Step(
                    mark=Mark.CHANGE,
                    kind=Kind.EXCHANGE,
                    entity=exchange,
                    have=have,
                    consequence=consequences.of_changed_exchange(),
                    needs=Needs.PERSON,
                    differences=differences,
                    is_drift=True,
                )

    def queues(self) -> Iterator[Step]:
        for queue in sorted(self.want.queues, key=_targets_first):
            have = self._queues.get((queue.vhost, queue.name))
            if have is None:
                said = consequences.of_new_queue(queue)
                notes = self._said_by_policies(queue)
                yield Step(mark=Mark.CREATE, kind=Kind.QUEUE, entity=queue, consequence=said, notes=notes)
                continue
            default = self._default_types.get(queue.vhost, QueueType.CLASSIC)
            if differences := queue_differences(queue, have, default_type=default):
                yield Step(
                    mark=Mark.CHANGE,
                    kind=Kind.QUEUE,
                    entity=queue,
                    have=have,
                    consequence=consequences.of_changed_queue(have, differences, version=self.have.version),
                    needs=Needs.MIGRATION if can_migrate(queue, have) else Needs.PERSON,
                    differences=differences,
                    notes=(*consequences.by_policy(differences), *self._said_by_policies(have)),
                    is_drift=True,
                )

    def _said_by_policies(self, queue: Queue) -> tuple[str, ...]:
        """Settings in force on the queue that a policy has a say in."""
        found = effective(queue, self._in_force, self._version)
        said = []
        for key, sources in found.sources.items():
            winner = found.decided_by(key)
            if winner is not None and any("policy" in source.kind for source in sources):
                said.append(f"{key}: {', '.join(map(str, sources))}; {shown(winner.value)} counts.")
        return tuple(said)

    def bindings(self) -> Iterator[Step]:
        carriers = {(queue.vhost, queue.arguments.get("x-dead-letter-exchange")) for queue in self.want.queues}
        carriers |= {(each.vhost, each.arguments.get("alternate-exchange")) for each in self.want.exchanges}

        def order(binding: Binding) -> tuple[Any, ...]:
            return ((binding.vhost, binding.source) not in carriers, *_binding_order(binding))

        for binding in sorted(self.want.bindings, key=order):
            if binding.source and binding_key(binding) not in self._bindings:
                said = consequences.of_new_binding(binding)
                yield Step(mark=Mark.CREATE, kind=Kind.BINDING, entity=binding, consequence=said)

    def extras(self) -> Iterator[Step]:
        """What is there and not wanted, in the virtual hosts of what is wanted. The ladder is shared, so no extra."""
        yield from self._extra_policies()
        exchanges = {(each.vhost, each.name) for each in self.want.exchanges}
        queues = {(each.vhost, each.name) for each in self.want.queues}
        for exchange in sorted(self.have.exchanges, key=_by_name):
            foreign = (exchange.vhost, exchange.name) not in exchanges and not is_built_in(exchange.name)
            if foreign and self._concerns(exchange):
                yield _extra(Kind.EXCHANGE, exchange, "Left alone; nothing of this topology publishes to it.")
        holding = {(queue.vhost, holding_name(queue.name)) for queue in self.want.queues}
        for queue in sorted(self.have.queues, key=_by_name):
            if (queue.vhost, queue.name) in holding:
                said = "It holds messages of a migration that was interrupted: migrate again to finish it."
                yield _extra(Kind.QUEUE, queue, said, needs=Needs.MIGRATION, is_drift=True)
            elif (queue.vhost, queue.name) not in queues and self._concerns(queue):
                yield _extra(Kind.QUEUE, queue, "Left alone with its messages; nothing of this topology reads it.")
        wanted = {binding_key(each) for each in self.want.bindings}
        for binding in sorted(self.have.bindings, key=_binding_order):
            own = queues if binding.destination_type == "queue" else exchanges
            is_wanted = (binding.vhost, binding.destination) in own
            if (
                binding.source
                and binding_key(binding) not in wanted
                and (is_wanted or (binding.vhost, binding.source) in exchanges)
            ):
                said = consequences.of_extra_binding(binding, is_wanted=is_wanted)
                yield _extra(Kind.BINDING, binding, said, is_drift=is_wanted)

    def _concerns(self, entity: Exchange | Queue) -> bool:
        return entity.vhost in self._vhosts and not is_level(entity.name)

    def _extra_policies(self) -> Iterator[Step]:
        """Those that are in force on something wanted; others concern nobody here."""
        wanted = {(each.vhost, each.name) for each in self.want.policies}
        for policy in sorted(self.have.policies, key=_by_name):
            alone = Policies(Topology(policies=(policy,)))
            concerned = sorted(
                queue.name
                for queue in self.want.queues
                if effective(queue, self._in_force, self._version).policy == policy.name
                and effective(queue, alone, self._version).policy == policy.name
            )
            if concerned and (policy.vhost, policy.name) not in wanted:
                told = f"Left alone; in force on {_listed(concerned)}: {shown(policy.definition)}."
                yield _extra(Kind.POLICY, policy, told)


def _policy_steps(want: Policy, have: Policy | None, kind: Kind) -> Iterator[Step]:
    said = f"In force at once on every match of {want.pattern!r}: {shown(want.definition)}."
    if have is None:
        yield Step(mark=Mark.CREATE, kind=kind, entity=want, consequence=said)
        return
    differences = tuple(
        Difference(setting=name, have=getattr(have, name), want=getattr(want, name))
        for name in ("pattern", "apply_to", "priority", "definition")
        if not is_same(getattr(have, name), getattr(want, name))
    )
    if differences:
        yield Step(mark=Mark.CHANGE, kind=kind, entity=want, have=have, consequence=said, differences=differences)


def _extra(
    kind: Kind, entity: Entity, consequence: str, *, needs: Needs = Needs.PERSON, is_drift: bool = False
) -> Step:
    return Step(mark=Mark.EXTRA, kind=kind, entity=entity, consequence=consequence, needs=needs, is_drift=is_drift)


def _with_policies_of(want: Topology, have: Topology) -> Topology:
    def both(wanted: Iterable[Policy], there: Iterable[Policy]) -> tuple[Policy, ...]:
        merged = {(each.vhost, each.name): each for each in (*there, *wanted)}
        return tuple(merged.values())

    return Topology(
        policies=both(want.policies, have.policies),
        operator_policies=both(want.operator_policies, have.operator_policies),
    )


def binding_key(binding: Binding) -> tuple[Any, ...]:
    """What makes it this binding and no other: the broker takes a second one of the same key for the first."""
    return (*_binding_order(binding)[:-1], frozen(binding.arguments))


def _binding_order(binding: Binding) -> tuple[str, ...]:
    ends = (binding.vhost, binding.source, binding.destination_type, binding.destination)
    return (*ends, binding.routing_key, shown(binding.arguments))


def _by_name(entity: Exchange | Queue | Policy) -> tuple[str, str]:
    return entity.vhost, entity.name


def _targets_first(queue: Queue) -> tuple[int, str, str]:
    """Dead-letter queues, then those in which messages wait, then those that are consumed from."""
    if queue.arguments.get("x-dead-letter-exchange") is None:
        return 0, queue.vhost, queue.name
    return (1 if ttl_of(queue) is not None else 2), queue.vhost, queue.name


def _listed(names: list[str]) -> str:
    shown_names = ", ".join(f'"{name}"' for name in names[:_FEW])
    return shown_names if len(names) <= _FEW else f"{shown_names} and {len(names) - _FEW} more"


_FEW: Final = 5
