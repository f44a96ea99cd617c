"""SqliteLedger: every call of the ledger is one transaction on the file."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.core.ports import End, Features, Forward, LedgerTransaction, Outgoing, Published, Taken
from redrive.core.redrive import Job
from redrive.core.units import Millis
from redrive.sqlite.file import SqliteFile


class SqliteLedger:
    """Queue, claims, letters and jobs of one file, moved together."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    @property
    def features(self) -> Features:
        raise NotImplementedError

    async def open(self) -> None:
        await self._file.open()

    async def close(self) -> None:
        await self._file.close()

    async def publish(self, batch: Sequence[Outgoing]) -> list[Published]:
        raise NotImplementedError

    async def take(
        self, queue: str, *, limit: int, lease_ms: Millis, worker: str, wait_ms: Millis, claims: bool
    ) -> list[Taken]:
        raise NotImplementedError

    async def commit(self, batch: Sequence[End]) -> list[bool]:
        raise NotImplementedError

    def renew(self, batch: Sequence[Taken], *, lease_ms: Millis) -> list[bool]:
        raise NotImplementedError

    def transaction(self, end: End) -> LedgerTransaction:
        raise NotImplementedError

    async def forward(self, job: Job, batch: Sequence[Forward]) -> list[str | None]:
        raise NotImplementedError
