"""What a broker must be told so that it has what is wanted, and what that does to messages.

`plan(want, have)` compares as the broker does when something is declared again: a number is equal whatever its width on
the wire, an argument the broker does not know is not looked at, a queue without a type is of the virtual host's default
type. The broker changes nothing in place: what exists with other settings is refused, so such a step needs a migration
(`redrive.core.topology.migration`) or a person. What is there and not wanted is reported and left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

from redrive.core.topology.model import Binding, Exchange, Policy, Queue

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

    EXCHANGE = "exchange"
    QUEUE = "queue"
    BINDING = "binding"
    POLICY = "policy"
    OPERATOR_POLICY = "operator policy"


class Needs(StrEnum):
    """Who can carry the step out: `apply`; `apply` when a migration is asked for; only a person."""

    APPLY = "apply"
    MIGRATION = "migration"
    PERSON = "person"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One setting that is not as wanted. None: absent."""

    setting: str
    have: Any
    want: Any

    def __str__(self) -> str:
        return f"{self.setting}: have {_shown(self.have)}, want {_shown(self.want)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do or to know. `entity`: as wanted; of an extra, as it is. `differences`: of a change, all of them.
    `consequence`: what it does to messages, in words. `notes`: what else is in force there, policies above all.
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
    def creates(self) -> tuple[Step, ...]:
        """What `apply` declares."""
        return tuple(step for step in self.steps if step.mark is not Mark.EXTRA and step.needs is Needs.APPLY)

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
        """For a script: `NO_CHANGE`, `CHANGES` or `DRIFT`. Extras alone are no change."""
        if self.drift:
            return DRIFT
        return CHANGES if self.creates else NO_CHANGE


def name_of(entity: Entity) -> str:
    """Of a binding: where from, where to, and with what."""
    if not isinstance(entity, Binding):
        return entity.name
    told = f' "{entity.routing_key}"' if entity.routing_key else ""
    told += f" {_table(entity.arguments)}" if entity.arguments else ""
    return f"{entity.source} -> {entity.destination}{told}"


def _table(arguments: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{name}: {_shown(value)}" for name, value in sorted(arguments.items())) + "}"


def _shown(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{value}"'
        case _:
            return str(value)
