"""Operations that look at letters and their groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from redrive.core.letters.selection import Selection
from redrive.core.ports import LetterStats, Page
from redrive.core.units import Millis
from redrive.errors import ConfigurationError, NotFoundError
from redrive.service.operations import MAX_PAGE, SEE_LETTERS, Operations
from redrive.service.values import Count, GroupCount, LetterView

LAST_HOUR_MS: Final[Millis] = 3_600_000
COUNTED: Final = 10_000
"""Counts that a person reads are exact up to here; then they say "at least"."""


class LookingOperations(Operations):
    """On letters, changing nothing."""

    async def letters(self, selection: Selection, *, limit: int = 50, cursor: str | None = None) -> Page:
        """One page of letters, oldest first. Looking changes nothing. Where no index helps a page may be short, or
        empty, and still have a cursor.
        """
        if not 1 <= limit <= MAX_PAGE:
            raise ConfigurationError(f"limit is {limit}: a page holds 1 to {MAX_PAGE} letters.")
        return await self._app.backend.letters.find(selection, limit=limit, cursor=cursor)

    async def letter(self, letter_id: str) -> LetterView:
        """One letter with everything. Raises `NotFoundError`."""
        found = await self._app.backend.letters.get(letter_id)
        if found is None:
            raise NotFoundError(f'No dead letter has the id "{letter_id}".', hint=SEE_LETTERS)
        return LetterView(letter=found[0], audit=found[1])

    async def stats(self, selection: Selection, *, top: int = 20, up_to: int | None = None) -> LetterStats:
        """Counts over a selection. `up_to`: exact up to there, as `LetterStore.stats` says; None: exact."""
        return await self._app.backend.letters.stats(selection, top=top, up_to=up_to)

    async def died_last_hour(self, selection: Selection) -> Count:
        """How many of these letters died within the last hour, exact to `COUNTED`."""
        since = max(self._app.clock.now() - LAST_HOUR_MS, selection.since or 0)
        stats = await self.stats(replace(selection, since=since), top=1, up_to=COUNTED)
        return Count(total=stats.total, is_at_least=stats.is_at_least)

    async def group_counts(
        self, selection: Selection, *, limit: int = 20, up_to: int | None = None
    ) -> tuple[GroupCount, ...]:
        """The problems behind these letters, the largest first. `up_to`: see `stats`."""
        stats = await self.stats(selection, top=limit, up_to=up_to)
        groups = [await self._count_of(selection, *entry) for entry in stats.by_group.items()]
        return tuple(group for group in groups if group is not None)

    async def _count_of(self, selection: Selection, fingerprint: str, count: int) -> GroupCount | None:
        of_group = replace(selection, fingerprint=fingerprint)
        async for oldest in self._selected(of_group, limit=1, on_count=None):
            return GroupCount(
                fingerprint=fingerprint,
                title=oldest.group_title or oldest.reason_text,
                count=count,
                queue=oldest.queue,
                reason_code=oldest.reason_code,
                first_failed_at=oldest.first_failed_at,
            )
        return None
