"""Redrive jobs in memory. They mark and free letters, so they are made with the letter store they work on."""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from redrive.core.letters.selection import Place
from redrive.core.ports import Clock
from redrive.core.redrive import (
    JOB_TRANSITIONS,
    Item,
    ItemState,
    Job,
    JobCounts,
    JobEvent,
    JobState,
    Outcomes,
    refusal,
    runner_lost,
)
from redrive.core.units import Millis, UnixMs
from redrive.stores.memory.letters import KeptLetter, MemoryLetterStore


@dataclass(slots=True, kw_only=True)
class _JobRow:
    """A stored job. `last_letter`: the newest letter when it was made; what died later is not selected.
    `staged_to`: the place of the last letter copied into items.
    """

    job: Job
    last_letter: int
    staged_to: Place | None = None
    items: list[Item] = field(default_factory=list)


class MemoryJobStore:
    """A `JobStore` in memory, over the letters of one `MemoryLetterStore`."""

    def __init__(self, letters: MemoryLetterStore, clock: Clock) -> None:
        self._letters = letters
        self._clock = clock
        self._rows: dict[str, _JobRow] = {}

    async def create(self, job: Job) -> Job:
        """See `JobStore.create`."""
        for row in self._rows.values():
            if job.id == row.job.id or (job.request_key is not None and job.request_key == row.job.request_key):
                return row.job
        self._rows[job.id] = _JobRow(job=job, last_letter=self._letters.arrivals)
        return job

    async def get(self, job_id: str) -> Job | None:
        """See `JobStore.get`."""
        row = self._rows.get(job_id)
        return None if row is None else row.job

    async def list(self, *, limit: int = 50) -> list[Job]:
        """See `JobStore.list`."""
        newest_last = sorted(self._rows.values(), key=lambda row: row.job.created_at)
        return [row.job for row in newest_last[::-1][:limit]]

    async def acquire(self, job_id: str | None, *, owner: str, lease_ms: Millis) -> Job | None:
        """See `JobStore.acquire`."""
        now = self._clock.now()
        row = self._next_row(now) if job_id is None else self._rows.get(job_id)
        if row is None or _is_held(row.job, now) or JobEvent.START not in JOB_TRANSITIONS[row.job.state]:
            return None
        row.job = replace(
            row.job,
            state=JobState.RUNNING,
            error=None,
            token=row.job.token + 1,
            owner=owner,
            lease_until=now + lease_ms,
            updated_at=now,
        )
        for item in _pending(row):
            self._letters.hold(item.letter_id, row.job.id)
        return row.job

    async def stage(self, job: Job, *, limit: int) -> Job:
        """See `JobStore.stage`. Raises `LeaseLostError`, staging nothing, where `job.token` is stale."""
        row = self._rows.get(job.id)
        if row is None or row.job.token != job.token:
            raise runner_lost(job, "Nothing was staged.")
        room = limit if job.options.limit is None else min(limit, job.options.limit - len(row.items))
        found = [
            kept
            for kept in self._letters.selected(row.job.selection, after=row.staged_to)
            if kept.number <= row.last_letter
        ]
        for kept in found[:room]:
            row.items.append(self._stage_one(row, kept))
            row.staged_to = kept.place
        is_full = job.options.limit is not None and len(row.items) >= job.options.limit
        row.job = replace(
            row.job,
            is_staged=len(found) <= room or is_full,
            counts=_counts(row.items),
            updated_at=self._clock.now(),
        )
        return row.job

    async def items(self, job_id: str, *, state: str | None, limit: int, after: int = -1) -> builtins.list[Item]:
        """See `JobStore.items`."""
        row = self._rows.get(job_id)
        items = [] if row is None else row.items[after + 1 :]
        return [item for item in items if state is None or item.state == state][:limit]

    async def record(self, job: Job, batch: Sequence[Item]) -> bool:
        """See `JobStore.record`."""
        row = self._rows.get(job.id)
        if row is None or row.job.token != job.token:
            return False
        for item in batch:
            if row.items[item.position].state is ItemState.PENDING:
                row.items[item.position] = item
                if item.state is not ItemState.PENDING:
                    self._letters.free(item.letter_id, job.id)
        row.job = replace(row.job, counts=_counts(row.items), updated_at=self._clock.now())
        return True

    async def save(self, job: Job, *, lease_ms: Millis) -> bool:
        """See `JobStore.save`."""
        row = self._rows.get(job.id)
        if row is None or row.job.token != job.token:
            return False
        now = self._clock.now()
        is_over = job.state not in (JobState.STAGED, JobState.RUNNING)
        keeps_letters = job.state is JobState.PAUSED
        row.job = replace(
            row.job,
            state=job.state,
            error=job.error,
            progress=job.progress,
            # Whoever ended it, its runner may not go on: see the port.
            token=row.job.token + 1 if is_over else row.job.token,
            owner=None if is_over else row.job.owner,
            lease_until=None if is_over else now + lease_ms,
            updated_at=now,
        )
        if is_over and not keeps_letters:
            for item in _pending(row):
                self._letters.free(item.letter_id, job.id)
        return True

    async def outcomes(self, job_id: str, *, positions: Sequence[int] | None = None) -> Outcomes:
        """See `JobStore.outcomes`."""
        row = self._rows.get(job_id)
        if row is None:
            return Outcomes()
        wanted = row.items if positions is None else [row.items[at] for at in positions if at < len(row.items)]
        sent = [item.letter_id for item in wanted if item.state is ItemState.SENT]
        succeeded, failed_again = self._letters.fates(sent, since=row.job.created_at)
        return Outcomes(sent=len(sent), succeeded=succeeded, failed_again=failed_again)

    def _next_row(self, now: UnixMs) -> _JobRow | None:
        waiting = (JobState.STAGED, JobState.RUNNING)
        free = [row for row in self._rows.values() if row.job.state in waiting and not _is_held(row.job, now)]
        return min(free, key=lambda row: row.job.created_at, default=None)

    def _stage_one(self, row: _JobRow, kept: KeptLetter) -> Item:
        why = refusal(kept.letter, row.job.options, job_id=row.job.id, at=row.job.created_at)
        if why is None:
            self._letters.hold(kept.letter.id, row.job.id)
        return Item(
            job_id=row.job.id,
            position=len(row.items),
            letter_id=kept.letter.id,
            state=ItemState.PENDING if why is None else ItemState.SKIPPED,
            why=why,
        )


def _is_held(job: Job, now: UnixMs) -> bool:
    return job.state is JobState.RUNNING and job.lease_until is not None and job.lease_until > now


def _pending(row: _JobRow) -> builtins.list[Item]:
    return [item for item in row.items if item.state is ItemState.PENDING]


def _counts(items: Sequence[Item]) -> JobCounts:
    counted = Counter(item.state for item in items)
    return JobCounts(
        selected=len(items),
        pending=counted[ItemState.PENDING],
        sent=counted[ItemState.SENT],
        skipped=counted[ItemState.SKIPPED],
    )
