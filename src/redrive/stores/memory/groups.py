"""Groups in memory, counted as letters come, move and go. Made by the letter store whose letters they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from redrive.core.letters.groups import (
    MAX_NAMED,
    REOPENED_BY,
    Group,
    GroupChange,
    GroupEntry,
    GroupState,
    GroupWork,
    action_of,
    changed,
    cursor_after,
    hour_of,
    place_after,
    reopening,
)
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.selection import OPEN_STATES
from redrive.core.ports import GroupPage, HourCount
from redrive.core.units import UnixMs

NO_NAME: Final = "-"
"""A letter without a tenant counts as this one."""


@dataclass(slots=True, kw_only=True)
class _Kept:
    """One group. `first`: a letter of it, for what all of them have in common."""

    first: Letter
    seen: int = 0
    states: Counter[ReviewState] = field(default_factory=Counter)
    hours: Counter[UnixMs] = field(default_factory=Counter)
    tenants: Counter[str] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)
    first_seen: UnixMs
    last_seen: UnixMs
    deaths: list[UnixMs] = field(default_factory=list)
    redriven: int = 0
    succeeded: int = 0
    returned: int = 0
    work: GroupWork = field(default_factory=GroupWork)
    trail: tuple[GroupEntry, ...] = ()


class MemoryGroupStore:
    """A `GroupStore` in memory."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    # ------------------------------------------------------------------------------------------- the port

    async def groups(
        self, *, states: Collection[GroupState] = (), queue: str | None = None, limit: int, cursor: str | None = None
    ) -> GroupPage:
        """See `GroupStore.groups`."""
        after = None if cursor is None else place_after(cursor)
        found = sorted(
            (
                (-group.waiting, group.fingerprint, group)
                for kept in self._kept.values()
                if queue in (None, kept.first.queue, kept.first.dead_letter_queue)
                and (not states or kept.work.state in states)
                for group in (_group(kept),)
            ),
            key=lambda each: each[:2],
        )
        later = [group for waiting, fingerprint, group in found if after is None or (waiting, fingerprint) > after]
        page = later[:limit]
        return GroupPage(groups=tuple(page), cursor=cursor_after(page[-1]) if len(later) > limit and page else None)

    async def group(self, fingerprint: str) -> tuple[Group, tuple[GroupEntry, ...]] | None:
        """See `GroupStore.group`."""
        kept = self._kept.get(fingerprint)
        return None if kept is None else (_group(kept), kept.trail)

    async def hours(self, fingerprint: str, *, since: UnixMs) -> list[HourCount]:
        """See `GroupStore.hours`."""
        kept = self._kept.get(fingerprint)
        hours = {} if kept is None else kept.hours
        return [HourCount(at=at, count=hours[at]) for at in sorted(hours) if at >= hour_of(since)]

    async def change(self, batch: Sequence[GroupChange]) -> list[str | None]:
        """See `GroupStore.change`."""
        return [self._change_one(change) for change in batch]

    async def recount(self) -> int:
        """See `GroupStore.recount`. In memory nothing can have gone wrong."""
        return 0

    # ------------------------------------------------------------------------------------------- told by the letters

    def arrived(self, letter: Letter, *, previous: str | None) -> None:
        """A letter was stored. `previous`: the group of the letter that it names as its previous one."""
        died = letter.dead_lettered_at
        kept = self._kept.get(letter.fingerprint)
        if kept is None:
            kept = _Kept(first=letter, first_seen=died, last_seen=died)
            self._kept[letter.fingerprint] = kept
        kept.seen += 1
        kept.states[letter.state] += 1
        kept.hours[hour_of(died)] += 1
        kept.deaths.append(died)
        kept.tenants[letter.message.tenant or NO_NAME] += 1
        if letter.version is not None:
            kept.versions[letter.version] += 1
        kept.first_seen, kept.last_seen = min(kept.first_seen, died), max(kept.last_seen, died)
        if previous is not None and previous in self._kept:
            self._kept[previous].returned += 1
        self._reopen(kept, letter)

    def moved(self, letter: Letter, steps: Sequence[ReviewState], *, has_returned: bool) -> None:
        """A letter went through these states. `has_returned`: another letter names it as its previous one."""
        kept = self._kept[letter.fingerprint]
        kept.states[letter.state] -= 1
        kept.states[steps[-1]] += 1
        kept.redriven += steps.count(ReviewState.REPLAYED)
        was_sent = letter.state is ReviewState.REPLAYED and steps[-1] is ReviewState.CLOSED
        kept.succeeded += was_sent and not has_returned

    def removed(self, letter: Letter) -> None:
        """A letter is gone. Its group goes with its last one, unless somebody wrote on it."""
        kept = self._kept[letter.fingerprint]
        kept.states[letter.state] -= 1
        kept.tenants[letter.message.tenant or NO_NAME] -= 1
        if letter.version is not None:
            kept.versions[letter.version] -= 1
        if not kept.states.total() and not kept.trail:
            del self._kept[letter.fingerprint]

    def _reopen(self, kept: _Kept, letter: Letter) -> None:
        bound = kept.work.ignored
        since = letter.dead_lettered_at - (0 if bound is None or bound.per_ms is None else bound.per_ms)
        lately = sum(died > since for died in kept.deaths)
        why = reopening(kept.work, version=letter.version, at=letter.dead_lettered_at, seen=kept.seen, lately=lately)
        if why is None:
            return
        change = GroupChange(
            fingerprint=letter.fingerprint, actor=REOPENED_BY, at=letter.dead_lettered_at, to=GroupState.OPEN
        )
        self._write(kept, change, note=why)

    def _change_one(self, change: GroupChange) -> str | None:
        kept = self._kept.get(change.fingerprint)
        if kept is None:
            return f'there is no group "{change.fingerprint}"'
        return self._write(kept, change, note=change.note or "")

    def _write(self, kept: _Kept, change: GroupChange, *, note: str) -> str | None:
        work = changed(kept.work, change, seen=kept.seen)
        if isinstance(work, str):
            return work
        kept.work = work
        kept.trail += (
            GroupEntry(
                fingerprint=change.fingerprint, at=change.at, actor=change.actor, action=action_of(change), note=note
            ),
        )
        return None


def _group(kept: _Kept) -> Group:
    first = kept.first
    return Group(
        fingerprint=first.fingerprint,
        title=first.group_title or first.reason.text,
        queue=first.queue,
        reason_code=first.reason.code,
        error_type=first.error_type,
        error_code=first.error_code,
        count=kept.states.total(),
        waiting=sum(kept.states[state] for state in OPEN_STATES),
        seen=kept.seen,
        first_seen=kept.first_seen,
        last_seen=kept.last_seen,
        redriven=kept.redriven,
        succeeded=kept.succeeded,
        returned=kept.returned,
        tenants=sum(count > 0 for count in kept.tenants.values()),
        top_tenants=_largest(kept.tenants.items()),
        versions=_largest(kept.versions.items()),
        work=kept.work,
    )


def _largest(counted: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    there = [(name, count) for name, count in counted if count > 0]
    return tuple(sorted(there, key=lambda each: (-each[1], each[0]))[:MAX_NAMED])
