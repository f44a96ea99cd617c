"""The idempotency keys of letters that are erased: dead-lettered ones go, others are told.

The record of a dead-lettered key keeps nothing but the key: a copy of its message begins anew with or without it. What
was processed, or is being handled, stays until its time is over: without it a late copy would be handled a second time.

A record is given a time that is over, by the same step as a new send of its producer, and pruned. Killed in between: it
counts no more, and the upkeep of a worker prunes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from redrive.core.idempotency import ClaimRecord, ClaimState, is_expired
from redrive.core.letters.letter import Letter
from redrive.core.ports import ClaimStore, Clock, Registration
from redrive.core.units import UnixMs

LONG_OVER: Final[UnixMs] = 1
"""A time that is over on every clock: the store may go by its own."""
PRUNE_BATCH: Final = 1_000
MAX_PRUNES: Final = 1_000
AT_ONCE: Final = 50
Scope = tuple[str, str]
"""Queue and key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedClaims:
    """How many records went, or would go, and how many stay."""

    gone: int = 0
    kept: int = 0


def scopes_of(letters: Iterable[Letter]) -> set[Scope]:
    """The records these letters may have."""
    return {(letter.queue, letter.message.key) for letter in letters if letter.message.key is not None}


async def look(claims: ClaimStore, scopes: Iterable[Scope], *, now: UnixMs) -> ErasedClaims:
    """What `forget` would do."""
    found = await _stored(claims, scopes, now=now)
    gone = sum(record.state is ClaimState.DEAD_LETTERED for record in found)
    return ErasedClaims(gone=gone, kept=len(found) - gone)


class ClaimEraser:
    """Ends records while letters are erased, and tells in the end what became of them."""

    def __init__(self, claims: ClaimStore, *, clock: Clock) -> None:
        self._claims = claims
        self._clock = clock
        self._told: set[Scope] = set()
        self._gone = 0

    async def forget(self, scopes: Iterable[Scope]) -> None:
        """End the dead-lettered ones of these."""
        fresh = set(scopes) - self._told
        self._told |= fresh
        found = await _stored(self._claims, fresh, now=self._clock.now())
        dead = [record for record in found if record.state is ClaimState.DEAD_LETTERED]
        if dead:
            over = [Registration(queue=record.queue, key=record.key, expires_at=LONG_OVER) for record in dead]
            await self._claims.register(over)
            self._gone += len(dead)

    async def end(self) -> ErasedClaims:
        """Remove what was ended, and all else whose time is over."""
        for _ in range(MAX_PRUNES if self._gone else 0):
            if await self._claims.prune(limit=PRUNE_BATCH) < PRUNE_BATCH:
                break
        left = await look(self._claims, self._told, now=self._clock.now())
        return ErasedClaims(gone=self._gone, kept=left.gone + left.kept)


async def _stored(claims: ClaimStore, scopes: Iterable[Scope], *, now: UnixMs) -> list[ClaimRecord]:
    wanted, found = sorted(set(scopes)), list[ClaimRecord | None]()
    for start in range(0, len(wanted), AT_ONCE):
        found += await asyncio.gather(*(claims.get(queue, key) for queue, key in wanted[start : start + AT_ONCE]))
    return [record for record in found if record is not None and not is_expired(record, now)]
