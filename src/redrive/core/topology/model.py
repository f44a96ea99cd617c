"""Exchanges, queues, bindings and policies as values.

A `Topology` holds what somebody wants or what a broker has; the same model serves both. `wirings` say how redrive
itself retries and dead-letters on a queue; a topology read from a broker has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, TypeAlias

from redrive.core.topology.wiring import Wiring
from redrive.core.units import Millis

Arguments: TypeAlias = Mapping[str, Any]
"""An AMQP argument table with plain JSON values (text, whole numbers, booleans, lists, tables)."""

DEFAULT_VHOST: Final = "/"


class QueueType(StrEnum):
    """How the broker keeps a queue."""

    CLASSIC = "classic"
    QUORUM = "quorum"
    STREAM = "stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """An exchange. `type`: direct, fanout, topic, headers, or a plugin's."""

    name: str
    type: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = field(default_factory=dict)
    vhost: str = DEFAULT_VHOST


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue with the arguments it is declared with; effective settings also depend on policies."""

    name: str
    durable: bool = True
    auto_delete: bool = False
    arguments: Arguments = field(default_factory=dict)
    vhost: str = DEFAULT_VHOST

    @property
    def type(self) -> QueueType:
        """As declared; classic where nothing is said."""
        return QueueType(self.arguments.get("x-queue-type", QueueType.CLASSIC))


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """From an exchange to a queue, or to another exchange (`destination_type` "exchange")."""

    source: str
    destination: str
    routing_key: str = ""
    destination_type: str = "queue"
    arguments: Arguments = field(default_factory=dict)
    vhost: str = DEFAULT_VHOST


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy or (in `Topology.operator_policies`) an operator policy. `apply_to`: queues, exchanges, all,
    classic_queues, quorum_queues or streams. Keys of `definition` have no "x-".
    """

    name: str
    pattern: str
    definition: Arguments
    apply_to: str = "all"
    priority: int = 0
    vhost: str = DEFAULT_VHOST


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What is, or should be, on one broker. `version` and `feature_flags` only where read from one."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()
    policies: tuple[Policy, ...] = ()
    operator_policies: tuple[Policy, ...] = ()
    wirings: tuple[Wiring, ...] = ()
    version: str | None = None
    feature_flags: frozenset[str] | None = None

    def wiring(self, queue: str) -> Wiring | None:
        """How redrive retries and dead-letters on this consumer queue; None: nothing is said (the default shape)."""
        return next((wiring for wiring in self.wirings if wiring.queue == queue), None)

    def __add__(self, other: Topology) -> Topology:
        """Both together; equal entities once. The version is the left one's where it has one."""
        return replace(
            self,
            exchanges=_joined(self.exchanges, other.exchanges),
            queues=_joined(self.queues, other.queues),
            bindings=_joined(self.bindings, other.bindings),
            policies=_joined(self.policies, other.policies),
            operator_policies=_joined(self.operator_policies, other.operator_policies),
            wirings=_joined(self.wirings, other.wirings),
            version=self.version or other.version,
            feature_flags=self.feature_flags or other.feature_flags,
        )


def _joined(left: Iterable[Any], right: Iterable[Any]) -> tuple[Any, ...]:
    joined = list(left)
    joined += [each for each in right if each not in joined]
    return tuple(joined)


EMPTY: Final = Topology()

DEFAULT_CONSUMER_TIMEOUT_MS: Final[Millis] = 1_800_000
"""How long a RabbitMQ from 3.8.15 on waits for an acknowledgement before it closes the channel."""


def consumer_timeout_ms(topology: Topology, queue: str) -> Millis:
    """How long the broker lets a delivery of this queue wait for its acknowledgement, as far as the topology tells."""
    for each in topology.queues:
        found = each.arguments.get("x-consumer-timeout") if each.name == queue else None
        if isinstance(found, int) and not isinstance(found, bool):
            return found
    return DEFAULT_CONSUMER_TIMEOUT_MS


def ttl_of(queue: Queue) -> Millis | None:
    """The message TTL a queue is declared with, in ms."""
    found = queue.arguments.get("x-message-ttl")
    return found if isinstance(found, int) and not isinstance(found, bool) else None
