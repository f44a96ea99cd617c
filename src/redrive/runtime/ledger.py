"""OrderedLedger: makes decisions durable where broker, claims, letters and jobs do not share one transaction.

Each call is a fixed order of steps, chosen so that a crash between any two leaves a duplicate, never a hole: whatever
copies a message is confirmed before the original is let go. Every step can be repeated. Killed right here, what is
true?

`publish` (with `once`): look at the record, publish, register.
- before the publish: nothing happened; the caller got no answer and repeats.
- after the publish, before the record: the message is queued and the key looks new; a repeat queues a second copy
  with the same key, whose effect the claim removes.

`take`: receive, claim.
- after the receive: the lease ends and the message comes again. The broker has counted a lost start; the claim
  record has not, and wins. A claim that fails without a kill hands the messages back, at no cost.

`commit` of a dead letter: check the fence, put the letter, publish it to the dead-letter queue, end the claim, settle.
- after the put: the message comes again. Its letter has the same id, so the one on record stays.
- after the publish: as before, with a second entry in the dead-letter queue under the same id.
- after the claim's end: the message comes again and, the key being dead-lettered, starts a new cycle: it is tried
  once more from the start and, failing again, leaves a second letter of the next cycle. That is the duplicate.

`commit` of any other end: end the claim, close the letter the copy came from, settle.
- after the claim's end: the message comes again. Processed: it is a duplicate and acknowledged unseen. Failed or
  released: it is tried again, at the end of its lease instead of its due time.
- after the letter was closed: as above; closing it again changes nothing.

`forward`: check the fence, publish, move the letter to replayed, reopen the claim, drop its entry in the dead-letter
queue, record the item.
- after the publish: the letter still says it was not sent, so it is sent again under the same message id.
- after the move: the audit trail says this job sent it; nothing is sent again, the rest is caught up.
- after the reopening, after the drop: as before.

Fences. A claim's token is checked by the store when the claim ends, before anything is settled; a dead letter is
checked and its leases renewed first, because its letter comes before the claim's end. Weak spots: a commit of a dead
letter that itself takes longer than `COMMIT_LEASE_MS` can leave the letter of a delivery that has passed on. An entry
leaves the dead-letter queue only from its front, so that looking never changes the order, and when a letter is sent
or its copy processed: one redriven before older open letters keeps its entry until those are gone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from redrive.core import settlement, wire
from redrive.core.idempotency import Acquired, ClaimRecord, ClaimRef, ClaimState, conflicts, is_expired, state_at
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.selection import OPEN_STATES
from redrive.core.message import HEADER_LETTER, Message
from redrive.core.ports import (
    AuditEntry,
    Broker,
    ClaimEnd,
    ClaimStore,
    Clock,
    End,
    Features,
    Forward,
    JobStore,
    LedgerTransaction,
    LetterStore,
    Outgoing,
    Published,
    Received,
    Registration,
    ReviewChange,
    Settle,
    Taken,
)
from redrive.core.redrive import ItemState, Job, refusal, runner_lost
from redrive.core.settlement import Reason
from redrive.core.units import Millis
from redrive.errors import InvalidMessageError, QueueNotFoundError, RedriveError, UnsupportedError

COMMIT_LEASE_MS: Final[Millis] = 30_000
"""Leases are renewed by this much before a dead letter is written."""

MAX_KEPT_ATTEMPTS: Final = 100
"""A redrive that keeps attempts carries over at most so many: each is one claim."""

TRIM_BATCH: Final = 200
"""Entries of a dead-letter queue looked at after a redrive, to drop those whose letters were sent."""

TRIM_LEASE_MS: Final[Millis] = 2_000
"""Entries being dropped are held for so long; should the drop be cut off, the next one finds them after it."""

CLOSED_BY: Final = "redrive"
CLOSED_NOTE: Final = "its redriven copy was processed"
HANDED_BACK: Final = Reason(code="CLAIM_UNAVAILABLE", text="the claim store could not be asked")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What becomes of one redrive item: `why` it is not sent, or that it `was_sent` already, or else: send it."""

    forward: Forward
    letter: Letter | None
    why: str | None = None
    was_sent: bool = False

    @property
    def is_to_send(self) -> bool:
        return self.why is None and not self.was_sent


class OrderedLedger:
    """A `Ledger` over any broker and stores. The module's text says what a crash between two steps leaves."""

    def __init__(
        self, *, broker: Broker, claims: ClaimStore, letters: LetterStore, jobs: JobStore, clock: Clock
    ) -> None:
        self._broker = broker
        self._claims = claims
        self._letters = letters
        self._jobs = jobs
        self._clock = clock

    @property
    def features(self) -> Features:
        """The broker's, without transactions."""
        return replace(self._broker.features, atomic=False, transactions=False)

    async def open(self) -> None:
        """Open the stores, then the broker: nothing can be taken before it can be claimed."""
        await self._claims.open()
        await self._letters.open()
        await self._broker.open()

    async def close(self) -> None:
        """Close the broker, then the stores."""
        await self._broker.close()
        await self._letters.close()
        await self._claims.close()

    # ------------------------------------------------------------------------------------------------- publish

    async def publish(self, batch: Sequence[Outgoing]) -> list[Published]:
        """See `Ledger.publish`. Two publishers of one key at one moment may both queue a copy; one of them runs."""
        answers = await self._known(batch)
        fresh = [outgoing for outgoing, answer in zip(batch, answers, strict=True) if answer is None]
        queued = iter(await self._publish_and_register(fresh))
        return [next(queued) if answer is None else answer for answer in answers]

    async def _known(self, batch: Sequence[Outgoing]) -> list[Published | None]:
        """For each message the answer that its key is known already; None where it is to be queued."""
        now = self._clock.now()
        # What this batch itself has seen: (queue, key) to digest.
        seen: dict[tuple[str, str], str | None] = {}
        answers: list[Published | None] = []
        for outgoing in batch:
            key = outgoing.message.key
            if not outgoing.once or key is None:
                answers.append(None)
                continue
            scope = (outgoing.queue, key)
            if scope not in seen:
                record = await self._claims.get(*scope)
                if record is None or not _is_live(record, now):
                    seen[scope] = outgoing.digest
                    answers.append(None)
                    continue
                seen[scope] = record.digest
            answers.append(Published(duplicate=True, conflict=conflicts(seen[scope], outgoing.digest)))
        return answers

    async def _publish_and_register(self, fresh: Sequence[Outgoing]) -> list[Published]:
        answers = await self._broker.publish(fresh)
        keyed = [(number, item) for number, item in enumerate(fresh) if item.once and item.message.key is not None]
        registered = await self._claims.register(
            [Registration(queue=item.queue, key=item.message.key or "", digest=item.digest) for _, item in keyed]
        )
        for (number, _), known in zip(keyed, registered, strict=True):
            # A consumer may have claimed it by now: known, then, but queued by this call. Only another body tells.
            if known.conflict:
                answers[number] = Published(duplicate=True, conflict=True)
        return answers

    # ------------------------------------------------------------------------------------------------- take, renew

    async def take(
        self, queue: str, *, limit: int, lease_ms: Millis, worker: str, wait_ms: Millis, claims: bool
    ) -> list[Taken]:
        """See `Ledger.take`."""
        received = await self._broker.receive(queue, limit=limit, lease_ms=lease_ms, worker=worker, wait_ms=wait_ms)
        keys = [item.message.key for item in received if claims and item.message.key is not None]
        try:
            verdicts = iter(
                await self._claims.claim([(queue, key) for key in keys], lease_ms=lease_ms, owner=worker)
                if keys
                else ()
            )
        except (RedriveError, asyncio.CancelledError):
            await asyncio.shield(self._hand_back(received))
            raise
        return [
            Taken(received=item, verdict=next(verdicts) if claims and item.message.key is not None else None)
            for item in received
        ]

    async def _hand_back(self, received: Sequence[Received]) -> None:
        """Give messages back unseen. Failing that they come back when their leases end."""
        end = settlement.Requeue(due_at=self._clock.now(), reason=HANDED_BACK)
        with suppress(RedriveError):
            await self._broker.settle([Settle(lease=item.lease, settlement=end) for item in received])

    def renew(self, batch: Sequence[Taken], *, lease_ms: Millis) -> list[bool]:
        """See `Ledger.renew`. Claims first: a delivery whose claim has passed on must not keep its message either."""
        if not batch:
            return []
        refs = [_ref(taken) for taken in batch]
        renewed = iter(self._claims.renew([ref for ref in refs if ref is not None], lease_ms=lease_ms))
        is_held = [ref is None or next(renewed) for ref in refs]
        leases = [taken.received.lease for taken, held in zip(batch, is_held, strict=True) if held]
        kept = iter(self._broker.renew(leases, lease_ms=lease_ms))
        return [held and next(kept) for held in is_held]

    # ------------------------------------------------------------------------------------------------- commit

    async def commit(self, batch: Sequence[End]) -> list[bool]:
        """See `Ledger.commit`."""
        if not batch:
            return []
        is_current = await self._check_dead(batch)
        await self._write_letters([end for end, current in zip(batch, is_current, strict=True) if current])
        is_current = await self._end_claims(batch, is_current)
        await self._close_letters([end for end, current in zip(batch, is_current, strict=True) if current])
        return await self._settle(batch, is_current)

    async def _check_dead(self, batch: Sequence[End]) -> list[bool]:
        """False for each dead letter whose lease or claim is stale."""
        numbers = [number for number, end in enumerate(batch) if isinstance(end.settlement, settlement.DeadLetter)]
        answers = [True] * len(batch)
        if numbers:
            taken = [batch[number].taken for number in numbers]
            held = await asyncio.to_thread(self.renew, taken, lease_ms=COMMIT_LEASE_MS)
            for number, is_held in zip(numbers, held, strict=True):
                # One that this very commit has ended before it was cut off is no longer held, and yet ours.
                answers[number] = is_held or await self._is_ended(batch[number])
        return answers

    async def _write_letters(self, ends: Sequence[End]) -> None:
        letters = [end.letter for end in ends if end.letter is not None]
        if letters:
            await self._letters.put(letters)
            limit = self._broker.features.max_body_bytes
            copies = [_dead_letter_copy(letter, limit_bytes=limit) for letter in letters if letter.dead_letter_queue]
            await self._broker.publish(copies)

    async def _end_claims(self, batch: Sequence[End], is_current: Sequence[bool]) -> list[bool]:
        claimed = [
            (number, claim_end)
            for number, end in enumerate(batch)
            if is_current[number] and (claim_end := _claim_end(end)) is not None
        ]
        answers = list(is_current)
        moved = await self._claims.finish([claim_end for _, claim_end in claimed])
        for (number, _), has_moved in zip(claimed, moved, strict=True):
            answers[number] = has_moved or await self._is_ended(batch[number])
        return answers

    async def _is_ended(self, end: End) -> bool:
        """Whether the claim stands as this end leaves it: an earlier try of the same commit got that far."""
        claim_end = _claim_end(end)
        if claim_end is None:
            return False
        record = await self._claims.get(claim_end.ref.queue, claim_end.ref.key)
        if record is None or record.token != claim_end.ref.token:
            return False
        # A release leaves a record that had failed before as failed.
        is_released = claim_end.state is ClaimState.RECEIVED and record.state is ClaimState.FAILED
        return is_released or record.state is claim_end.state

    async def _close_letters(self, ends: Sequence[End]) -> None:
        """Close the letters that processed copies came from; one that is closed already stays as it is."""
        at = self._clock.now()
        closed = [
            ReviewChange(letter_id=end.closes_letter, to=ReviewState.CLOSED, actor=CLOSED_BY, at=at, note=CLOSED_NOTE)
            for end in ends
            if end.closes_letter is not None and isinstance(end.settlement, settlement.Ack)
        ]
        if closed:
            await self._letters.review(closed)
            found = [await self._letters.get(change.letter_id) for change in closed]
            await self._trim([letter for letter, _ in filter(None, found)])

    async def _settle(self, batch: Sequence[End], is_current: Sequence[bool]) -> list[bool]:
        current = [end for end, is_ours in zip(batch, is_current, strict=True) if is_ours]
        settled = iter(
            await self._broker.settle(
                [Settle(lease=end.taken.received.lease, settlement=end.settlement, entry=end.entry) for end in current]
            )
        )
        # Where the claim has moved the end is true, whoever holds the broker's lease by now.
        return [
            is_ours and (next(settled) or _ref(end.taken) is not None)
            for end, is_ours in zip(batch, is_current, strict=True)
        ]

    def transaction(self, end: End) -> LedgerTransaction:
        """Not here: broker and stores share no transaction. Raises `UnsupportedError`."""
        raise UnsupportedError(
            f'Broker "{self.features.name}" and its stores share no transaction. Message '
            f'"{end.taken.received.message.id}" is untouched.',
            hint="Use an idempotency key in the effect itself, or the embedded broker (sqlite:///…).",
        )

    # ------------------------------------------------------------------------------------------------- forward

    async def forward(self, job: Job, batch: Sequence[Forward]) -> list[str | None]:
        """See `Ledger.forward`."""
        if not batch:
            return []
        await self._check_runner(job)
        plans = [await self._plan(job, forward) for forward in batch]
        await self._check_targets(plans)
        plans = await self._send(plans)
        for plan in plans:
            if plan.is_to_send and plan.letter is not None:
                await self._mark_replayed(job, plan.letter, plan.forward)
        await self._trim([plan.letter for plan in plans if plan.why is None and plan.letter is not None])
        is_ours = await self._jobs.record(job, [
            replace(
                plan.forward.item, state=ItemState.SENT if plan.why is None else ItemState.SKIPPED, why=plan.why
            )
            for plan in plans
        ])  # fmt: skip
        if not is_ours:
            raise runner_lost(job)
        return [plan.why for plan in plans]

    async def _check_runner(self, job: Job) -> None:
        stored = await self._jobs.get(job.id)
        if stored is None or stored.token != job.token:
            raise runner_lost(job)

    async def _plan(self, job: Job, forward: Forward) -> _Plan:
        found = await self._letters.get(forward.item.letter_id)
        if found is None:
            return _Plan(forward=forward, letter=None, why=refusal(None, job.options, job_id=job.id))
        letter, audit = found
        if forward.item.state is ItemState.SENT or _was_sent(job, letter, audit):
            return _Plan(forward=forward, letter=letter, was_sent=True)
        return _Plan(forward=forward, letter=letter, why=refusal(letter, job.options, job_id=job.id))

    async def _check_targets(self, plans: Sequence[_Plan]) -> None:
        targets = {plan.forward.outgoing.queue for plan in plans if plan.is_to_send}
        missing = sorted(targets - {depth.queue for depth in await self._broker.depths()}) if targets else []
        if missing:
            raise QueueNotFoundError(
                f'Queue "{missing[0]}" not found. Nothing of this batch was sent; its letters stay as they are.',
                hint="Start its consumer or publish to it once, then resume the job.",
            )

    async def _send(self, plans: Sequence[_Plan]) -> list[_Plan]:
        """Publish what is to be sent. One that the broker refuses is not sent and says why, the others are; where it
        refuses all, that is raised.
        """
        to_send = [plan for plan in plans if plan.is_to_send]
        for plan in to_send:
            if plan.forward.keep_attempts and plan.letter is not None:
                await self._reopen_keeping_attempts(plan.forward.outgoing, plan.letter.attempt_count)
        refused: dict[int, str] = {}
        try:
            await self._broker.publish([plan.forward.outgoing for plan in to_send])
        except QueueNotFoundError:
            raise
        except RedriveError as error:
            refused = await self._send_one_by_one(to_send, error)
        return [
            replace(plan, why=refused[plan.forward.item.position]) if plan.forward.item.position in refused else plan
            for plan in plans
        ]

    async def _send_one_by_one(self, to_send: Sequence[_Plan], first: RedriveError) -> dict[int, str]:
        """The positions that cannot be sent, and why. Raises `first` where none can."""
        refused: dict[int, str] = {}
        for plan in to_send:
            try:
                await self._broker.publish([plan.forward.outgoing])
            except QueueNotFoundError:
                raise
            except RedriveError as error:
                refused[plan.forward.item.position] = f"the broker refused it: {error.text}"
        if len(refused) == len(to_send) and not isinstance(first, InvalidMessageError):
            raise first
        return refused

    async def _mark_replayed(self, job: Job, letter: Letter, forward: Forward) -> None:
        # Refused where it is replayed (force) or, its copy having been processed meanwhile, closed: sent all the same.
        change = ReviewChange(
            letter_id=letter.id, to=ReviewState.REPLAYED, actor=forward.actor, at=forward.at, note=_note(job)
        )
        await self._letters.review([change])
        key = forward.outgoing.message.key
        if key is not None:
            await self._reopen(forward.outgoing.queue, key)

    async def _reopen(self, queue: str, key: str) -> bool:
        """Start a new cycle where the key is dead-lettered. A claim does so by itself: should the copy have been
        taken already, there is nothing to do.
        """
        record = await self._claims.get(queue, key)
        if record is None or record.state is not ClaimState.DEAD_LETTERED:
            return False
        await self._claims.register([Registration(queue=queue, key=key, digest=record.digest)])
        return True

    async def _reopen_keeping_attempts(self, outgoing: Outgoing, attempts: int) -> None:
        """Reopen before the copy is sent, and count the old attempts again: each is a claim that failed."""
        key = outgoing.message.key
        if key is None or not await self._reopen(outgoing.queue, key):
            return
        for _ in range(min(attempts, MAX_KEPT_ATTEMPTS)):
            (verdict,) = await self._claims.claim([(outgoing.queue, key)], lease_ms=COMMIT_LEASE_MS, owner=CLOSED_BY)
            if not isinstance(verdict, Acquired):
                return
            await self._claims.finish([ClaimEnd(ref=verdict.ref, state=ClaimState.FAILED)])

    async def _trim(self, gone: Sequence[Letter]) -> None:
        """Drop entries of letters that are no longer open from the front of the dead-letter queues of these."""
        for queue in {letter.dead_letter_queue for letter in gone if letter.dead_letter_queue}:
            waiting = await self._broker.peek(queue, limit=TRIM_BATCH)
            done: set[str] = set()
            for copy in waiting:
                found = await self._letters.get(copy.id)
                if found is not None and found[0].state in OPEN_STATES:
                    break
                done.add(copy.id)
            if done:
                await self._drop(queue, done)

    async def _drop(self, queue: str, letter_ids: set[str]) -> None:
        received = await self._broker.receive(
            queue, limit=len(letter_ids), lease_ms=TRIM_LEASE_MS, worker=CLOSED_BY, wait_ms=0
        )
        back = settlement.Requeue(due_at=self._clock.now(), reason=HANDED_BACK)
        await self._broker.settle(
            [
                Settle(lease=item.lease, settlement=settlement.ACK if item.message.id in letter_ids else back)
                for item in received
            ]
        )


def _is_live(record: ClaimRecord, now: int) -> bool:
    """Whether a `once` publish is a duplicate of this record."""
    return not is_expired(record, now) and record.state is not ClaimState.DEAD_LETTERED


def _ref(taken: Taken) -> ClaimRef | None:
    return taken.verdict.ref if isinstance(taken.verdict, Acquired) else None


def _claim_end(end: End) -> ClaimEnd | None:
    """How the claim of this delivery ends; None where it holds none."""
    ref = _ref(end.taken)
    if ref is None:
        return None
    state = state_at(end.settlement)
    is_terminal = state in (ClaimState.PROCESSED, ClaimState.DEAD_LETTERED)
    return ClaimEnd(ref=ref, state=state, expires_at=end.claim_expires_at if is_terminal else None)


def _dead_letter_copy(letter: Letter, *, limit_bytes: int) -> Outgoing:
    """The entry in the broker's dead-letter queue: the letter as a document under the letter's id. One too large for
    the broker is empty: its header names the letter, and the store has it whole.
    """
    body = json.dumps(wire.letter_document(letter)).encode()
    message = Message(
        id=letter.id,
        key=letter.id,
        body=body if len(body) <= limit_bytes else b"",
        content_type="application/json",
        tenant=letter.message.tenant,
        published_at=letter.dead_lettered_at,
        headers={HEADER_LETTER: letter.id},
    )
    return Outgoing(queue=letter.dead_letter_queue, message=message)


def _note(job: Job) -> str:
    return f"redrive job {job.id}"


def _was_sent(job: Job, letter: Letter, audit: Sequence[AuditEntry]) -> bool:
    """Whether this job has sent the letter, was cut off before it recorded the item, and now comes by again: the
    audit trail says so, or the copy has been processed already.
    """
    if letter.state in OPEN_STATES or not audit:
        return False
    return audit[-1].note == CLOSED_NOTE or any(entry.note == _note(job) for entry in audit)
