"""Claims in memory. `renew` runs in the lease thread, hence the lock."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from redrive.core.idempotency import (
    Acquired,
    ClaimRecord,
    ClaimRef,
    Verdict,
    claimed,
    conflicts,
    ended,
    is_expired,
    judge,
    lease_end,
    registered,
    renewed,
)
from redrive.core.ports import ClaimEnd, Clock, Published, Registration
from redrive.core.units import Millis


class MemoryClaimStore:
    """A `ClaimStore` in memory. One event loop; `renew` from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._records: dict[tuple[str, str], ClaimRecord] = {}
        self._lock = threading.Lock()

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close; the records stay."""

    async def register(self, batch: Sequence[Registration]) -> list[Published]:
        """See `ClaimStore.register`."""
        with self._lock:
            return [self._register_one(registration) for registration in batch]

    async def claim(
        self, batch: Sequence[tuple[str, str]], *, lease_ms: Millis, owner: str, gone: Collection[str] = ()
    ) -> list[Verdict]:
        """See `ClaimStore.claim`."""
        taken: set[tuple[str, str]] = set()
        with self._lock:
            return [self._claim_one(scope, taken, lease_ms=lease_ms, owner=owner, gone=gone) for scope in batch]

    async def finish(self, batch: Sequence[ClaimEnd]) -> list[bool]:
        """See `ClaimStore.finish`."""
        with self._lock:
            return [self._finish_one(end) for end in batch]

    def renew(self, batch: Sequence[ClaimRef], *, lease_ms: Millis) -> list[bool]:
        """See `ClaimStore.renew`."""
        with self._lock:
            return [self._renew_one(ref, lease_ms=lease_ms) for ref in batch]

    async def get(self, queue: str, key: str) -> ClaimRecord | None:
        """See `ClaimStore.get`."""
        with self._lock:
            return self._records.get((queue, key))

    async def prune(self, *, limit: int) -> int:
        """See `ClaimStore.prune`."""
        now = self._clock.now()
        with self._lock:
            expired = [scope for scope, record in self._records.items() if is_expired(record, now)][:limit]
            for scope in expired:
                del self._records[scope]
        return len(expired)

    # What follows runs under the lock.

    def _register_one(self, given: Registration) -> Published:
        scope = (given.queue, given.key)
        record = self._records.get(scope)
        after = registered(
            record,
            queue=given.queue,
            key=given.key,
            now=self._clock.now(),
            digest=given.digest,
            expires_at=given.expires_at,
        )
        if self._keep(scope, after):
            return Published()
        return Published(duplicate=True, conflict=record is not None and conflicts(record.digest, given.digest))

    def _claim_one(
        self,
        scope: tuple[str, str],
        taken: set[tuple[str, str]],
        *,
        lease_ms: Millis,
        owner: str,
        gone: Collection[str],
    ) -> Verdict:
        """`taken`: what this batch itself has acquired, which is nobody's who is gone."""
        now = self._clock.now()
        record = self._records.get(scope)
        verdict = judge(record, queue=scope[0], key=scope[1], now=now, gone=() if scope in taken else gone)
        if isinstance(verdict, Acquired):
            until = lease_end(now, lease_ms)
            self._records[scope] = claimed(record, verdict, owner=owner, lease_until=until, now=now)
            taken.add(scope)
        return verdict

    def _finish_one(self, end: ClaimEnd) -> bool:
        scope = (end.ref.queue, end.ref.key)
        now = self._clock.now()
        after = ended(self._records.get(scope), end.state, token=end.ref.token, now=now, expires_at=end.expires_at)
        return self._keep(scope, after)

    def _renew_one(self, ref: ClaimRef, *, lease_ms: Millis) -> bool:
        scope = (ref.queue, ref.key)
        until = lease_end(self._clock.now(), lease_ms)
        return self._keep(scope, renewed(self._records.get(scope), token=ref.token, lease_until=until))

    def _keep(self, scope: tuple[str, str], after: ClaimRecord | None) -> bool:
        """Store what became of a record; False where the rules refused the change (None)."""
        if after is not None:
            self._records[scope] = after
        return after is not None
