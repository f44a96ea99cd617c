"""SqliteClaimStore, SqliteLetterStore, SqliteGroupStore, SqliteJobStore: the store ports on one SQLite file.

Thin faces; the work is in redrive.sqlite. They may share one `SqliteFile` with each other and with the broker.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from redrive.core.audit import Answer, Write, WritePage, WriteQuery
from redrive.core.idempotency import Acquired, ClaimRecord, ClaimRef, Verdict
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
from redrive.sqlite import claims, controls, groups, jobs, letters, outbox, requests, search
from redrive.sqlite.file import SqliteFile
from redrive.sqlite.outbox import ClaimTransaction
from redrive.sqlite.writer import Tx


class _Face:
    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    async def open(self) -> None:
        """See `SqliteFile.open`."""
        await self._file.open()

    async def close(self) -> None:
        """See `SqliteFile.close`."""
        await self._file.close()


def _nothing(tx: Tx) -> None:
    """Waits for the disk: it then has all that was committed before."""


class SqliteClaimStore(_Face):
    """Claims in one SQLite file."""

    async def register(self, batch: Sequence[Registration]) -> list[Published]:
        """See `ClaimStore.register`."""
        return await self._file.write_step(claims.register, batch)

    async def claim(
        self, batch: Sequence[tuple[str, str]], *, lease_ms: Millis, owner: str, gone: Collection[str] = ()
    ) -> list[Verdict]:
        """See `ClaimStore.claim`. Here the record may be the only one of a start, so the disk gets it, right after the
        answer: a start need not wait. Where a message does not start, because of what another process has written, that
        has to be on the disk first.
        """
        if not batch:
            return []
        verdicts = await self._file.write_ahead(
            lambda tx: claims.claim(tx, batch, lease_ms=lease_ms, owner=owner, gone=gone)
        )
        if any(type(verdict) is not Acquired for verdict in verdicts):
            await self._file.write(_nothing)
        return verdicts

    async def finish(self, batch: Sequence[ClaimEnd]) -> list[bool]:
        """See `ClaimStore.finish`."""
        return await self._file.write_step(claims.finish, batch)

    def renew(self, batch: Sequence[ClaimRef], *, lease_ms: Millis) -> list[bool]:
        """See `ClaimStore.renew`."""
        if not batch:
            return []
        return self._file.write_blocking(lambda tx: claims.renew(tx, batch, lease_ms=lease_ms), is_synced=False)

    def transaction(self, end: ClaimEnd) -> ClaimTransaction:
        """See `TransactionalClaimStore.transaction` and sqlite/transaction.py."""
        return ClaimTransaction(self._file, end)

    async def unsent(self, *, limit: int) -> list[Unsent]:
        """See `TransactionalClaimStore.unsent`; a look where there is none, else one commit."""
        if not await self._file.read(outbox.is_left):
            return []
        return await self._file.write(lambda tx: outbox.take_left(tx, limit=limit))

    async def sent(self, batch: Sequence[Unsent]) -> None:
        """See `TransactionalClaimStore.sent`; one commit."""
        if batch:
            await self._file.write(lambda tx: outbox.forget(tx, [each.ref for each in batch]))

    async def get(self, queue: str, key: str) -> ClaimRecord | None:
        """See `ClaimStore.get`."""
        found = await self._file.read(lambda connection: claims.find(connection, queue, [key]).get(key))
        return None if found is None else found[1]

    async def prune(self, *, limit: int) -> int:
        """See `ClaimStore.prune`; one commit."""
        return await self._file.write(lambda tx: claims.prune(tx, limit=limit))


class SqliteLetterStore(_Face):
    """Letters in one SQLite file."""

    async def put(self, batch: Sequence[Letter]) -> None:
        """See `LetterStore.put`; one commit for the batch."""
        if batch:
            await self._file.write(lambda tx: letters.put(tx, batch))

    async def get(self, letter_id: str) -> tuple[Letter, tuple[AuditEntry, ...]] | None:
        """See `LetterStore.get`."""
        return await self._file.read(lambda connection: letters.get(connection, letter_id))

    async def find(self, selection: Selection, *, limit: int, cursor: str | None = None) -> Page:
        """See `LetterStore.find`. Never reads a body."""
        return await self._file.read(lambda connection: search.find(connection, selection, limit=limit, cursor=cursor))

    async def stats(
        self, selection: Selection, *, top: int = 20, ages_at: UnixMs | None = None, up_to: int | None = None
    ) -> LetterStats:
        """See `LetterStore.stats`. A letter without a tenant counts as tenant "-"."""
        return await self._file.read(
            lambda connection: search.stats(connection, selection, top=top, ages_at=ages_at, up_to=up_to)
        )

    async def review(self, batch: Sequence[ReviewChange]) -> list[str | None]:
        """See `LetterStore.review`; one commit for the batch."""
        return await self._file.write_step(letters.review, batch)

    async def earlier(self, letter_ids: Sequence[str], *, job_id: str | None) -> dict[str, str]:
        """See `LetterStore.earlier`."""
        return await self._file.read(lambda connection: letters.earlier(connection, letter_ids, job_id=job_id))

    async def prune(self, *, now: UnixMs, limit: int, selection: Selection | None = None) -> int:
        """See `LetterStore.prune`; one commit, and some of the space goes back to the file system."""
        return await self._file.write(lambda tx: letters.prune(tx, now=now, limit=limit, selection=selection))


class SqliteGroupStore:
    """A `GroupStore` on the letters of one file, opened with it."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    async def groups(
        self, *, states: Collection[GroupState] = (), queue: str | None = None, limit: int, cursor: str | None = None
    ) -> GroupPage:
        """See `GroupStore.groups`."""
        return await self._file.read(
            lambda connection: groups.page(connection, states=states, queue=queue, limit=limit, cursor=cursor)
        )

    async def group(self, fingerprint: str) -> tuple[Group, tuple[GroupEntry, ...]] | None:
        """See `GroupStore.group`."""
        return await self._file.read(lambda connection: groups.get(connection, fingerprint))

    async def hours(self, fingerprint: str, *, since: UnixMs) -> list[HourCount]:
        """See `GroupStore.hours`."""
        return await self._file.read(lambda connection: groups.hours(connection, fingerprint, since=since))

    async def change(self, batch: Sequence[GroupChange]) -> list[str | None]:
        """See `GroupStore.change`."""
        return await self._file.write_step(groups.change, batch)

    async def recount(self) -> int:
        """See `GroupStore.recount`. Writers wait only where something is wrong."""
        return await self._file.write(groups.recount) if await self._file.read(groups.wrong) else 0


class SqliteControlStore(_Face):
    """Controls of queues in one SQLite file."""

    async def put(self, control: Control) -> None:
        """See `ControlStore.put`; one commit."""
        await self._file.write(lambda tx: controls.put(tx, control))

    async def list(self) -> Controls:
        """See `ControlStore.list`."""
        return await self._file.read(controls.find_all)


class SqliteRequestStore(_Face):
    """Writes over the API and their answers in one SQLite file."""

    async def put(self, write: Write) -> None:
        """See `RequestStore.put`; one commit."""
        await self._file.write(lambda tx: requests.put(tx, write))

    async def writes(self, query: WriteQuery, *, limit: int, cursor: str | None = None) -> WritePage:
        """See `RequestStore.writes`."""
        return await self._file.read(lambda connection: requests.find(connection, query, limit=limit, cursor=cursor))

    async def keep(self, key: str, answer: Answer, *, expires_at: UnixMs) -> None:
        """See `RequestStore.keep`; one commit."""
        await self._file.write(lambda tx: requests.keep(tx, key, answer, expires_at=expires_at))

    async def answer(self, key: str, *, now: UnixMs) -> Answer | None:
        """See `RequestStore.answer`."""
        return await self._file.read(lambda connection: requests.answer(connection, key, now=now))

    async def prune(self, *, now: UnixMs, before: UnixMs, limit: int) -> int:
        """See `RequestStore.prune`; one commit."""
        return await self._file.write(lambda tx: requests.prune(tx, now=now, before=before, limit=limit))


class SqliteJobStore(_Face):
    """Redrive jobs in one SQLite file."""

    async def create(self, job: Job) -> Job:
        """See `JobStore.create`."""
        return await self._file.write(lambda tx: jobs.create(tx, job))

    async def get(self, job_id: str) -> Job | None:
        """See `JobStore.get`."""
        return await self._file.read(lambda connection: jobs.get(connection, job_id))

    async def list(self, *, limit: int = 50) -> Jobs:
        """See `JobStore.list`."""
        return await self._file.read(lambda connection: jobs.newest(connection, limit=limit))

    async def acquire(self, job_id: str | None, *, owner: str, lease_ms: Millis) -> Job | None:
        """See `JobStore.acquire`."""
        return await self._file.write(lambda tx: jobs.acquire(tx, job_id, owner=owner, lease_ms=lease_ms))

    async def stage(self, job: Job, *, limit: int) -> Job:
        """See `JobStore.stage`; one commit a call. Raises `LeaseLostError` where `job.token` is stale."""
        return await self._file.write(lambda tx: jobs.stage(tx, job, limit=limit))

    async def items(self, job_id: str, *, state: str | None, limit: int, after: int = -1) -> Items:
        """See `JobStore.items`."""
        return await self._file.read(
            lambda connection: jobs.items(connection, job_id, state=state, limit=limit, after=after)
        )

    async def record(self, job: Job, batch: Sequence[Item]) -> bool:
        """See `JobStore.record`."""
        return await self._file.write(lambda tx: jobs.record(tx, job, batch))

    async def save(self, job: Job, *, lease_ms: Millis) -> bool:
        """See `JobStore.save`."""
        return await self._file.write(lambda tx: jobs.save(tx, job, lease_ms=lease_ms))

    async def outcomes(self, job_id: str, *, positions: Sequence[int] | None = None) -> Outcomes:
        """See `JobStore.outcomes`."""
        return await self._file.read(lambda connection: jobs.outcomes(connection, job_id, positions=positions))
