"""Operations that say what a prune would remove, and what it spares."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.service.letters import LetterOperations
from redrive.service.values import Prunable

DONE_WITH: Final = frozenset({ReviewState.REPLAYED, ReviewState.CLOSED})
"""States of letters that were sent back or decided about."""


class PruningOperations(LetterOperations):
    """On letters that are to go."""

    async def prunable(self, selection: Selection, *, is_archived: bool) -> Prunable:
        """What a prune of this selection removes now. Nothing is changed.

        Letters that nobody has decided about are spared unless they go into an archive, or the selection names their
        state or their ids. What a redrive job holds is counted, and stays all the same.
        """
        if is_archived or selection.states or selection.ids:
            return Prunable(selection=selection, letters=await self._count(selection), spared=0)
        done_with = replace(selection, states=DONE_WITH)
        spared = await self._count(replace(selection, states=OPEN_STATES))
        return Prunable(selection=done_with, letters=await self._count(done_with), spared=spared)

    async def _count(self, selection: Selection) -> int:
        return (await self._app.backend.letters.stats(selection, top=1)).total
