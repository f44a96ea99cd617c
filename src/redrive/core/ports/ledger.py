"""The ledger port: whole decisions made durable.."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from redrive.core.idempotency import ClaimRef, Verdict
from redrive.core.letters.letter import Attempt, Letter
from redrive.core.ports.broker import Features, Outgoing, Published, Received
from redrive.core.redrive import Item, Job
from redrive.core.settlement import Settlement
from redrive.core.units import Millis, UnixMs
from redrive.core.values import value


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
