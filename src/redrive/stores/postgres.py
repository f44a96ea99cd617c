"""The store ports on one PostgreSQL database: claims, letters, groups, jobs, controls.

Thin faces; the work is in redrive.postgres. They share one `Database` with each other.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence

from redrive.core.audit import Answer, Write, WritePage, WriteQuery
from redrive.core.idempotency import ClaimRecord, ClaimRef, Verdict
from redrive.core.letters.groups import Group, GroupChange, GroupEntry, GroupState
from redrive.core.letters.letter import Letter
from redrive.core.letters.selection import Selection
from redrive.core.policy.control import Control, Controls
from redrive.core.ports import (
    AuditEntry,
    ClaimEnd,
    GroupPage,
    HourCount,
    Items,
    Jobs,
    LetterStats,
    Page,
    Published,
    Registration,
    ReviewChange,
    Unsent,
)
from redrive.core.redrive import Item, Job, Outcomes
from redrive.core.units import Millis, UnixMs
from redrive.postgres import Database, claims, controls, groups, jobs, letters, requests, search, transaction
from redrive.postgres.transaction import ClaimTransaction


class _Face:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._is_open = False

    async def open(self) -> None:
        """See `Database.open`."""
        if not self._is_open:
            await self._database.open()
            self._is_open = True

    async def close(self) -> None:
        """See `Database.close`."""
        if self._is_open:
            self._is_open = False
            await self._database.close()


class PostgresClaimStore(_Face):
    """Claims in one database, and transactions beside them."""

    async def register(self, batch: Sequence[Registration]) -> list[Published]:
        """See `ClaimStore.register`; one round trip."""
        if not batch:
            return []
        now, call = self._database.clock_now, uuid.uuid4()
        return await self._database.step(lambda tx: claims.register(tx, batch, now=now, call=call))

    async def claim(
        self, batch: Sequence[tuple[str, str]], *, lease_ms: Millis, owner: str, gone: Collection[str] = ()
    ) -> list[Verdict]:
        """See `ClaimStore.claim`; one round trip. Cancelled, what it took is given back."""
        if not batch:
            return []
        now, call = self._database.clock_now, uuid.uuid4()
        return await self._database.step(
            lambda tx: claims.claim(tx, batch, lease_ms=lease_ms, owner=owner, gone=gone, now=now, call=call),
            undo=claims.give_back,
        )

    async def finish(self, batch: Sequence[ClaimEnd]) -> list[bool]:
        """See `ClaimStore.finish`; one round trip."""
        if not batch:
            return []
        now, call = self._database.clock_now, uuid.uuid4()
        return await self._database.step(lambda tx: claims.finish(tx, batch, now=now, call=call))

    def renew(self, batch: Sequence[ClaimRef], *, lease_ms: Millis) -> list[bool]:
        """See `ClaimStore.renew`; one round trip, in a thread that does nothing else."""
        if not batch:
            return []
        now = self._database.clock_now
        return self._database.step_blocking(lambda tx: claims.renew(tx, batch, lease_ms=lease_ms, now=now))

    def transaction(self, end: ClaimEnd) -> ClaimTransaction:
        """See `TransactionalClaimStore.transaction` and postgres/transaction.py."""
        return ClaimTransaction(self._database, end)

    async def unsent(self, *, limit: int) -> list[Unsent]:
        """See `TransactionalClaimStore.unsent`."""
        return await self._database.write(lambda tx: transaction.take_left(tx, limit=limit))

    async def sent(self, batch: Sequence[Unsent]) -> None:
        """See `TransactionalClaimStore.sent`."""
        if batch:
            await self._database.step(lambda tx: transaction.forget(tx, [each.ref for each in batch]))

    async def get(self, queue: str, key: str) -> ClaimRecord | None:
        """See `ClaimStore.get`."""
        return await self._database.read(lambda tx: claims.get(tx, queue, key))

    async def prune(self, *, limit: int) -> int:
        """See `ClaimStore.prune`; one commit."""
        now = self._database.clock_now
        return await self._database.step(lambda tx: claims.prune(tx, limit=limit, now=now))


class PostgresLetterStore(_Face):
    """Letters in one database."""

    async def put(self, batch: Sequence[Letter]) -> None:
        """See `LetterStore.put`; one commit for the batch, and one round trip where no group is to be reopened."""
        if not batch:
            return
        last = await self._database.step(lambda tx: letters.put_quickly(tx, batch))
        if last is None:
            last = await self._database.write(lambda tx: letters.put(tx, batch))
        if last % letters.FOLD_EVERY < len(batch):
            await self._database.write(letters.fold)

    async def get(self, letter_id: str) -> tuple[Letter, tuple[AuditEntry, ...]] | None:
        """See `LetterStore.get`."""
        return await self._database.look(lambda tx: letters.get(tx, letter_id))

    async def find(self, selection: Selection, *, limit: int, cursor: str | None = None) -> Page:
        """See `LetterStore.find`. Never reads a body."""
        read = self._database.look if search.is_slow(selection) else self._database.read
        return await read(lambda tx: search.find(tx, selection, limit=limit, cursor=cursor))

    async def stats(
        self, selection: Selection, *, top: int = 20, ages_at: UnixMs | None = None, up_to: int | None = None
    ) -> LetterStats:
        """See `LetterStore.stats`. A letter without a tenant counts as tenant "-"."""
        return await self._database.look(lambda tx: search.stats(tx, selection, top=top, ages_at=ages_at, up_to=up_to))

    async def review(self, batch: Sequence[ReviewChange]) -> list[str | None]:
        """See `LetterStore.review`; one commit for the batch."""
        return await self._database.write(lambda tx: letters.review(tx, batch)) if batch else []

    async def earlier(self, letter_ids: Sequence[str], *, job_id: str | None) -> dict[str, str]:
        """See `LetterStore.earlier`."""
        return await self._database.read(lambda tx: letters.earlier(tx, letter_ids, job_id=job_id))

    async def prune(self, *, now: UnixMs, limit: int, selection: Selection | None = None) -> int:
        """See `LetterStore.prune`; one commit."""
        return await self._database.write(lambda tx: letters.prune(tx, now=now, limit=limit, selection=selection))


class PostgresGroupStore:
    """A `GroupStore` on the letters of one database, opened with them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def groups(
        self, *, states: Collection[GroupState] = (), queue: str | None = None, limit: int, cursor: str | None = None
    ) -> GroupPage:
        """See `GroupStore.groups`."""
        return await self._database.look(
            lambda tx: groups.page(tx, states=states, queue=queue, limit=limit, cursor=cursor)
        )

    async def group(self, fingerprint: str) -> tuple[Group, tuple[GroupEntry, ...]] | None:
        """See `GroupStore.group`."""
        return await self._database.look(lambda tx: groups.get(tx, fingerprint))

    async def hours(self, fingerprint: str, *, since: UnixMs) -> list[HourCount]:
        """See `GroupStore.hours`."""
        return await self._database.read(lambda tx: groups.hours(tx, fingerprint, since=since))

    async def change(self, batch: Sequence[GroupChange]) -> list[str | None]:
        """See `GroupStore.change`; one commit for the batch."""
        return await self._database.write(lambda tx: groups.change(tx, batch)) if batch else []

    async def recount(self) -> int:
        """See `GroupStore.recount`; one commit."""
        return await self._database.write(groups.recount)


class PostgresControlStore(_Face):
    """Controls of queues in one database."""

    async def put(self, control: Control) -> None:
        """See `ControlStore.put`; one commit."""
        await self._database.step(lambda tx: controls.put(tx, control))

    async def list(self) -> Controls:
        """See `ControlStore.list`."""
        return await self._database.read(controls.find_all)


class PostgresRequestStore(_Face):
    """Writes over the API and their answers in one database."""

    async def put(self, write: Write) -> None:
        """See `RequestStore.put`; one commit."""
        await self._database.step(lambda tx: requests.put(tx, write))

    async def writes(self, query: WriteQuery, *, limit: int, cursor: str | None = None) -> WritePage:
        """See `RequestStore.writes`."""
        return await self._database.read(lambda tx: requests.find(tx, query, limit=limit, cursor=cursor))

    async def keep(self, key: str, answer: Answer, *, expires_at: UnixMs) -> None:
        """See `RequestStore.keep`; one commit."""
        await self._database.step(lambda tx: requests.keep(tx, key, answer, expires_at=expires_at))

    async def answer(self, key: str, *, now: UnixMs) -> Answer | None:
        """See `RequestStore.answer`."""
        return await self._database.read(lambda tx: requests.answer(tx, key, now=now))

    async def prune(self, *, now: UnixMs, before: UnixMs, limit: int) -> int:
        """See `RequestStore.prune`; one commit."""
        return await self._database.write(lambda tx: requests.prune(tx, now=now, before=before, limit=limit))


class PostgresJobStore:
    """Redrive jobs on the letters of one database, opened with them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, job: Job) -> Job:
        """See `JobStore.create`."""
        return await self._database.write(lambda tx: jobs.create(tx, job))

    async def get(self, job_id: str) -> Job | None:
        """See `JobStore.get`."""
        return await self._database.read(lambda tx: jobs.get(tx, job_id))

    async def list(self, *, limit: int = 50) -> Jobs:
        """See `JobStore.list`."""
        return await self._database.read(lambda tx: jobs.newest(tx, limit=limit))

    async def acquire(self, job_id: str | None, *, owner: str, lease_ms: Millis) -> Job | None:
        """See `JobStore.acquire`."""
        return await self._database.write(lambda tx: jobs.acquire(tx, job_id, owner=owner, lease_ms=lease_ms))

    async def stage(self, job: Job, *, limit: int) -> Job:
        """See `JobStore.stage`; one commit a call. Raises `LeaseLostError` where `job.token` is stale."""
        return await self._database.write(lambda tx: jobs.stage(tx, job, limit=limit))

    async def items(self, job_id: str, *, state: str | None, limit: int, after: int = -1) -> Items:
        """See `JobStore.items`."""
        return await self._database.read(lambda tx: jobs.items(tx, job_id, state=state, limit=limit, after=after))

    async def record(self, job: Job, batch: Sequence[Item]) -> bool:
        """See `JobStore.record`."""
        return await self._database.write(lambda tx: jobs.record(tx, job, batch))

    async def save(self, job: Job, *, lease_ms: Millis) -> bool:
        """See `JobStore.save`."""
        return await self._database.write(lambda tx: jobs.save(tx, job, lease_ms=lease_ms))

    async def outcomes(self, job_id: str, *, positions: Sequence[int] | None = None) -> Outcomes:
        """See `JobStore.outcomes`."""
        return await self._database.read(lambda tx: jobs.outcomes(tx, job_id, positions=positions))
