"""Writes and answers in memory."""

from __future__ import annotations

from redrive.core.audit import Answer, Write, WritePage, WriteQuery, after_cursor, page_of
from redrive.core.units import UnixMs


class MemoryRequestStore:
    """A `RequestStore` in memory."""

    def __init__(self) -> None:
        self._writes: dict[str, Write] = {}
        self._answers: dict[str, tuple[UnixMs, Answer]] = {}

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close; what is kept stays."""

    async def put(self, write: Write) -> None:
        """See `RequestStore.put`."""
        self._writes[write.id] = write

    async def writes(self, query: WriteQuery, *, limit: int, cursor: str | None = None) -> WritePage:
        """See `RequestStore.writes`."""
        below = after_cursor(cursor)
        newest = (self._writes[id_] for id_ in sorted(self._writes, reverse=True) if below is None or id_ < below)
        found: list[Write] = []
        for write in newest:
            if query.takes(write):
                found.append(write)
            if len(found) > limit:
                break
        return page_of(found, limit)

    async def keep(self, key: str, answer: Answer, *, expires_at: UnixMs) -> None:
        """See `RequestStore.keep`."""
        self._answers[key] = (expires_at, answer)

    async def answer(self, key: str, *, now: UnixMs) -> Answer | None:
        """See `RequestStore.answer`."""
        expires_at, answer = self._answers.get(key, (now, None))
        return answer if now < expires_at else None

    async def prune(self, *, now: UnixMs, before: UnixMs, limit: int) -> int:
        """See `RequestStore.prune`."""
        over = [key for key, (expires_at, _) in self._answers.items() if expires_at <= now][:limit]
        old = [id_ for id_, write in self._writes.items() if write.at < before][:limit]
        for key in over:
            del self._answers[key]
        for id_ in old:
            del self._writes[id_]
        return len(over) + len(old)
