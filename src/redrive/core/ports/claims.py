"""The claim store port: who handles a key, and transactions beside a claim."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from redrive.core.idempotency import ClaimRecord, ClaimRef, ClaimState, Verdict
from redrive.core.ports.broker import Outgoing, Published
from redrive.core.ports.ledger import Transaction
from redrive.core.units import Millis, UnixMs


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
