"""A group: the letters of one fingerprint, as one problem that a person works on.

    open ─acknowledge→ acknowledged ─reopen→ open
     │ │                    │ │
     │ └──────ignore────────┘ └─resolve→ resolved ─(a new failure)→ open
     └→ ignored ─reopen, or the end of its bounds→ open

Every move is a person's and is audited, but for two that a new failure makes: out of `resolved`, and out of `ignored`
once what was ignored has passed a bound.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from redrive.core.units import Millis, UnixMs
from redrive.errors import ConfigurationError

REOPENED_BY: Final = "redrive"
"""Actor in the audit trail where a new failure reopened a group."""
MAX_NOTE_CHARS: Final = 4_000
MAX_NAMED: Final = 10
"""Tenants and versions named one by one in a group."""
HOUR_MS: Final[Millis] = 3_600_000


class GroupState(StrEnum):
    """Where people stand with a group."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    IGNORED = "ignored"
    RESOLVED = "resolved"


GROUP_TRANSITIONS: Final[dict[GroupState, frozenset[GroupState]]] = {
    GroupState.OPEN: frozenset({GroupState.ACKNOWLEDGED, GroupState.IGNORED, GroupState.RESOLVED}),
    GroupState.ACKNOWLEDGED: frozenset({GroupState.OPEN, GroupState.IGNORED, GroupState.RESOLVED}),
    GroupState.IGNORED: frozenset({GroupState.OPEN, GroupState.ACKNOWLEDGED, GroupState.RESOLVED}),
    GroupState.RESOLVED: frozenset({GroupState.OPEN}),
}
"""{state: states it may move to}; what is not here is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """How long a group is ignored: until a time, until so many more failures, or until more than so many within
    `per_ms`. All None: until a person says otherwise.
    """

    until: UnixMs | None = None
    more: int | None = None
    rate: int | None = None
    per_ms: Millis | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWork:
    """What people made of a group. `resolved_in`: the version of the app that should have it fixed. `count_then`: the
    letters the group had when this state began.
    """

    state: GroupState = GroupState.OPEN
    note: str = ""
    assignee: str | None = None
    ignored: Ignored | None = None
    resolved_in: str | None = None
    count_then: int = 0
    changed_at: UnixMs | None = None
    changed_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One problem. `count`: all its letters still kept, `waiting` those of them a person has to decide about
    (pending, reviewed). `seen`: every letter it ever had. `redriven`: sends; `returned`: of those, letters that died
    again; `succeeded`: sends whose letter is closed since. `tenants`, `versions`: how many different ones were hit,
    with the largest (name, letters) first.
    """

    fingerprint: str
    title: str
    queue: str
    reason_code: str
    error_type: str | None
    error_code: str | None
    count: int
    waiting: int
    seen: int
    first_seen: UnixMs
    last_seen: UnixMs
    redriven: int = 0
    succeeded: int = 0
    returned: int = 0
    tenants: int = 0
    top_tenants: tuple[tuple[str, int], ...] = ()
    versions: tuple[tuple[str, int], ...] = ()
    work: GroupWork = GroupWork()

    @property
    def success_rate(self) -> float | None:
        """Of the sends whose outcome is known, the part that succeeded, 0 to 1; None where none is known."""
        known = self.succeeded + self.returned
        return None if known == 0 else self.succeeded / known


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChange:
    """Move a group, or write on it; recorded in its audit trail. None leaves a field as it is; `assignee` "": nobody.
    `ignored` goes with `to` IGNORED, `resolved_in` with RESOLVED.
    """

    fingerprint: str
    actor: str
    at: UnixMs
    to: GroupState | None = None
    note: str | None = None
    assignee: str | None = None
    ignored: Ignored | None = None
    resolved_in: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEntry:
    """One change of one group, for its audit trail."""

    fingerprint: str
    at: UnixMs
    actor: str
    action: str
    note: str = ""


def hour_of(at: UnixMs) -> UnixMs:
    """The whole hour of UTC this instant lies in."""
    return at - at % HOUR_MS


def action_of(change: GroupChange) -> str:
    """What the audit trail calls it: the new state, "assigned" or "noted"."""
    if change.to is not None:
        return str(change.to)
    return "assigned" if change.assignee is not None else "noted"


_CURSOR: Final = re.compile(r"(\d{1,18})-(\S{1,200})", re.ASCII)


def cursor_after(group: Group) -> str:
    """The cursor of a page that ended with this group."""
    return f"{group.waiting}-{group.fingerprint}"


def place_after(cursor: str) -> tuple[int, str]:
    """(minus the letters waiting, fingerprint) of the group that ended the page before. Raises `ConfigurationError`
    for what `cursor_after` did not write.
    """
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise ConfigurationError(
            f"Cursor {cursor!r:.60} is not one this store gave out. Nothing was read.", hint="Start without a cursor."
        )
    return -int(found[1]), found[2]


def move_refusal(state: GroupState, to: GroupState) -> str | None:
    """Why the move is refused, for a person; None where it is legal."""
    if state is to:
        return f"the group is {state} already"
    if to not in GROUP_TRANSITIONS[state]:
        return f"a {state} group cannot become {to}: reopen it first"
    return None


def changed(work: GroupWork, change: GroupChange, *, seen: int) -> GroupWork | str:
    """What the change makes of it, or why it is refused, for a person. `seen`: letters the group had by now."""
    if change.to is not None:
        why = move_refusal(work.state, change.to)
        if why is not None:
            return why
    state = work.state if change.to is None else change.to
    moved = change.to is not None
    return GroupWork(
        state=state,
        note=work.note if change.note is None else change.note[:MAX_NOTE_CHARS],
        assignee=work.assignee if change.assignee is None else change.assignee or None,
        ignored=(change.ignored or Ignored()) if change.to is GroupState.IGNORED else None if moved else work.ignored,
        resolved_in=change.resolved_in if change.to is GroupState.RESOLVED else None if moved else work.resolved_in,
        count_then=seen if moved else work.count_then,
        changed_at=change.at,
        changed_by=change.actor,
    )


def reopening(work: GroupWork, *, version: str | None, at: UnixMs, seen: int, lately: int) -> str | None:
    """Why a new failure reopens the group, for its audit trail; None where it stays as it is.

    `version`: of the app that failed. `seen`: letters the group ever had, this one included; `lately`: those of them
    that died within the `per_ms` of what is ignored, this one included.
    """
    if work.state is GroupState.RESOLVED:
        if work.resolved_in is not None and version is not None and _is_before(version, work.resolved_in):
            return None
        return f"it failed again in {version}" if version is not None else "it failed again"
    if work.state is GroupState.IGNORED and work.ignored is not None:
        bound = work.ignored
        if bound.until is not None and at >= bound.until:
            return "the time it was ignored for is over"
        if bound.more is not None and seen - work.count_then > bound.more:
            return f"it failed more than {bound.more} times since it was ignored"
        if bound.rate is not None and bound.per_ms is not None and lately > bound.rate:
            return f"it failed more than {bound.rate} times within {bound.per_ms} ms"
    return None


_PIECE: Final = re.compile(r"\d+|[a-z]+", re.ASCII | re.IGNORECASE)


def _is_before(version: str, other: str) -> bool:
    """Whether a version comes before another: numbers by value, a number after letters ("1.2rc1" before "1.2")."""
    return _order(version) < _order(other)


def _order(version: str) -> tuple[tuple[int, int, str], ...]:
    pieces = _PIECE.findall(version[:200].removeprefix("v"))
    return (*((2, int(piece), "") if piece.isdigit() else (0, 0, piece.lower()) for piece in pieces), (1, 0, ""))
