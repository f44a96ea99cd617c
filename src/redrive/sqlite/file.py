"""SqliteFile: one file, its connections and threads."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from redrive.core.ports import Clock

Durability = Literal["full", "normal"]


class SqliteFile:
    """One redrive file, shared by all faces of it in this process."""

    def __init__(
        self, path: str | Path, *, clock: Clock, durability: Durability = "full", lock_timeout_ms: int = 5_000
    ) -> None:
        self.path = Path(path)
        self.clock = clock
        self.durability = durability
        self.lock_timeout_ms = lock_timeout_ms

    async def open(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError
