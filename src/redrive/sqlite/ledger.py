"""SqliteLedger: every call of the ledger is one transaction on the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Final

from redrive.core import settlement
from redrive.core.idempotency import Acquired, ClaimState, Verdict
from redrive.core.ports import (
    End,
    Features,
    Forward,
    LedgerTransaction,
    Outgoing,
    Published,
    Registration,
    Taken,
)
from redrive.core.redrive import Job
from redrive.core.settlement import Reason, Settlement
from redrive.core.units import Millis
from redrive.errors import InvalidMessageError, UnsupportedError
from redrive.sqlite import claims, jobs, letters, queue
from redrive.sqlite.file import SqliteFile
from redrive.sqlite.receive import receive
from redrive.sqlite.transaction import SqliteTransaction
from redrive.sqlite.writer import Tx

FEATURES: Final = Features(
    name="sqlite",
    durable=True,
    leases=True,
    priorities=True,
    exact_delays=True,
    counts_starts=True,
    atomic=True,
    transactions=True,
    max_body_bytes=queue.MAX_BODY_BYTES,
    fair=True,
    shared_rates=True,
)

ABANDONED: Final = Reason(code="RECEIVER_GONE", text="whoever asked for it did not wait for the answer")


class SqliteLedger:
    """Queue, claims, letters and jobs of one file, moved together."""

    def __init__(self, file: SqliteFile) -> None:
        self.file = file

    @property
    def features(self) -> Features:
        """What the embedded broker can do."""
        return FEATURES

    async def open(self) -> None:
        """See `SqliteFile.open`."""
        await self.file.open()

    async def close(self) -> None:
        """See `SqliteFile.close`."""
        await self.file.close()

    async def publish(self, batch: Sequence[Outgoing]) -> list[Published]:
        """See `Ledger.publish`."""
        check_outgoing(batch)
        return await self.file.write_step(publish_once, batch)

    async def take(
        self, queue: str, *, limit: int, lease_ms: Millis, worker: str, wait_ms: Millis, claims: bool
    ) -> list[Taken]:
        """See `Ledger.take`."""
        if limit <= 0:
            return []
        step: Callable[[Tx], _Rows | None]
        step = lambda tx: _take(tx, queue, limit=limit, lease_ms=lease_ms, worker=worker, with_claims=claims)  # noqa: E731
        return await receive(self.file, queue, step=step, values=_taken, hand_back=_hand_back, wait_ms=wait_ms)

    async def commit(self, batch: Sequence[End]) -> list[bool]:
        """See `Ledger.commit`."""
        return await self.file.write_step(commit, batch)

    def renew(self, batch: Sequence[Taken], *, lease_ms: Millis) -> list[bool]:
        """See `Ledger.renew`."""
        if not batch:
            return []
        return self.file.write_blocking(lambda tx: _renew(tx, batch, lease_ms=lease_ms), is_synced=False)

    def transaction(self, end: End) -> LedgerTransaction:
        """See `Ledger.transaction` and sqlite/transaction.py."""
        return SqliteTransaction(
            self.file,
            f'Message "{end.taken.received.message.id}"',
            settle=lambda tx: commit(tx, [end])[0],
            publish=lambda tx, outgoing: queue.publish(tx, [outgoing]),
        )

    async def forward(self, job: Job, batch: Sequence[Forward]) -> list[str | None]:
        """See `Ledger.forward`."""
        return await self.file.write(lambda tx: jobs.forward(tx, job, batch)) if batch else []


def check_outgoing(batch: Sequence[Outgoing]) -> None:
    """Raises `InvalidMessageError` where a body is over the limit, `UnsupportedError` where an exchange is named;
    nothing of the batch is sent then.
    """
    for outgoing in batch:
        if outgoing.exchange:
            raise UnsupportedError(
                f'The embedded broker has no exchange "{outgoing.exchange}". Nothing of its batch was published.',
                hint="Publish to the queue itself.",
            )
        size = len(outgoing.message.body)
        if size > queue.MAX_BODY_BYTES:
            raise InvalidMessageError(
                f'Message "{outgoing.message.id}" for queue "{outgoing.queue}" has {size} bytes; the limit is '
                f"{queue.MAX_BODY_BYTES}. Nothing of its batch was published.",
                hint="Store the body elsewhere and send a reference to it.",
            )


def publish_once(tx: Tx, batch: Sequence[Outgoing]) -> list[Published]:
    """Insert messages; those with `once` only where their key is free, registering it."""
    answers = [Published()] * len(batch)
    once = [(place, out) for place, out in enumerate(batch) if out.once and out.message.key is not None]
    if once:
        registrations = [Registration(queue=out.queue, key=out.message.key or "", digest=out.digest) for _, out in once]
        for (place, _), answer in zip(once, claims.register(tx, registrations), strict=True):
            answers[place] = answer
    fresh = [out for out, answer in zip(batch, answers, strict=True) if not answer.duplicate]
    if fresh:
        queue.publish(tx, fresh)
    return answers


_Rows = tuple[queue.Leased, "list[Verdict | None] | None"]
"""What was leased, and the verdict on each key; None where claims play no part."""


def _take(tx: Tx, name: str, *, limit: int, lease_ms: Millis, worker: str, with_claims: bool) -> _Rows | None:
    head = queue.look(tx, name, limit=limit, with_claims=with_claims)
    verdicts, held = None, None
    if with_claims and head.rows:
        verdicts, held = claims.claim_head(tx, head, lease_ms=lease_ms, worker=worker)
    leased = queue.lease(tx, head, lease_ms=lease_ms, worker=worker, held=held)
    return None if leased is None else (leased, verdicts)


def _taken(rows: _Rows) -> list[Taken]:
    leased, verdicts = rows
    received = leased.received()
    told = repeat(None) if verdicts is None else verdicts
    return [Taken(received=each, verdict=verdict) for each, verdict in zip(received, told, strict=False)]


def _hand_back(tx: Tx, taken: Sequence[Taken]) -> None:
    end = settlement.Requeue(due_at=tx.now, reason=ABANDONED)
    commit(tx, [End(taken=each, settlement=end) for each in taken])


def commit(tx: Tx, batch: Sequence[End]) -> list[bool]:
    """Check every end's fences, then make the current ones true: claims, letters, messages."""
    leases = queue.in_hand(tx, [end.taken.received.lease.ref for end in batch])
    current: list[tuple[End, queue.InHand]] = []
    answers = []
    for end in batch:
        row = leases.get(end.taken.received.lease.ref)
        is_current = row is not None and _is_current(end.taken, row)
        if row is not None and is_current:
            del leases[row.seq]
            current.append((end, row))
        answers.append(is_current)
    _end_claims(tx, current)
    letters.put_dead(tx, [(end.letter, row.seq) for end, row in current if end.letter is not None])
    queue.move(tx, [(row, end.taken.received.lease.queue, end.settlement, end.entry) for end, row in current])
    closed = [
        end.closes_letter
        for end, _ in current
        if end.closes_letter is not None and isinstance(end.settlement, settlement.Ack)
    ]
    letters.close_redriven(tx, closed)
    return answers


def _is_current(taken: Taken, row: queue.InHand) -> bool:
    if row.token != taken.received.lease.token:
        return False
    verdict = taken.verdict
    return not isinstance(verdict, Acquired) or row.claim_token == verdict.ref.token


_CLAIM_STATE: Final[Mapping[type[Settlement], ClaimState]] = {
    settlement.Ack: ClaimState.PROCESSED,
    settlement.Retry: ClaimState.FAILED,
    settlement.Requeue: ClaimState.RECEIVED,
    settlement.DeadLetter: ClaimState.DEAD_LETTERED,
}
_IS_OVER: Final = frozenset({ClaimState.PROCESSED, ClaimState.DEAD_LETTERED})


def _end_claims(tx: Tx, current: Sequence[tuple[End, queue.InHand]]) -> None:
    ends = []
    for end, row in current:
        if isinstance(end.taken.verdict, Acquired):
            assert row.claim_id is not None
            state = _CLAIM_STATE[type(end.settlement)]
            ends.append((row.claim_id, state, end.claim_expires_at if state in _IS_OVER else None))
    claims.end(tx, ends)


def _renew(tx: Tx, batch: Sequence[Taken], *, lease_ms: Millis) -> list[bool]:
    leases = queue.in_hand(tx, (taken.received.lease.ref for taken in batch))
    rows = [leases.get(taken.received.lease.ref) for taken in batch]
    held = [row is not None and _is_current(taken, row) for taken, row in zip(batch, rows, strict=True)]
    current = [row for row, is_held in zip(rows, held, strict=True) if is_held and row is not None]
    queue.extend(tx, [row.seq for row in current], lease_ms=lease_ms)
    claims.extend(tx, [row.claim_id for row in current if row.claim_id is not None], lease_ms=lease_ms)
    return held
