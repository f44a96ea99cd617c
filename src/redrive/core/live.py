"""What can be done with a broker by hand: the values, and the port that `redrive topology` and `dlq` in place use.

Every method can be repeated. A failure of one raises a `RedriveError` and says what was changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from redrive.core.in_place import Standing
from redrive.core.message import Headers, HeaderValue
from redrive.core.topology.migration import Migration, MigrationStep
from redrive.core.topology.model import EMPTY, Binding, Topology
from redrive.core.topology.plan import Plan
from redrive.core.units import UnixMs

Said = Callable[[str], None]
"""Told, in a sentence, what is being done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class There:
    """What is on the broker. `is_complete` False: it was asked over AMQP alone, `notes` say what that leaves open."""

    topology: Topology
    default_types: Mapping[str, str] = field(default_factory=dict)
    is_complete: bool = True
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A message as it lies in its queue, `position` 1 first. `properties`: those that are set, by AMQP's names, without
    the headers. `queue`: where it goes back to, as far as that is known.
    """

    position: int
    body: bytes
    headers: Headers
    properties: Mapping[str, HeaderValue]
    exchange: str
    routing_key: str
    is_redelivered: bool
    dead_since: UnixMs | None
    reason_code: str
    reason_text: str
    attempts: int
    redriven: int
    queue: str | None

    @property
    def message_id(self) -> str | None:
        """Its own id, where it has one."""
        found = self.properties.get("message_id")
        return found if isinstance(found, str) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A queue and its first messages."""

    standing: Standing
    messages: tuple[Waiting, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBack:
    """What to send back. `limit`: of how many messages, oldest first; those that come back while it runs are not among
    them. `to`: a queue, over what messages and topology say. `is_forced`: also what was sent back `MAX_REDRIVES` times.
    """

    actor: str
    limit: int | None = None
    to: str | None = None
    keeps_attempts: bool = False
    keeps_ttl: bool = False
    is_forced: bool = False
    rate_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stayed:
    """A message that is still where it was, and why."""

    position: int
    message_id: str | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBack:
    """What a redrive in place did. `moved`: in their targets and gone from the queue, `targets` by queue; `found`: of
    them, those that a killed run had sent already. `error`: why it stopped early; run again, it goes on as `batch`.
    """

    queue: str
    batch: str
    requested: int
    moved: int
    found: int
    stayed: tuple[Stayed, ...]
    targets: Mapping[str, int]
    is_resumed: bool = False
    error: str | None = None


class LiveBroker(Protocol):
    """One broker, one virtual host."""

    @property
    def place(self) -> str:
        """Host, port and virtual host, without a login."""
        ...

    @property
    def vhost(self) -> str: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def there(self, want: Topology = EMPTY) -> There:
        """What is on the broker. `want`: what to ask for, one by one, where the broker cannot be asked for all."""
        ...

    async def apply(self, plan: Plan, *, said: Said) -> None:
        """Declare what the plan leaves to `apply`; stops at the first refusal. Killed in here: plan and apply again."""
        ...

    async def bind(self, bindings: Sequence[Binding]) -> None:
        """Make these bindings, those that are there once more: where nobody can list them."""
        ...

    async def migrate(self, migration: Migration, *, said: Callable[[MigrationStep], None]) -> None:
        """Carry one migration out. Stopped or killed in here: plan again and go on, nothing is lost."""
        ...

    async def standing(self, queue: str) -> Standing:
        """Raises `QueueNotFoundError`."""
        ...

    async def look(self, queue: str, *, limit: int, topology: Topology = EMPTY, is_forced: bool = False) -> Look:
        """The first messages; they stay where they are, in their order, with their counts.

        Raises `UnsupportedError` where a look would count towards a delivery limit, unless `is_forced`.
        """
        ...

    async def send_back(
        self, queue: str, what: SendBack, *, topology: Topology, on_count: Callable[[int], None]
    ) -> SentBack:
        """Send dead letters back to be processed: each is published, confirmed, and only then removed.

        Killed in here and run again: nothing is lost, and what was sent already is not sent twice.
        """
        ...
