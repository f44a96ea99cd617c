"""Operations on groups: the problems that letters are, and what people make of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from redrive.core.letters.groups import HOUR_MS, Group, GroupChange, GroupState, Ignored
from redrive.core.ports import GroupPage
from redrive.core.units import Millis
from redrive.errors import ConfigurationError, NotFoundError, TransitionError
from redrive.service.operations import MAX_PAGE, Operations
from redrive.service.values import GroupView

TIMELINE_MS: Final[Millis] = 7 * 24 * HOUR_MS
"""How far back the hours of a group are shown."""


class GroupOperations(Operations):
    """On groups."""

    async def groups(
        self,
        *,
        states: Collection[GroupState] = (),
        queue: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> GroupPage:
        """One page of groups, those with the most waiting letters first. `states`: none means all."""
        if not 1 <= limit <= MAX_PAGE:
            raise ConfigurationError(f"limit is {limit}: a page holds 1 to {MAX_PAGE} groups.")
        return await self._app.backend.groups.groups(states=states, queue=queue, limit=limit, cursor=cursor)

    async def group(self, fingerprint: str) -> GroupView:
        """One group with its audit trail and its deaths by the hour. Raises `NotFoundError`."""
        found = await self._app.backend.groups.group(fingerprint)
        if found is None:
            raise NotFoundError(f'No dead letter is of a group "{fingerprint}".', hint="See: redrive dlq groups")
        since = self._app.clock.now() - TIMELINE_MS
        hours = await self._app.backend.groups.hours(fingerprint, since=since)
        return GroupView(group=found[0], audit=found[1], hours=tuple(hours))

    async def change_group(
        self,
        fingerprint: str,
        *,
        actor: str,
        to: GroupState | None = None,
        note: str | None = None,
        assignee: str | None = None,
        ignored: Ignored | None = None,
        resolved_in: str | None = None,
    ) -> Group:
        """Move a group or write on it, audited; the group as it is then. None leaves a field as it is.

        Raises `NotFoundError` where there is none, `TransitionError` where the move is not legal; nothing was changed.
        """
        await self.group(fingerprint)
        change = GroupChange(
            fingerprint=fingerprint,
            actor=actor,
            at=self._app.clock.now(),
            to=to,
            note=note,
            assignee=assignee,
            ignored=ignored,
            resolved_in=resolved_in,
        )
        [why] = await self._app.backend.groups.change([change])
        if why is not None:
            raise TransitionError(f"Nothing was changed: {why}.")
        changed = (await self.group(fingerprint)).group
        self._app.events.emit(
            "group.changed", group=fingerprint, state=str(changed.work.state), actor=actor, note=note or ""
        )
        return changed

    async def recount_groups(self) -> int:
        """Make the counts of all groups anew from their letters; of how many they were wrong."""
        return await self._app.backend.groups.recount()
