"""Operations that review letters, take them out and in, and remove them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Final

from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.ports import ReviewChange
from redrive.core.units import UnixMs
from redrive.runtime.archive import Archive
from redrive.service.operations import PAGE, SHOWN, Counted, Operations
from redrive.service.values import ReviewResult, Skip

REMOVE_BATCH: Final = 100
"""Whole letters held in memory at once."""


class LetterOperations(Operations):
    """On letters, moving them."""

    async def review(
        self,
        selection: Selection,
        to: ReviewState,
        *,
        actor: str,
        note: str = "",
        limit: int | None = None,
        on_count: Counted | None = None,
    ) -> ReviewResult:
        """Move these letters to a review state; each change is audited with who, when and why.

        Letters already there are left alone; an illegal move is refused with the reason and changes nothing.
        """
        changed, refused = 0, 0
        refusals: list[Skip] = []
        batch: list[str] = []

        async def flush() -> None:
            nonlocal changed, refused
            answers = await self._move(batch, to, actor=actor, note=note)
            changed += answers.count(None)
            refused += len(batch) - answers.count(None)
            refusals.extend(Skip(letter_id=id_, why=why) for id_, why in zip(batch, answers, strict=True) if why)
            del refusals[SHOWN:], batch[:]

        async for letter in self._selected(selection, limit=limit, on_count=on_count):
            if letter.state is not to:
                batch.append(letter.id)
            if len(batch) >= PAGE:
                await flush()
        await flush()
        missing = await self._missing(selection.ids)
        return ReviewResult(to=to, changed=changed, refused=refused, refusals=tuple(refusals), missing=missing)

    async def _move(self, letter_ids: Sequence[str], to: ReviewState, *, actor: str, note: str) -> list[str | None]:
        now = self._app.clock.now()
        changes = [ReviewChange(letter_id=id_, to=to, actor=actor, at=now, note=note) for id_ in letter_ids]
        answers = await self._app.backend.letters.review(changes)
        for letter_id, why in zip(letter_ids, answers, strict=True):
            if why is None:
                self._app.events.emit("letter.reviewed", letter_id=letter_id, to=str(to), actor=actor, note=note)
        if to is ReviewState.CLOSED:
            moved = [letter_id for letter_id, why in zip(letter_ids, answers, strict=True) if why is None]
            await self._drop_entries(moved)
        return answers

    async def _drop_entries(self, letter_ids: Sequence[str]) -> None:
        """What people closed leaves the broker's own dead-letter queue, too."""
        drop = self._app.backend.drop_entries
        if drop is None:
            return
        for start in range(0, len(letter_ids), REMOVE_BATCH):
            found = [await self._app.backend.letters.get(id_) for id_ in letter_ids[start : start + REMOVE_BATCH]]
            await drop([each[0] for each in found if each is not None])

    async def whole(
        self, selection: Selection, *, limit: int | None = None, on_count: Counted | None = None
    ) -> AsyncIterator[Letter]:
        """These letters with everything in them, oldest first. Looking changes nothing."""
        async for summary in self._selected(selection, limit=limit, on_count=on_count):
            found = await self._app.backend.letters.get(summary.id)
            if found is not None:
                yield found[0]

    async def take_in(self, letters: Sequence[Letter]) -> int:
        """Store letters that were exported; how many the store did not have yet. Those it has stay as they are.

        An open letter whose time is over gets it once more: it was brought back for somebody to look at.
        """
        ids = tuple(letter.id for letter in letters)
        page = await self._app.backend.letters.find(Selection(ids=ids), limit=max(1, len(ids)))
        now = self._app.clock.now()
        fresh = [replace(letter, outstanding_job=None, expires_at=renewed(letter, now)) for letter in letters]
        await self._app.backend.letters.put(fresh)
        return len(set(ids)) - len(page.letters)

    async def remove(
        self,
        selection: Selection,
        *,
        actor: str,
        note: str = "",
        archive: Archive | None = None,
        limit: int | None = None,
        on_count: Counted | None = None,
    ) -> int:
        """Remove these letters for good; how many went. Each is in the archive, on disk, before it goes. Killed in
        between, some went and the archive has more than those. What a redrive job holds stays.
        """
        removed = 0
        batch: list[Letter] = []

        async def flush() -> int:
            if archive is not None:
                await asyncio.to_thread(archive.write, batch)
            # Before the letters: an entry whose letter is gone would never be looked for again.
            if self._app.backend.drop_entries is not None:
                await self._app.backend.drop_entries(batch)
            these = replace(selection, ids=tuple(letter.id for letter in batch))
            gone = await self._app.backend.letters.prune(now=self._app.clock.now(), limit=len(batch), selection=these)
            batch.clear()
            return gone

        async for letter in self.whole(selection, limit=limit, on_count=on_count):
            if letter.outstanding_job is None:
                batch.append(letter)
            if len(batch) >= REMOVE_BATCH:
                removed += await flush()
        removed += await flush() if batch else 0
        if removed:
            self._app.events.emit("letters.removed", count=removed, actor=actor, note=note)
        return removed


def renewed(letter: Letter, now: UnixMs) -> UnixMs | None:
    """When a letter that comes back now may go."""
    expires_at = letter.expires_at
    if expires_at is None or expires_at > now or letter.state not in OPEN_STATES:
        return expires_at
    return now + max(0, expires_at - letter.dead_lettered_at)
