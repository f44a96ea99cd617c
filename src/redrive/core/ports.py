"""The ports: what the runtime asks of brokers, stores and the clock. These docstrings are the contract.

Rules for every port:
- Batches in, one answer per element out, in the same order. An empty batch returns [] without I/O.
- A failure of the whole call raises a `RedriveError` and means: nothing of this batch is known to have happened;
  repeating it is safe (ids make it idempotent).
- What moves a delivery names a lease or claim with its fencing token; a stale token changes nothing and is
  reported as such, never raised.
- `renew` is a plain blocking function and thread-safe: the lease thread calls it while the loop may be blocked.
- What an adapter cannot do is a field of its `Features`, never a NotImplementedError.
- `open` may be called once; `close` twice. Methods may be called from one event loop at a time.

A `Ledger` makes whole decisions durable: it joins broker, claims, letters and jobs. An adapter whose parts share
one transactional store (the embedded file) brings its own, where each call is one transaction. For all others
`redrive.runtime.ledger.OrderedLedger` carries a decision out step by step, in an order in which a crash leaves a
duplicate, never a hole. The pipeline knows only the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from redrive.core.idempotency import ClaimRecord, ClaimRef, ClaimState, Verdict
from redrive.core.letters.ages import Ages
from redrive.core.letters.letter import Attempt, Letter, ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.message import Message
from redrive.core.policy.retry import Retry
from redrive.core.redrive import Item, Job
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


# ---------------------------------------------------------------------------------------------------- broker


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


# ---------------------------------------------------------------------------------------------------- claims


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimEnd:
    """How a claim ends: PROCESSED, FAILED, DEAD_LETTERED, or RECEIVED for a release that costs no attempt.
    `expires_at`: when the record may go (None: keep).
    """

    ref: ClaimRef
    state: ClaimState
    expires_at: UnixMs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A key accepted at a gateway before any consumer saw it (`received`), with the digest of its body."""

    queue: str
    key: str
    digest: str | None = None
    expires_at: UnixMs | None = None


class ClaimStore(Protocol):
    """Who handles (queue, key). Decides as `redrive.core.idempotency.judge`, atomically."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def register(self, batch: Sequence[Registration]) -> list[Published]:
        """Insert `received`, or say duplicate / conflict. `dead_lettered` is reopened: a new cycle, not a duplicate."""
        ...

    async def claim(
        self, batch: Sequence[tuple[str, str]], *, lease_ms: Millis, owner: str, gone: Collection[str] = ()
    ) -> list[Verdict]:
        """One round trip for the batch of (queue, key). Of several equal keys in one batch the first wins. Leases of
        the owners in `gone` count as ended: a lost start each.
        """
        ...

    async def finish(self, batch: Sequence[ClaimEnd]) -> list[bool]:
        """True where the token was current and the record moved (DEAD_LETTERED passes through FAILED)."""
        ...

    def renew(self, batch: Sequence[ClaimRef], *, lease_ms: Millis) -> list[bool]: ...

    async def get(self, queue: str, key: str) -> ClaimRecord | None:
        """The record as stored, expired or not."""
        ...

    async def prune(self, *, limit: int) -> int:
        """Delete at most `limit` expired records; how many went."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsent:
    """A message published inside a transaction that has committed, kept until the broker has it. `ref` is the store's
    own handle.
    """

    ref: Any
    outgoing: Outgoing


class StoreTransaction(AbstractContextManager["Transaction"], AbstractAsyncContextManager["Transaction"], Protocol):
    """As `LedgerTransaction`, of a store that stands beside a broker: the commit ends the claim and keeps what is to
    be published.
    """

    @property
    def is_committed(self) -> bool:
        """Whether the commit is done, however leaving it ended."""
        ...

    @property
    def unsent(self) -> Sequence[Unsent]:
        """What was published inside, once it has committed."""
        ...


@runtime_checkable
class TransactionalClaimStore(ClaimStore, Protocol):
    """A claim store whose handlers may write beside the claim, in one transaction."""

    def transaction(self, end: ClaimEnd) -> StoreTransaction:
        """Leaving it normally checks the claim's token, ends the claim and commits; raises `LeaseLostError` after a
        rollback where the claim has passed on.
        """
        ...

    async def unsent(self, *, limit: int) -> list[Unsent]:
        """What transactions have left unsent for longer than a living process takes to send it, oldest first. Whoever
        asks holds it for a while: nobody else is given it meanwhile.
        """
        ...

    async def sent(self, batch: Sequence[Unsent]) -> None:
        """Forget what the broker has confirmed."""
        ...


# ---------------------------------------------------------------------------------------------------- letters


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterSummary:
    """A letter without its body and history: what a list shows (a page of 50 stays far below 100 kB)."""

    id: str
    queue: str
    dead_letter_queue: str
    message_id: str
    key: str | None
    tenant: str | None
    message_type: str | None
    reason_code: str
    reason_text: str
    error_type: str | None
    error_code: str | None
    attempt_count: int
    fingerprint: str
    group_title: str
    state: ReviewState
    first_failed_at: UnixMs
    dead_lettered_at: UnixMs
    expires_at: UnixMs | None
    redrive_count: int
    previous: str | None
    outstanding_job: str | None
    body_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Letters oldest first; `cursor` gets the next page, None at the end. A walk sees every letter that existed
    at its start exactly once, whatever arrives meanwhile.
    """

    letters: tuple[LetterSummary, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewChange:
    """Move one letter; recorded in its audit trail with who, when and why. Legal moves: core/letters/review.py."""

    letter_id: str
    to: ReviewState
    actor: str
    at: UnixMs
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One change of one letter."""

    letter_id: str
    at: UnixMs
    actor: str
    action: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterStats:
    """Counts over a selection, largest first within each mapping; `oldest_at` is the oldest open letter's death.
    `ages`: how old the selected letters are, where that was asked for.
    """

    total: int
    by_state: dict[str, int]
    by_queue: dict[str, int]
    by_reason: dict[str, int]
    by_group: dict[str, int]
    by_tenant: dict[str, int]
    oldest_at: UnixMs | None
    ages: Ages | None = None


class LetterStore(Protocol):
    """Keeps dead letters."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def put(self, batch: Sequence[Letter]) -> None:
        """Idempotent by id: a letter already there stays as it is (its review state is a person's)."""
        ...

    async def get(self, letter_id: str) -> tuple[Letter, tuple[AuditEntry, ...]] | None: ...

    async def find(self, selection: Selection, *, limit: int, cursor: str | None = None) -> Page:
        """Raises `ConfigurationError` for a cursor that no page had."""
        ...

    async def stats(self, selection: Selection, *, top: int = 20, ages_at: UnixMs | None = None) -> LetterStats:
        """`ages_at`: also the ages, at that time."""
        ...

    async def review(self, batch: Sequence[ReviewChange]) -> list[str | None]:
        """None where the move was made and audited; else the reason it was refused (illegal move, no letter)."""
        ...

    async def prune(self, *, now: UnixMs, limit: int, selection: Selection | None = None) -> int:
        """Delete at most `limit` expired letters that are `closed` or `replayed`; open ones never go this way. With a
        `selection`, a person's wish: those it takes, in any state, expired or not, but none a redrive job holds.
        """
        ...


# ---------------------------------------------------------------------------------------------------- jobs


Jobs: TypeAlias = list[Job]
Items: TypeAlias = list[Item]
"""Named here because `JobStore` has a method called `list`, which hides the type inside it."""


class JobStore(Protocol):
    """Keeps redrive jobs and their items."""

    async def create(self, job: Job) -> Job:
        """Store it; with a known `request_key`, return the job that key made before instead."""
        ...

    async def get(self, job_id: str) -> Job | None: ...

    async def list(self, *, limit: int = 50) -> Jobs:
        """Newest first."""
        ...

    async def acquire(self, job_id: str | None, *, owner: str, lease_ms: Millis) -> Job | None:
        """Take over this job, or (None) the oldest that is staged or running and nobody holds. The returned job
        carries the new token and is `running`; None where there is none, it is done, or another holds it. A job
        named by id may be aborted or failed: that is a resume, and its pending items are held again.
        """
        ...

    async def stage(self, job: Job, *, limit: int) -> Job:
        """Copy the next at most `limit` selected letters into items, in order of death, marking each with
        `outstanding_job`. A letter that another job holds, or that `refusal` refuses, becomes a SKIPPED item with
        the reason. Sets `is_staged` at the end. Letters that died after the job was created are not selected.
        """
        ...

    async def items(self, job_id: str, *, state: str | None, limit: int, after: int = -1) -> Items:
        """By position, above `after`."""
        ...

    async def record(self, job: Job, batch: Sequence[Item]) -> bool:
        """Write state and reason of these items, and the counts with them, if `job.token` is current (else False,
        nothing written). Only a PENDING item moves; it then frees its letter: `outstanding_job` goes. What a ledger
        calls once the copies are durable; a ledger that is one transaction does the same within it.
        """
        ...

    async def save(self, job: Job, *, lease_ms: Millis) -> bool:
        """Write state, error and a renewed lease if `job.token` is current (else False). A job that ended frees
        its letters: `outstanding_job` goes from those not sent; and its runner: a job ended by somebody else (a
        person's abort, saved with the token `get` shows) makes the runner's next `save` False.
        """
        ...


# ---------------------------------------------------------------------------------------------------- ledger


@value
class Taken:
    """A received delivery with the verdict on its key (None: idempotency is off, or the message has no key).
    `counted`: the record that counts the starts of a message without a verdict, where the broker does not.
    """

    received: Received
    verdict: Verdict | None
    counted: ClaimRef | None = None


@value
class End:
    """One delivery's decided end. `letter` with `settlement.DeadLetter`, always; `entry` as in `Settle`.
    `claim_expires_at`: when a terminal record may go. `closes_letter`: the letter a redriven copy came from:
    closed on Ack, in the same commit.
    """

    taken: Taken
    settlement: Settlement
    entry: Attempt | None = None
    letter: Letter | None = None
    claim_expires_at: UnixMs | None = None
    closes_letter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """One redrive item to carry out: send `outgoing`, move the letter to `replayed` (recording `reviewed` by the
    same actor first if it was `pending`), reopen the claim of (outgoing.queue, key), mark the item SENT.
    """

    item: Item
    outgoing: Outgoing
    actor: str
    at: UnixMs
    keep_attempts: bool = False


class Transaction(Protocol):
    """Handler effects and the message's end, together or not at all."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Any:
        """Run one statement in the store's SQL; returns a cursor."""
        ...

    def publish(self, outgoing: Outgoing) -> None:
        """Send with the commit, or not at all."""
        ...


class LedgerTransaction(AbstractContextManager[Transaction], AbstractAsyncContextManager[Transaction], Protocol):
    """`with` in a thread, `async with` on the loop. Leaving it normally checks the fence, settles the delivery as
    processed and commits; raises `LeaseLostError` after a rollback where the lease has passed on. An exception
    inside rolls back and passes through.
    """


class Ledger(Protocol):
    """Makes decisions durable."""

    @property
    def features(self) -> Features: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def publish(self, batch: Sequence[Outgoing]) -> list[Published]: ...

    async def take(
        self, queue: str, *, limit: int, lease_ms: Millis, worker: str, wait_ms: Millis, claims: bool
    ) -> list[Taken]:
        """Receive and claim in one go. `claims` False: verdicts are None. Cancelled, it keeps no message in hand and
        costs none an attempt, as `Broker.receive`.
        """
        ...

    async def commit(self, batch: Sequence[End]) -> list[bool]:
        """Make ends true. False: the lease or claim was stale; nothing of that element happened. Killed in here:
        before the commit the message is still leased and comes back; after it, all of the end is true.
        """
        ...

    def renew(self, batch: Sequence[Taken], *, lease_ms: Millis) -> list[bool]:
        """Lease and claim together."""
        ...

    def transaction(self, end: End) -> LedgerTransaction:
        """For an End with `settlement.ACK`. Raises `UnsupportedError` where `features.transactions` is False."""
        ...

    async def forward(self, job: Job, batch: Sequence[Forward]) -> list[str | None]:
        """Carry out redrive items. None: sent (now, or it already was); else why not: the item is then SKIPPED.
        What `refusal` says of the letter now counts, not what it said when the item was staged (a resume).
        Raises `QueueNotFoundError` where the target is gone. A stale `job.token` raises `LeaseLostError`.
        """
        ...
