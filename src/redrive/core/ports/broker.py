"""The broker port, and what every port needs: the clock, and what an adapter can do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from redrive.core.letters.letter import Attempt
from redrive.core.message import Message
from redrive.core.policy.retry import Retry
from redrive.core.settlement import Settlement
from redrive.core.units import Millis, UnixMs
from redrive.core.values import value


class Clock(Protocol):
    """Time as an argument. `now` is wall time for due times and leases; `monotonic` measures durations."""

    def now(self) -> UnixMs: ...

    def monotonic_ms(self) -> float: ...

    async def sleep(self, delay_ms: float) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a broker can do. `delays`: any delay exactly, or only fixed tiers, or none. `transactions`: the ledger
    offers `transaction()`. `atomic`: a commit is one transaction (letter, claim and queue move together).
    `exchanges`: `Outgoing.exchange` may name one. `fair`: it takes turns between tenants in queues it is made with a
    `Fair` for. `reads_tenants`: it finds the tenant of other producers' messages by `Fair.tenant_field`.
    `shared_rates`: it counts the starts of all workers together against a `Rate` it is made with.
    """

    name: str
    durable: bool
    leases: bool
    priorities: bool
    exact_delays: bool
    counts_starts: bool
    atomic: bool
    transactions: bool
    max_body_bytes: int
    exchanges: bool = False
    fair: bool = False
    reads_tenants: bool = False
    shared_rates: bool = False


@value
class Outgoing:
    """One message to publish. `exchange` "": straight to the queue; else `queue` is the routing key, and a broker
    without exchanges raises `UnsupportedError`. `due_at` None or past: at once. `once`: publish only if its
    (queue, key) has no live record; a record in `dead_lettered` starts a new cycle. `digest` (sha-256 hex of the
    body) is kept with that record so that another body under the same key is seen as a conflict.
    """

    queue: str
    message: Message
    exchange: str = ""
    due_at: UnixMs | None = None
    once: bool = False
    digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The broker has the message durably, or (`duplicate`) already had its key and enqueued nothing; `conflict`:
    the key is known with another digest, nothing enqueued either.
    """

    duplicate: bool = False
    conflict: bool = False


@value
class Lease:
    """A delivery in hand. `ref` is the adapter's own handle. Stale once `token` is no longer the message's."""

    queue: str
    ref: Any
    token: int


@value
class Received:
    """One hand-over. `starts`: starts of this copy not handed back, this one included, or None where the broker
    does not count. `history`: what earlier starts left behind, oldest first; a start that never ended is in it as
    INTERRUPTED. `position`: the broker's own mark for this copy (see `letter_id`). `retry`: the producer's own rule,
    where the message carries one; for consumers that have none. `others`: how many of `starts` were made by workers
    that are not redrive's, and so stand in no claim.
    """

    message: Message
    lease: Lease
    lease_until: UnixMs | None
    starts: int | None
    position: str
    redelivered: bool = False
    history: tuple[Attempt, ...] = ()
    retry: Retry | None = None
    others: int = 0


@value
class Settle:
    """End one delivery. `entry` is the history entry of the attempt that just ended, kept with the message on a
    Retry (and on a Requeue, where it tells of an interruption). `lost` goes before it: the start before this one,
    which never ended, where the broker itself does not count starts and the claim store told. A
    `settlement.DeadLetter` removes the message: its letter is already durable.
    """

    lease: Lease
    settlement: Settlement
    entry: Attempt | None = None
    lost: Attempt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """One queue: `ready` can be handed out now, `scheduled` waits for its due time, `leased` is in hand,
    `oldest_ready_at` is when the oldest ready one became so.
    """

    queue: str
    ready: int
    scheduled: int
    leased: int
    oldest_ready_at: UnixMs | None = None


class Broker(Protocol):
    """Moves messages. Knows nothing of keys, letters or policies."""

    @property
    def features(self) -> Features: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def publish(self, batch: Sequence[Outgoing]) -> list[Published]:
        """Returns when every message is durable. `once` and `digest` are the ledger's business, ignored here.
        Within one queue (of a fair one: within one tenant), priority and due time order the hand-over; else FIFO.
        """
        ...

    async def receive(
        self, queue: str, *, limit: int, lease_ms: Millis, worker: str, wait_ms: Millis
    ) -> list[Received]:
        """At most `limit` due messages, leased; [] after `wait_ms` without any. Wakes within 5 ms of a publish in
        this process. A message whose lease ended counts a lost start and is handed out again. What a shared rate or a
        tenant's own limit does not allow stays in the queue.
        """
        ...

    async def settle(self, batch: Sequence[Settle]) -> list[bool]:
        """True: settled now. False: the lease was stale, nothing changed. A Requeue gives its start back."""
        ...

    def renew(self, batch: Sequence[Lease], *, lease_ms: Millis) -> list[bool]:
        """Leases end `lease_ms` from now; False for those already lost."""
        ...

    async def depths(self, queues: Collection[str] = ()) -> list[Depth]:
        """All queues, by name. A broker that cannot list them knows those it has to do with, and of `queues` those that
        exist.
        """
        ...

    async def peek(self, queue: str, *, limit: int) -> list[Message]:
        """Waiting messages in hand-over order; takes nothing, changes no count and no order."""
        ...

    async def discard(self, queue: str, is_gone: Callable[[Message], bool], *, limit: int) -> int:
        """Remove, of the first `limit` waiting messages, those of which `is_gone` says so; how many went. The rest
        keep their counts, and their place and order where the broker allows. `is_gone` may run in another thread and
        must be pure. Killed in here: some of them went.
        """
        ...

    async def gone(self, workers: Collection[str]) -> set[str]:
        """Those of these workers (names given to `receive`) of whom the broker knows that they are over: what they
        had in hand is being handed out again. Empty where it does not know.
        """
        ...
