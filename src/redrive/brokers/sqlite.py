"""SqliteBroker: the Broker port on one SQLite file."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.core.message import Message
from redrive.core.ports import Depth, Features, Lease, Outgoing, Published, Received, Settle
from redrive.core.units import Millis
from redrive.sqlite.file import SqliteFile


class SqliteBroker:
    """Messages in one SQLite file."""

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

    async def receive(self, queue: str, *, limit: int, lease_ms: Millis, worker: str, wait_ms: Millis) -> list[Received]:
        raise NotImplementedError

    async def settle(self, batch: Sequence[Settle]) -> list[bool]:
        raise NotImplementedError

    def renew(self, batch: Sequence[Lease], *, lease_ms: Millis) -> list[bool]:
        raise NotImplementedError

    async def depths(self) -> list[Depth]:
        raise NotImplementedError

    async def peek(self, queue: str, *, limit: int) -> list[Message]:
        raise NotImplementedError
