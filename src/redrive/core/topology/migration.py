"""A queue with other arguments under the same name, without losing what is in it.

No broker changes a queue in place, so its messages and its bindings move to a holding queue, the queue is deleted and
declared anew, and both move back. The actions below are all it takes. Each can be repeated, none forces anything, and
`migrations(want, have)` made again from what is there after a kill gives the rest of the way:

    the queue is there, not as wanted          the whole way
    the queue is gone, the holding queue there  from declaring it on
    the queue is as wanted, the holding queue still there  from binding it on

Two kinds of queues go different ways. In a wait queue (a TTL, and somewhere to go on to) messages leave by themselves:
its holding queue has the wanted arguments, new messages wait there, and the old ones are waited for. Out of every other
queue they are moved, one confirmed copy after the other.

Authoritative is where the messages lie. Weak spots, told in `before` and `risks`: a message published between a bind
and the unbind after it lies in both queues; and in the moment between delete and declare, what is sent to the queue by
its name, past any exchange, finds none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from redrive.core.topology.equivalence import queue_differences
from redrive.core.topology.fit import LIMIT, for_version
from redrive.core.topology.model import Binding, Queue, QueueType, Topology, ttl_of
from redrive.core.topology.names import MAX_NAME_BYTES, check_names, name_bytes
from redrive.core.units import Millis

SUFFIX: Final = ".redrive-migration"
PATIENCE_MS: Final[Millis] = 3_600_000
"""A wait longer than an hour is not waited for: the messages are moved, and wait anew in their new queue."""

GRACE_MS: Final[Millis] = 240_000
"""On top of the TTL until a queue must be empty: a broker that was killed may need 180 s until it moves the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declare:
    """Declare the queue; it is there afterwards with these arguments, or the step fails (406) and nothing changed."""

    queue: Queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """Bind; a binding that is there already stays."""

    binding: Binding


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbind:
    """Remove the binding; one that is gone already is no error."""

    binding: Binding


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Move every message from `source` to `target`, both queues by name, until `source` is empty: consume, publish to
    the default exchange (mandatory, confirmed), then acknowledge. The copy keeps body, properties and headers, without
    the broker's own; its attempts and its original exchange and routing key are put into redrive's headers.
    `limit`: stop before `target` holds more, for it would drop the oldest; None: it holds any number.
    """

    source: str
    target: str
    vhost: str
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitEmpty:
    """Wait until the queue is empty by itself: its messages expire into the queue they are meant for, within
    `at_most_ms`. If it is not empty then, stop here. Gone already is no error.
    """

    queue: str
    at_most_ms: Millis
    vhost: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete the queue, if it is empty and if nobody consumes from it; else stop here. Gone already is no error.

    A classic queue does so by itself (if-empty, if-unused). A quorum queue refuses such a delete and closes the
    connection (540, measured on 3.10.8 and 4.0.5): look at its counts on the same channel right before.
    """

    queue: str
    vhost: str


Action: TypeAlias = Declare | Bind | Unbind | Move | AwaitEmpty | Delete


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationStep:
    """`text`: what is done, in words. `killed_here`: what is true when the process dies during it."""

    action: Action
    text: str
    killed_here: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """The whole way for one queue. `holding`: name of the queue in which its messages wait meanwhile. `before`: what a
    person must see to first (stop the workers); `risks`: what can happen to a message on the way.
    """

    queue: Queue
    holding: str
    steps: tuple[MigrationStep, ...]
    before: tuple[str, ...] = ()
    risks: tuple[str, ...] = ()


def holding_name(queue: str) -> str:
    """Name of the queue in which the messages of this one wait meanwhile: the same one in every try."""
    name = f"{queue}{SUFFIX}"
    if name_bytes(name) <= MAX_NAME_BYTES:
        return name
    return hashlib.sha256(queue.encode("utf-8", "surrogatepass")).hexdigest()[:32] + SUFFIX


def can_migrate(want: Queue, have: Queue) -> bool:
    """False for streams: nothing is taken out of one."""
    return QueueType.STREAM not in (want.arguments.get("x-queue-type"), have.arguments.get("x-queue-type"))


def migrations(
    want: Topology, have: Topology, *, default_types: Mapping[str, str] | None = None
) -> tuple[Migration, ...]:
    """One for each wanted queue that is there with other arguments, or whose migration was interrupted; carry them out
    in this order. `have` and `default_types` as for `redrive.core.topology.plan.plan`.

    Wait queues come first: they are migrated while the workers run. Raises `ConfigurationError` for bad names.
    """
    check_names(want)
    fitted = for_version(want, have.version)
    there = {(each.vhost, each.name): each for each in have.queues}
    found = []
    for queue in sorted(fitted.queues, key=_order):
        default = (default_types or {}).get(queue.vhost, QueueType.CLASSIC)
        way = _Way(
            want=queue,
            have=there.get((queue.vhost, queue.name)),
            holding=there.get((queue.vhost, holding_name(queue.name))),
            wanted=fitted,
            broker=have,
        )
        if way.is_needed(default):
            found.append(way.migration(default))
    return tuple(found)


def _order(queue: Queue) -> tuple[int, str, str]:
    if _waits(queue):
        return 0, queue.vhost, queue.name
    return (1 if queue.arguments.get("x-dead-letter-exchange") is None else 2), queue.vhost, queue.name


def _waits(queue: Queue) -> bool:
    """Its messages leave by themselves, and go somewhere."""
    return ttl_of(queue) is not None and queue.arguments.get("x-dead-letter-exchange") is not None


def _patience(queue: Queue) -> Millis | None:
    """How long to wait until its messages have left; None: they do not, or not soon."""
    ttl_ms = ttl_of(queue)
    return None if not _waits(queue) or ttl_ms is None or ttl_ms > PATIENCE_MS else ttl_ms + GRACE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """One queue, and what is there of it now."""

    want: Queue
    have: Queue | None
    holding: Queue | None
    wanted: Topology
    broker: Topology

    def is_needed(self, default_type: str) -> bool:
        if self.have is not None and not can_migrate(self.want, self.have):
            return False
        return self.holding is not None or (self.have is not None and self._differs(default_type))

    def _differs(self, default_type: str) -> bool:
        return self.have is not None and bool(queue_differences(self.want, self.have, default_type=default_type))

    def migration(self, default_type: str) -> Migration:
        steps: list[MigrationStep] = []
        if self._differs(default_type):
            steps += self._out()
        if self.have is None or self._differs(default_type):
            steps.append(self._declare_anew())
        steps += self._back()
        return Migration(
            queue=self.want,
            holding=self._held,
            steps=tuple(steps),
            before=tuple(self._before()),
            risks=tuple(self._risks()),
        )

    @property
    def _held(self) -> str:
        return holding_name(self.want.name)

    def _out(self) -> Iterator[MigrationStep]:
        """Everything to the holding queue, and the queue deleted."""
        name, vhost = self.want.name, self.want.vhost
        if self.holding is None:
            yield MigrationStep(
                action=Declare(queue=self._holding_queue()),
                text=f'Declare the holding queue "{self._held}".',
                killed_here="The holding queue is there or not; no message was touched.",
            )
        yield from _rebound(self._bound(self.broker.bindings, name), name, self._held)
        if not _waits(self.want):
            yield from self._await_feeders()
        yield self._emptied(self.have, self._held)
        yield MigrationStep(
            action=Delete(queue=name, vhost=vhost),
            text=f'Delete "{name}", if it is empty and nobody consumes from it.',
            killed_here="It was empty. What is published from now on lies in the holding queue; what is sent to "
            f'"{name}" by name finds no queue until the next step.',
        )

    def _await_feeders(self) -> Iterator[MigrationStep]:
        for feeder in self._feeders():
            patience = _patience(feeder)
            if patience is not None:
                yield self._awaited(feeder, patience)

    def _feeders(self) -> list[Queue]:
        """Wait queues that send to this queue by name, without making sure that it is there. Those of this topology
        have been migrated before, and their holding queues are gone.
        """
        there = {(each.vhost, each.name): each for each in self.broker.queues}
        there |= {(each.vhost, each.name): each for each in self.wanted.queues if (each.vhost, each.name) in there}
        return [
            queue
            for queue in sorted(there.values(), key=_order)
            if queue.vhost == self.want.vhost
            and _waits(queue)
            and not queue.name.endswith(SUFFIX)
            and queue.arguments.get("x-dead-letter-exchange") == ""
            and queue.arguments.get("x-dead-letter-routing-key") == self.want.name
            and queue.arguments.get("x-dead-letter-strategy") != "at-least-once"
        ]

    def _awaited(self, queue: Queue, patience: Millis) -> MigrationStep:
        return MigrationStep(
            action=AwaitEmpty(queue=queue.name, at_most_ms=patience, vhost=queue.vhost),
            text=f'Wait until "{queue.name}" is empty: its messages go on by themselves within {ttl_of(queue)} ms.',
            killed_here="Its messages go on by themselves, as they do at any time.",
        )

    def _emptied(self, source: Queue | None, target: str, *, limit: int | None = None) -> MigrationStep:
        patience = None if source is None or not _waits(self.want) else _patience(source)
        if source is not None and patience is not None:
            return self._awaited(source, patience)
        name = self.want.name if source is None else source.name
        return MigrationStep(
            action=Move(source=name, target=target, vhost=self.want.vhost, limit=limit),
            text=f'Move every message from "{name}" to "{target}": publish, wait for the confirm, then acknowledge.',
            killed_here="Each message lies in one of the two queues; those in hand may lie in both, with one id.",
        )

    def _declare_anew(self) -> MigrationStep:
        return MigrationStep(
            action=Declare(queue=self.want),
            text=f'Declare "{self.want.name}" with the wanted arguments.',
            killed_here="All messages lie in the holding queue; the queue is as wanted, or is declared next time.",
        )

    def _back(self) -> Iterator[MigrationStep]:
        """Everything from the holding queue, and that one deleted."""
        name = self.want.name
        there = (*self._bound(self.broker.bindings, name), *self._bound(self.broker.bindings, self._held))
        everything = _distinct((*self._bound(self.wanted.bindings, name), *there))
        yield from _rebound(everything, self._held, name)
        held = self._holding_queue() if self.holding is None else self.holding
        yield self._emptied(held, name, limit=self._limit())
        yield MigrationStep(
            action=Delete(queue=self._held, vhost=self.want.vhost),
            text=f'Delete the holding queue "{self._held}", if it is empty and nobody consumes from it.',
            killed_here=f'It was empty; all messages lie in "{name}".' if not _waits(self.want) else "It was empty.",
        )

    def _limit(self) -> int | None:
        limit = self.want.arguments.get("x-max-length")
        return limit if isinstance(limit, int) and self.want.arguments.get("x-overflow") != "reject-publish" else None

    def _bound(self, bindings: Iterable[Binding], queue: str) -> tuple[Binding, ...]:
        return tuple(
            replace(each, destination=self.want.name)
            for each in bindings
            if each.source
            and each.destination_type == "queue"
            and (each.vhost, each.destination) == (self.want.vhost, queue)
        )

    def _holding_queue(self) -> Queue:
        if _waits(self.want):
            return Queue(name=self._held, arguments=self.want.arguments, vhost=self.want.vhost)
        kept = {name: value for name, value in self.want.arguments.items() if name in ("x-queue-type", LIMIT)}
        return Queue(name=self._held, arguments=kept, vhost=self.want.vhost)

    def _before(self) -> Iterator[str]:
        if not _waits(self.want):
            yield f'Stop whoever consumes from "{self.want.name}": a queue in use is not deleted.'
        if not self._bound((*self.wanted.bindings, *self.broker.bindings), self.want.name):
            yield f'Stop whoever publishes to "{self.want.name}" by its name: no exchange can send that elsewhere.'

    def _risks(self) -> Iterator[str]:
        if self._bound((*self.wanted.bindings, *self.broker.bindings), self.want.name):
            yield (
                "A message published in the moment between a bind and the unbind after it lies in both queues. Redrive "
                "runs one of the two; a consumer without idempotency runs both."
            )
        yield (
            f'In the moment between deleting and declaring "{self.want.name}", what is sent to it by its name finds no '
            "queue: with mandatory it is returned, without it is gone."
        )
        if not _waits(self.want):
            yield "The order of messages is not kept."
        for feeder in self._feeders():
            if _patience(feeder) is None and not _waits(self.want):
                yield (
                    f'"{feeder.name}" sends to it by name after {ttl_of(feeder)} ms, which is not waited for: what '
                    "leaves it in that moment is gone."
                )


def _rebound(bindings: Iterable[Binding], old: str, new: str) -> Iterator[MigrationStep]:
    for binding in sorted(_distinct(bindings), key=lambda each: (each.source, each.routing_key, str(each.arguments))):
        with_key = f' with "{binding.routing_key}"' if binding.routing_key else ""
        yield MigrationStep(
            action=Bind(binding=replace(binding, destination=new)),
            text=f'Bind "{new}" to "{binding.source}"{with_key}.',
            killed_here="New messages lie in both queues until the next step is made; none is lost.",
        )
        yield MigrationStep(
            action=Unbind(binding=replace(binding, destination=old)),
            text=f'Unbind "{old}" from "{binding.source}"{with_key}.',
            killed_here=f'New messages lie in "{new}", or still in both; none is lost.',
        )


def _distinct(bindings: Iterable[Binding]) -> tuple[Binding, ...]:
    found: list[Binding] = []
    found += (each for each in bindings if each not in found)
    return tuple(found)
