"""What every operation of the service is made with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, TypeAlias

from redrive.core.letters.selection import Selection
from redrive.core.ports import LetterSummary
from redrive.errors import ConfigurationError
from redrive.runtime.app import Redrive

PAGE: Final = 500
MAX_PAGE: Final = 1_000
MAX_IDS: Final = 10_000
SHOWN: Final = 50
"""Examples named one by one in a result; the numbers beside them are complete."""
Counted: TypeAlias = Callable[[int], None]
"""Called with the number of letters done so far."""
SEE_LETTERS: Final = "See: redrive dlq list"


class Operations:
    """What all operations share: the open app, and walks over its letters."""

    def __init__(self, app: Redrive) -> None:
        self._app = app

    def _dead_letter_names(self) -> set[str]:
        return {consumer.dead_letter_queue for consumer in self._app.consumers.values()}

    async def _selected(
        self, selection: Selection, *, limit: int | None, on_count: Counted | None
    ) -> AsyncIterator[LetterSummary]:
        async for page in self._selected_pages(selection, limit=limit, on_count=on_count):
            for letter in page:
                yield letter

    async def _selected_pages(
        self, selection: Selection, *, limit: int | None, on_count: Counted | None
    ) -> AsyncIterator[Sequence[LetterSummary]]:
        cursor, count = None, 0
        while limit is None or count < limit:
            size = PAGE if limit is None else min(PAGE, limit - count)
            page = await self._app.backend.letters.find(selection, limit=size, cursor=cursor)
            yield page.letters
            count += len(page.letters)
            cursor = page.cursor
            if on_count is not None:
                on_count(count)
            if cursor is None:
                return

    async def _missing(self, ids: Sequence[str]) -> tuple[str, ...]:
        if len(ids) > MAX_IDS:
            raise ConfigurationError(f"{len(ids)} ids are too many at once (maximum {MAX_IDS}). Use a filter.")
        return tuple([id_ for id_ in dict.fromkeys(ids) if await self._app.backend.letters.get(id_) is None])
