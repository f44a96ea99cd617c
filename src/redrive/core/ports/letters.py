"""The letter store port: keeps dead letters, and the groups they make."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from redrive.core.letters.ages import Ages
from redrive.core.letters.groups import Group, GroupChange, GroupEntry, GroupState
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.units import UnixMs


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterSummary:
    """A letter without its body and history: what a list shows (a page of 50 stays far below 100 kB)."""

    id: str
    queue: str
    dead_letter_queue: str
    message_id: str
    key: str | None
    tenant: str | None
    message_type: str | None
    reason_code: str
    reason_text: str
    error_type: str | None
    error_code: str | None
    attempt_count: int
    fingerprint: str
    group_title: str
    state: ReviewState
    first_failed_at: UnixMs
    dead_lettered_at: UnixMs
    expires_at: UnixMs | None
    redrive_count: int
    previous: str | None
    outstanding_job: str | None
    body_bytes: int
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Letters oldest first; `cursor` gets the next page, None at the end. A walk sees every letter that existed
    at its start exactly once, whatever arrives meanwhile. Where no index helps, a store may end a page early: short or
    even empty, with a cursor.
    """

    letters: tuple[LetterSummary, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewChange:
    """Move one letter; recorded in its audit trail with who, when and why. Legal moves: core/letters/review.py."""

    letter_id: str
    to: ReviewState
    actor: str
    at: UnixMs
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One change of one letter."""

    letter_id: str
    at: UnixMs
    actor: str
    action: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterStats:
    """Counts over a selection, largest first within each mapping; `oldest_at` is the oldest open letter's death.
    `ages`: how old the selected letters are, where that was asked for. `is_at_least`: not all were looked at, and what
    is counted are the oldest of them.
    """

    total: int
    by_state: dict[str, int]
    by_queue: dict[str, int]
    by_reason: dict[str, int]
    by_group: dict[str, int]
    by_tenant: dict[str, int]
    oldest_at: UnixMs | None
    ages: Ages | None = None
    is_at_least: bool = False


class LetterStore(Protocol):
    """Keeps dead letters."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def put(self, batch: Sequence[Letter]) -> None:
        """Idempotent by id: a letter already there stays as it is (its review state is a person's)."""
        ...

    async def get(self, letter_id: str) -> tuple[Letter, tuple[AuditEntry, ...]] | None: ...

    async def find(self, selection: Selection, *, limit: int, cursor: str | None = None) -> Page:
        """Raises `ConfigurationError` for a cursor that no page had."""
        ...

    async def stats(
        self, selection: Selection, *, top: int = 20, ages_at: UnixMs | None = None, up_to: int | None = None
    ) -> LetterStats:
        """`ages_at`: also the ages, at that time, of all. `up_to`: where there are more letters than that, a store may
        end there and say so; what it keeps counted is exact all the same. Up to there every count is exact, but of what
        no index helps with: there it may end early, as a page does.
        """
        ...

    async def review(self, batch: Sequence[ReviewChange]) -> list[str | None]:
        """None where the move was made and audited; else the reason it was refused (illegal move, no letter)."""
        ...

    async def earlier(self, letter_ids: Sequence[str], *, job_id: str | None) -> dict[str, str]:
        """Of these letters, those that would overtake another: an open letter of the same queue and key that died
        before, and that this job does not hold. By their id, the id of the first such letter. None: no job.
        """
        ...

    async def prune(self, *, now: UnixMs, limit: int, selection: Selection | None = None) -> int:
        """Delete at most `limit` expired letters that are `closed` or `replayed`; open ones never go this way. With a
        `selection`, a person's wish: those it takes, in any state, expired or not, but none a redrive job holds.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPage:
    """Groups, those with the most waiting letters first, then by fingerprint; `cursor` gets the next page, None at the
    end.
    """

    groups: tuple[Group, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HourCount:
    """How many letters of a group died in the hour that began at `at` (a whole hour of UTC)."""

    at: UnixMs
    count: int


class GroupStore(Protocol):
    """Keeps what letters are one problem: counts made in the commit that stores, moves or removes a letter, so that a
    list reads groups and never letters. Made by the letter store of the same file or database, and opened with it.

    A letter that is stored makes or raises its group; where `groups.reopening` says so, it reopens it, audited. A group
    whose letters are all gone stays while a person wrote on it, and goes with its last letter otherwise.
    """

    async def groups(
        self,
        *,
        states: Collection[GroupState] = (),
        queue: str | None = None,
        limit: int,
        cursor: str | None = None,
    ) -> GroupPage:
        """`states`: none means all. `queue`: the consumer queue or the dead-letter queue. Raises `ConfigurationError`
        for a cursor that no page had.
        """
        ...

    async def group(self, fingerprint: str) -> tuple[Group, tuple[GroupEntry, ...]] | None:
        """One group and what was done to it, oldest first."""
        ...

    async def hours(self, fingerprint: str, *, since: UnixMs) -> list[HourCount]:
        """Deaths per hour since then, oldest first; hours without any are left out."""
        ...

    async def change(self, batch: Sequence[GroupChange]) -> list[str | None]:
        """None where the change was made and audited; else the reason it was refused (`groups.changed`, no group)."""
        ...

    async def recount(self) -> int:
        """Make all counts anew from the letters; how many groups were wrong. What people wrote stays."""
        ...
