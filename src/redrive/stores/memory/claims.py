"""Claims in memory. `renew` runs in the lease thread, hence the lock."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from redrive.core.idempotency import (
    TRANSITIONS,
    Acquired,
    ClaimEvent,
    ClaimRecord,
    ClaimRef,
    ClaimState,
    Verdict,
    is_expired,
    judge,
    lease_end,
)
from redrive.core.ports import ClaimEnd, Clock, Published, Registration
from redrive.core.units import Millis

_END_EVENTS: Final[dict[ClaimState, tuple[ClaimEvent, ...]]] = {
    ClaimState.PROCESSED: (ClaimEvent.SUCCEED,),
    ClaimState.FAILED: (ClaimEvent.FAIL,),
    ClaimState.RECEIVED: (ClaimEvent.RELEASE,),
    ClaimState.DEAD_LETTERED: (ClaimEvent.FAIL, ClaimEvent.DEAD_LETTER),
}
"""What ending a claim in a state means in events."""


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

    async def claim(self, batch: Sequence[tuple[str, str]], *, lease_ms: Millis, owner: str) -> list[Verdict]:
        """See `ClaimStore.claim`."""
        with self._lock:
            return [self._claim_one(queue, key, lease_ms=lease_ms, owner=owner) for queue, key in batch]

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
        now = self._clock.now()
        record = self._records.get((given.queue, given.key))
        is_known = record is not None and not is_expired(record, now)
        if record is not None and is_known and record.state is not ClaimState.DEAD_LETTERED:
            differs = None not in (given.digest, record.digest) and given.digest != record.digest
            return Published(duplicate=True, conflict=differs)
        self._records[given.queue, given.key] = ClaimRecord(
            queue=given.queue,
            key=given.key,
            state=ClaimState.RECEIVED,
            cycle=record.cycle + 1 if record is not None and is_known else 0,
            token=0 if record is None else record.token,
            expires_at=given.expires_at,
            digest=given.digest,
            updated_at=now,
        )
        return Published()

    def _claim_one(self, queue: str, key: str, *, lease_ms: Millis, owner: str) -> Verdict:
        now = self._clock.now()
        record = self._records.get((queue, key))
        verdict = judge(record, queue=queue, key=key, now=now)
        if isinstance(verdict, Acquired):
            self._records[queue, key] = ClaimRecord(
                queue=queue,
                key=key,
                state=ClaimState.PROCESSING,
                attempts=verdict.attempts,
                cycle=verdict.cycle,
                token=verdict.ref.token,
                owner=owner,
                lease_until=lease_end(now, lease_ms),
                digest=None if record is None or is_expired(record, now) else record.digest,
                updated_at=now,
            )
        return verdict

    def _finish_one(self, end: ClaimEnd) -> bool:
        record = self._records.get((end.ref.queue, end.ref.key))
        if record is None or record.token != end.ref.token or not _may_end(record.state, end.state):
            return False
        attempts = record.attempts - 1 if end.state is ClaimState.RECEIVED else record.attempts
        # A release leaves a record that failed before as it was then: failed, and its attempts still count.
        state = ClaimState.FAILED if end.state is ClaimState.RECEIVED and attempts else end.state
        self._records[end.ref.queue, end.ref.key] = replace(
            record,
            state=state,
            attempts=attempts,
            owner=None,
            lease_until=None,
            expires_at=end.expires_at,
            updated_at=self._clock.now(),
        )
        return True

    def _renew_one(self, ref: ClaimRef, *, lease_ms: Millis) -> bool:
        record = self._records.get((ref.queue, ref.key))
        if record is None or record.token != ref.token or record.state is not ClaimState.PROCESSING:
            return False
        until = lease_end(self._clock.now(), lease_ms)
        self._records[ref.queue, ref.key] = replace(record, lease_until=until)
        return True


def _may_end(state: ClaimState, end: ClaimState) -> bool:
    """Whether the transition table leads from `state` to `end`; a dead letter passes through FAILED."""
    events = _END_EVENTS[end]
    if state is ClaimState.FAILED and end is ClaimState.DEAD_LETTERED:
        events = events[1:]
    for event in events:
        following = TRANSITIONS[state].get(event)
        if following is None:
            return False
        state = following
    return True
