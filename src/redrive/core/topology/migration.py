"""A queue with other arguments under the same name, without losing what is in it.

No broker changes a queue in place, so its messages and its bindings move to a holding queue, the queue is deleted and
declared anew, and both move back. The actions below are all it takes. Each can be repeated, none forces anything, and
`migrate(want, have)` made again from what is there after a kill gives exactly the rest of the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from redrive.core.topology.model import Binding, Queue
from redrive.core.units import Millis


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
    """

    source: str
    target: str
    vhost: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitEmpty:
    """Wait until the queue is empty by itself: its messages expire into the queue they are meant for, within
    `at_most_ms`. If it is not empty then, stop here.
    """

    queue: str
    at_most_ms: Millis
    vhost: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete the queue, if it is empty and if nobody consumes from it; else stop here. Gone already is no error."""

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
    person must see to first (stop the workers); `risks`: what can happen on the way, none of it silent loss by redrive.
    """

    queue: Queue
    holding: str
    steps: tuple[MigrationStep, ...]
    before: tuple[str, ...] = ()
    risks: tuple[str, ...] = ()
