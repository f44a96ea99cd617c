"""SqliteClaimStore, SqliteLetterStore, SqliteJobStore: the store ports on one SQLite file."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.core.idempotency import ClaimRecord, ClaimRef, Verdict
from redrive.core.letters.letter import Letter
from redrive.core.letters.selection import Selection
from redrive.core.ports import AuditEntry, ClaimEnd, LetterStats, Page, Published, Registration, ReviewChange
from redrive.core.redrive import Item, Job
from redrive.core.units import Millis, UnixMs
from redrive.sqlite.file import SqliteFile


class _Face:
    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    async def open(self) -> None:
        await self._file.open()

    async def close(self) -> None:
        await self._file.close()


class SqliteClaimStore(_Face):
    """Claims in one SQLite file."""

    async def register(self, batch: Sequence[Registration]) -> list[Published]:
        raise NotImplementedError

    async def claim(self, batch: Sequence[tuple[str, str]], *, lease_ms: Millis, owner: str) -> list[Verdict]:
        raise NotImplementedError

    async def finish(self, batch: Sequence[ClaimEnd]) -> list[bool]:
        raise NotImplementedError

    def renew(self, batch: Sequence[ClaimRef], *, lease_ms: Millis) -> list[bool]:
        raise NotImplementedError

    async def get(self, queue: str, key: str) -> ClaimRecord | None:
        raise NotImplementedError

    async def prune(self, *, limit: int) -> int:
        raise NotImplementedError


class SqliteLetterStore(_Face):
    """Letters in one SQLite file."""

    async def put(self, batch: Sequence[Letter]) -> None:
        raise NotImplementedError

    async def get(self, letter_id: str) -> tuple[Letter, tuple[AuditEntry, ...]] | None:
        raise NotImplementedError

    async def find(self, selection: Selection, *, limit: int, cursor: str | None = None) -> Page:
        raise NotImplementedError

    async def stats(self, selection: Selection, *, top: int = 20) -> LetterStats:
        raise NotImplementedError

    async def review(self, batch: Sequence[ReviewChange]) -> list[str | None]:
        raise NotImplementedError

    async def prune(self, *, now: UnixMs, limit: int) -> int:
        raise NotImplementedError


class SqliteJobStore(_Face):
    """Redrive jobs in one SQLite file."""

    async def create(self, job: Job) -> Job:
        raise NotImplementedError

    async def get(self, job_id: str) -> Job | None:
        raise NotImplementedError

    async def list(self, *, limit: int = 50) -> list[Job]:
        raise NotImplementedError

    async def acquire(self, job_id: str | None, *, owner: str, lease_ms: Millis) -> Job | None:
        raise NotImplementedError

    async def stage(self, job: Job, *, limit: int) -> Job:
        raise NotImplementedError

    async def items(self, job_id: str, *, state: str | None, limit: int, after: int = -1) -> list[Item]:
        raise NotImplementedError

    async def save(self, job: Job, *, lease_ms: Millis) -> bool:
        raise NotImplementedError
