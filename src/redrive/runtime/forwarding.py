"""Forwarding: sends redrive items where broker, letters, claims and jobs share no transaction.

The order: check the fence, publish, move the letter to replayed, reopen the claim, drop its entry in the dead-letter
queue, record the item.

Killed right here, what is true?
- after the publish: the letter still says it was not sent, so it is sent again under the same message id.
- after the move: the audit trail says this job sent it; nothing is sent again, the rest is caught up.
- after the reopening, after the drop: as before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from redrive.core.idempotency import Acquired, ClaimState
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.review import CLOSED_NOTE
from redrive.core.letters.selection import OPEN_STATES
from redrive.core.ports import (
    AuditEntry,
    Broker,
    ClaimEnd,
    ClaimStore,
    Forward,
    JobStore,
    LetterStore,
    Outgoing,
    Registration,
    ReviewChange,
)
from redrive.core.redrive import ItemState, Job, refusal, runner_lost, sent_note
from redrive.core.units import Millis
from redrive.errors import InvalidMessageError, QueueNotFoundError, RedriveError
from redrive.runtime.dead_letter_queues import DeadLetterQueues

MAX_KEPT_ATTEMPTS: Final = 100
"""A redrive that keeps attempts carries over at most so many: each is one claim."""

OWNER: Final = "redrive"
"""Who holds such a claim."""

CLAIM_LEASE_MS: Final[Millis] = 30_000
"""How long such a claim blocks its key should it be cut off."""


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


class Forwarding:
    """Carries out batches of redrive items."""

    def __init__(
        self, *, broker: Broker, claims: ClaimStore, letters: LetterStore, jobs: JobStore, entries: DeadLetterQueues
    ) -> None:
        self._broker = broker
        self._claims = claims
        self._letters = letters
        self._jobs = jobs
        self._entries = entries

    async def carry_out(self, job: Job, batch: Sequence[Forward]) -> list[str | None]:
        """See `Ledger.forward`."""
        await self._check_runner(job)
        plans = list(await asyncio.gather(*(self._plan(job, forward) for forward in batch)))
        await self._check_targets(plans)
        plans = await self._send(plans)
        await self._mark_replayed(job, [plan for plan in plans if plan.is_to_send])
        await self._entries.trim([plan.letter for plan in plans if plan.why is None and plan.letter is not None])
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
        if forward.item.state is ItemState.SENT or was_sent(job, letter, audit):
            return _Plan(forward=forward, letter=letter, was_sent=True)
        return _Plan(forward=forward, letter=letter, why=refusal(letter, job.options, job_id=job.id))

    async def _check_targets(self, plans: Sequence[_Plan]) -> None:
        targets = {plan.forward.outgoing.queue for plan in plans if plan.is_to_send}
        missing = sorted(targets - {depth.queue for depth in await self._broker.depths(targets)}) if targets else []
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

    async def _mark_replayed(self, job: Job, sent: Sequence[_Plan]) -> None:
        # Refused where it is replayed (force) or, its copy having been processed meanwhile, closed: sent all the same.
        note = sent_note(job.id)
        await self._letters.review(
            [
                ReviewChange(
                    letter_id=plan.forward.item.letter_id,
                    to=ReviewState.REPLAYED,
                    actor=plan.forward.actor,
                    at=plan.forward.at,
                    note=note,
                )
                for plan in sent
            ]
        )
        outgoing = [plan.forward.outgoing for plan in sent]
        await self._reopen([(each.queue, each.message.key) for each in outgoing if each.message.key is not None])

    async def _reopen(self, scopes: Sequence[tuple[str, str]]) -> bool:
        """Start a new cycle where a key is dead-lettered; whether any was. A claim does so by itself: should the copy
        have been taken already, there is nothing to do.
        """
        records = await asyncio.gather(*(self._claims.get(queue, key) for queue, key in scopes))
        dead = [
            Registration(queue=record.queue, key=record.key, digest=record.digest)
            for record in records
            if record is not None and record.state is ClaimState.DEAD_LETTERED
        ]
        if dead:
            await self._claims.register(dead)
        return bool(dead)

    async def _reopen_keeping_attempts(self, outgoing: Outgoing, attempts: int) -> None:
        """Reopen before the copy is sent, and count the old attempts again: each is a claim that failed."""
        key = outgoing.message.key
        if key is None or not await self._reopen([(outgoing.queue, key)]):
            return
        for _ in range(min(attempts, MAX_KEPT_ATTEMPTS)):
            (verdict,) = await self._claims.claim([(outgoing.queue, key)], lease_ms=CLAIM_LEASE_MS, owner=OWNER)
            if not isinstance(verdict, Acquired):
                return
            await self._claims.finish([ClaimEnd(ref=verdict.ref, state=ClaimState.FAILED)])


def was_sent(job: Job, letter: Letter, audit: Sequence[AuditEntry]) -> bool:
    """Whether this job has sent the letter, was cut off before it recorded the item, and now comes by again: the
    audit trail says so, or the copy has been processed already.
    """
    if letter.state in OPEN_STATES or not audit:
        return False
    return audit[-1].note == CLOSED_NOTE or any(entry.note == sent_note(job.id) for entry in audit)
