"""The overview: what is going on, in a few bounded reads; what `redrive top` shows again and again."""

from __future__ import annotations

from typing import Final

from redrive.core.letters.groups import GroupState
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.policy.standing import Standing, starved
from redrive.service.groups import GroupOperations
from redrive.service.looking import LookingOperations
from redrive.service.queues import QueueOperations
from redrive.service.redriving import RedriveOperations
from redrive.service.values import Overview

MAX_TOP: Final = 50
"""Rows of one list."""
MAX_FAIR: Final = 5
"""Fair queues whose tenants are read."""


class OverviewOperations(QueueOperations, LookingOperations, GroupOperations, RedriveOperations):
    """On everything at once."""

    async def overview(self, *, top: int = 10) -> Overview:
        """What waits and what is dead, the largest problems, who waits and who has most dead letters, the latest
        redrive jobs: `top` of each. Looking changes nothing.
        """
        top = min(max(1, top), MAX_TOP)
        dead = Selection(states=OPEN_STATES)
        fair = list(self._app.fair)[:MAX_FAIR] if self._app.backend.standings is not None else []
        waiting: dict[str, tuple[Standing, ...]] = {}
        for queue in fair:
            waiting[queue] = starved(await self.standings(queue), top=top)
        return Overview(
            at=self._app.clock.now(),
            queues=await self.queues(),
            stats=await self.stats(dead, top=top),
            last_hour=await self.died_last_hour(dead),
            groups=(await self.groups(states=(GroupState.OPEN, GroupState.ACKNOWLEDGED), limit=top)).groups,
            tenants=waiting,
            jobs=await self.jobs(limit=top),
        )
