"""Idempotency: one record per (consumer queue, key), its states as a table, and the arithmetic of a claim.

The record is authoritative for "has this key been handled here". A claim is the right to run the handler: it
carries a lease (dies by itself) and a fencing token (grows with every claim, so a late owner cannot write).

    received ─claim→ processing ─succeed→ processed            (terminal until it expires)
                        │ ├─fail→ failed ─claim→ processing    (the retry)
                        │ └─release→ received | failed         (clean hand-back: costs no attempt)
                        └─claim (lease over)→ processing       (a lost start: costs an attempt)
    failed ─dead_letter→ dead_lettered ─reopen→ received       (a redrive or a new send; attempts start again)

Expired, permanent and worker-lost messages pass through `failed` too.
Every store adapter makes the same decision as `judge`, inside one atomic statement; the contract suite holds
them to it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeAlias, assert_never

from redrive.core import settlement
from redrive.core.settlement import Settlement
from redrive.core.units import Millis, UnixMs
from redrive.core.values import value


class ClaimState(StrEnum):
    """Where a key stands for one consumer queue."""

    RECEIVED = "received"
    PROCESSING = "processing"
    PROCESSED = "processed"
    FAILED = "failed"
    DEAD_LETTERED = "dead_lettered"


class ClaimEvent(StrEnum):
    """What can happen to a record."""

    CLAIM = "claim"
    SUCCEED = "succeed"
    FAIL = "fail"
    RELEASE = "release"
    DEAD_LETTER = "dead_letter"
    REOPEN = "reopen"


_S, _E = ClaimState, ClaimEvent
TRANSITIONS: Final[dict[ClaimState, dict[ClaimEvent, ClaimState]]] = {
    _S.RECEIVED: {_E.CLAIM: _S.PROCESSING, _E.REOPEN: _S.RECEIVED},
    _S.PROCESSING: {
        _E.CLAIM: _S.PROCESSING,
        _E.SUCCEED: _S.PROCESSED,
        _E.FAIL: _S.FAILED,
        _E.RELEASE: _S.RECEIVED,
    },
    _S.PROCESSED: {},
    _S.FAILED: {_E.CLAIM: _S.PROCESSING, _E.DEAD_LETTER: _S.DEAD_LETTERED},
    _S.DEAD_LETTERED: {_E.REOPEN: _S.RECEIVED},
}
"""{state: {event: next state}}; what is not here is refused. CLAIM out of PROCESSING needs an ended lease.
RELEASE gives back the attempt it took; a record with attempts left over returns to FAILED, else to RECEIVED.
An expired record is as good as none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostStart:
    """A start that never ended: its worker died or lost its lease."""

    worker: str
    at: UnixMs


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRecord:
    """One stored record. `attempts`: starts in this cycle that were not handed back (failed, lost, or running).
    `cycle`: 0, +1 for every reopen. `digest`: sha-256 hex of the body a gateway accepted under this key, or None.
    `lost`: the last start that never ended, until one after it comes to an end.
    """

    queue: str
    key: str
    state: ClaimState
    attempts: int = 0
    cycle: int = 0
    token: int = 0
    owner: str | None = None
    lease_until: UnixMs | None = None
    expires_at: UnixMs | None = None
    digest: str | None = None
    updated_at: UnixMs = 0
    lost: LostStart | None = None


@value
class ClaimRef:
    """A claim in hand: settles and renews only while `token` is the record's."""

    queue: str
    key: str
    token: int


@value
class Acquired:
    """Run the handler. `attempts` counts this start; `cycle` and `lost` as in the record."""

    ref: ClaimRef
    attempts: int
    cycle: int
    lost: LostStart | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InProgress:
    """Another delivery of this key is being handled by `owner`; its lease ends at `lease_until`. Costs no attempt."""

    lease_until: UnixMs
    owner: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """This key was processed here; acknowledge without running."""


Verdict: TypeAlias = Acquired | InProgress | Duplicate


def judge(record: ClaimRecord | None, *, queue: str, key: str, now: UnixMs, gone: Collection[str] = ()) -> Verdict:
    """What a delivery that wants to claim (queue, key) at `now` is told. The store makes an Acquired true. The lease
    of an owner in `gone` is over.
    """
    if record is None or is_expired(record, now):
        # An expired record keeps its token growing: its last owner may still hold the old one.
        token = 1 if record is None else record.token + 1
        return Acquired(ref=ClaimRef(queue=queue, key=key, token=token), attempts=1, cycle=0)
    if record.state is ClaimState.PROCESSED:
        return Duplicate()
    if _is_held(record, now) and record.owner not in gone:
        return InProgress(lease_until=record.lease_until or now, owner=record.owner)
    ref = ClaimRef(queue=queue, key=key, token=record.token + 1)
    if record.state is ClaimState.DEAD_LETTERED:
        return Acquired(ref=ref, attempts=1, cycle=record.cycle + 1)
    lost = record.lost
    if record.state is ClaimState.PROCESSING:
        lost = LostStart(worker=record.owner or "", at=record.updated_at)
    return Acquired(ref=ref, attempts=record.attempts + 1, cycle=record.cycle, lost=lost)


def _is_held(record: ClaimRecord, now: UnixMs) -> bool:
    return record.state is ClaimState.PROCESSING and record.lease_until is not None and record.lease_until > now


def claimed(
    record: ClaimRecord | None, verdict: Acquired, *, owner: str, lease_until: UnixMs, now: UnixMs
) -> ClaimRecord:
    """The record once the store has made `verdict` true. The digest a gateway registered stays with a live record."""
    digest = None if record is None or is_expired(record, now) else record.digest
    return ClaimRecord(
        queue=verdict.ref.queue,
        key=verdict.ref.key,
        state=ClaimState.PROCESSING,
        attempts=verdict.attempts,
        cycle=verdict.cycle,
        token=verdict.ref.token,
        owner=owner,
        lease_until=lease_until,
        digest=digest,
        updated_at=now,
        lost=verdict.lost,
    )


def state_at(end: Settlement) -> ClaimState:
    """The state in which a claim ends whose delivery ends so."""
    match end:
        case settlement.Ack():
            return ClaimState.PROCESSED
        case settlement.Retry():
            return ClaimState.FAILED
        case settlement.Requeue():
            return ClaimState.RECEIVED
        case settlement.DeadLetter():
            return ClaimState.DEAD_LETTERED
        case _ as never:
            assert_never(never)


_END_EVENTS: Final[dict[ClaimState, tuple[ClaimEvent, ...]]] = {
    ClaimState.PROCESSED: (ClaimEvent.SUCCEED,),
    ClaimState.FAILED: (ClaimEvent.FAIL,),
    ClaimState.RECEIVED: (ClaimEvent.RELEASE,),
    ClaimState.DEAD_LETTERED: (ClaimEvent.FAIL, ClaimEvent.DEAD_LETTER),
}
"""What ending a claim in a state is in events: a dead letter passes through FAILED."""


def ended(
    record: ClaimRecord | None, to: ClaimState, *, token: int, now: UnixMs, expires_at: UnixMs | None = None
) -> ClaimRecord | None:
    """The record after a claim ended in `to`; None where it may not: another token, or not a move of the table.

    A release (`to` RECEIVED) gives its start back, and leaves a record that failed before as FAILED.
    """
    if record is None or record.token != token:
        return None
    # A failed record whose retry is given up without another start is dead-lettered from where it is.
    events = _END_EVENTS[to][1:] if record.state is ClaimState.FAILED else _END_EVENTS[to]
    state: ClaimState | None = record.state if events else None
    for event in events:
        state = None if state is None else TRANSITIONS[state].get(event)
    if state is None:
        return None
    is_release = to is ClaimState.RECEIVED
    attempts = max(0, record.attempts - 1) if is_release else record.attempts
    return replace(
        record,
        state=ClaimState.FAILED if is_release and attempts else state,
        attempts=attempts,
        owner=None,
        lease_until=None,
        expires_at=expires_at,
        updated_at=now,
        # A start that was handed back told nothing of what killed the one before it.
        lost=record.lost if is_release else None,
    )


def registered(
    record: ClaimRecord | None,
    *,
    queue: str,
    key: str,
    now: UnixMs,
    digest: str | None = None,
    expires_at: UnixMs | None = None,
) -> ClaimRecord | None:
    """The record once a gateway accepted this key; None where the key is known: a duplicate.

    A dead-lettered key is no duplicate: the producer sent it anew, and a new cycle begins.
    """
    if record is None or is_expired(record, now):
        token = 0 if record is None else record.token
        after: ClaimRecord | None = ClaimRecord(
            queue=queue, key=key, state=ClaimState.RECEIVED, token=token, updated_at=now
        )
    else:
        after = reopened(record, now=now) if record.state is ClaimState.DEAD_LETTERED else None
    return None if after is None else replace(after, digest=digest, expires_at=expires_at)


def reopened(record: ClaimRecord, *, now: UnixMs) -> ClaimRecord | None:
    """The record after a redrive or a new send; None where its state does not allow it.

    A new cycle, so the letter of the last one keeps its id, and attempts start again.
    """
    after = TRANSITIONS[record.state].get(ClaimEvent.REOPEN)
    if after is None:
        return None
    return replace(
        record,
        state=after,
        attempts=0,
        cycle=record.cycle + (record.state is ClaimState.DEAD_LETTERED),
        owner=None,
        lease_until=None,
        expires_at=None,
        updated_at=now,
        lost=None,
    )


def conflicts(known: str | None, given: str | None) -> bool:
    """Whether these two digests of one key show two bodies; without a digest nothing is known to differ."""
    return None not in (known, given) and known != given


def renewed(record: ClaimRecord | None, *, token: int, lease_until: UnixMs) -> ClaimRecord | None:
    """The record with a longer lease; None where the claim is no longer this token's."""
    if record is None or record.token != token or record.state is not ClaimState.PROCESSING:
        return None
    return replace(record, lease_until=lease_until)


def is_expired(record: ClaimRecord, now: UnixMs) -> bool:
    """Whether the record's time is over: from `expires_at` on it is as good as none, pruned or not."""
    return record.expires_at is not None and record.expires_at <= now


def lease_end(now: UnixMs, lease_ms: Millis) -> UnixMs:
    """The instant a lease taken or renewed at `now` ends."""
    return now + lease_ms
