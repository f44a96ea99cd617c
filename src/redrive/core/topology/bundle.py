"""Bundle: the queues a fair queue of RabbitMQ consists of, and their names.

    mail             others publish here, and retries come back here
    mail.turns.NN    shards: redrive publishes here, by a hash of the tenant
    mail.aside.NN    what a tenant has more of than the sorter holds, in its order
    mail.next        kept short: from here workers take

All are of the type and durability of the queue itself. Messages move between them by being published, confirmed, and
acknowledged then; no broker's dead-lettering has a part in it. What the queue says of dead-lettering and of a message
TTL holds in each of them, so a message that expires goes where it would have gone; a delivery limit only where somebody
handles messages, in `mail.next` (a quorum queue without one gets one there that is never reached: with it, what is
handed back keeps its place); a limit of length only in the queue itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final
from zlib import crc32

from redrive.core.topology.fit import LIMIT, NEVER_REACHED, UNLIMITED
from redrive.core.topology.model import Queue, QueueType, Topology
from redrive.core.topology.recipes import safe_queue

SHARDS: Final = 16
OWN_ASIDES: Final = 12
"""Each holds messages of one tenant at a time."""
SHARED_ASIDES: Final = 4
"""For tenants that find none of the former free, by a hash."""

_INHERITED: Final = (
    "x-queue-type",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-message-ttl",
    "x-queue-version",
    "x-quorum-initial-group-size",
    "x-queue-leader-locator",
)
"""Arguments each queue of the bundle takes over."""
_AT_LEAST_ONCE: Final = "at-least-once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The names of one fair queue's queues."""

    queue: str
    shards: tuple[str, ...]
    own_asides: tuple[str, ...]
    shared_asides: tuple[str, ...]
    next: str

    @property
    def asides(self) -> tuple[str, ...]:
        """Both kinds."""
        return (*self.own_asides, *self.shared_asides)

    @property
    def sources(self) -> tuple[str, ...]:
        """Where messages come in."""
        return (self.queue, *self.shards)

    @property
    def inner(self) -> tuple[str, ...]:
        """All but the queue itself: nobody else's business."""
        return (*self.shards, *self.asides, self.next)

    def shard_of(self, group: str) -> str:
        """Where messages of this group of tenants are published to."""
        return self.shards[_place(group, len(self.shards))]


@lru_cache(maxsize=1_000)
def bundle_of(queue: str) -> Bundle:
    """The names."""
    asides = _numbered(f"{queue}.aside", OWN_ASIDES + SHARED_ASIDES)
    return Bundle(
        queue=queue,
        shards=_numbered(f"{queue}.turns", SHARDS),
        own_asides=asides[:OWN_ASIDES],
        shared_asides=asides[OWN_ASIDES:],
        next=f"{queue}.next",
    )


def shared_aside_of(group: str, asides: Collection[str]) -> str:
    """Which of these a group shares with others."""
    return tuple(asides)[_place(group, len(asides))]


def with_bundles(topology: Topology, queues: Iterable[str]) -> Topology:
    """The topology with the bundles of these fair queues. A queue of which it says nothing is taken for the default
    shape, which is not added: who needs it declares it.
    """
    declared = {queue.name: queue for queue in topology.queues}
    made: list[Queue] = []
    for name in queues:
        wiring = topology.wiring(name)
        shape = declared.get(name)
        if shape is None:
            shape = safe_queue(name, None if wiring is None else wiring.dead_letter_queue).queues[0]
        made += [each for each in _parts(shape) if each.name not in declared]
    return replace(topology, queues=(*topology.queues, *made))


def _parts(shape: Queue) -> list[Queue]:
    bundle = bundle_of(shape.name)
    arguments: dict[str, Any] = {name: shape.arguments[name] for name in _INHERITED if name in shape.arguments}
    if arguments.get("x-dead-letter-strategy") == _AT_LEAST_ONCE:
        # The broker takes that strategy with this overflow only.
        arguments["x-overflow"] = "reject-publish"
    parts = [replace(shape, name=name, auto_delete=False, arguments=arguments) for name in bundle.inner]
    limit = shape.arguments.get(LIMIT, UNLIMITED)
    if arguments.get("x-queue-type") == QueueType.QUORUM and limit == UNLIMITED:
        limit = NEVER_REACHED
    if limit != UNLIMITED:
        parts[-1] = replace(parts[-1], arguments={**arguments, LIMIT: limit})
    return parts


def _numbered(prefix: str, count: int) -> tuple[str, ...]:
    return tuple(f"{prefix}.{number:02}" for number in range(count))


def _place(group: str, count: int) -> int:
    return crc32(group.encode("utf-8", "surrogatepass")) % count
