"""What the operations of the service answer: frozen values."""

from __future__ import annotations

from dataclasses import dataclass

from redrive.core.letters.groups import Group, GroupEntry
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.ports import AuditEntry, HourCount, LetterSummary
from redrive.core.redrive import Job
from redrive.core.units import Millis, UnixMs
from redrive.runtime.redriver import Returned


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """One queue: what waits in it, what is dead of it, and whether this app consumes it."""

    queue: str
    ready: int
    scheduled: int
    leased: int
    dead: int
    oldest_ready_at: UnixMs | None
    is_consumed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What became of published messages. `duplicates` and `conflicts` enqueued nothing."""

    queue: str
    published: int
    duplicates: int = 0
    conflicts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterView:
    """One letter with its audit trail, oldest first."""

    letter: Letter
    audit: tuple[AuditEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCount:
    """Letters that are one problem. `count` is within the selection; the rest is of its oldest letter."""

    fingerprint: str
    title: str
    count: int
    queue: str
    reason_code: str
    first_failed_at: UnixMs


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One group with its audit trail, oldest first, and its deaths by the hour, oldest first."""

    group: Group
    audit: tuple[GroupEntry, ...]
    hours: tuple[HourCount, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlan:
    """What a redrive would do with the letters of one queue."""

    queue: str
    target: str
    send: int
    skip: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """One letter that would not be, or was not, sent, and why."""

    letter_id: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `redrive` would do now, letter by letter. Nothing was changed.

    `letters` are the first that would be sent, `skipped` the first that would not; `send`, `skip` and `queues` count
    all. `takes_ms`: how long it lasts at the wanted rate, None where it goes as fast as it can.
    """

    send: int
    skip: int
    queues: tuple[QueuePlan, ...]
    letters: tuple[LetterSummary, ...]
    skipped: tuple[Skip, ...]
    missing: tuple[str, ...]
    takes_ms: Millis | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A redrive job, the first of the letters it skipped and why, the ids nobody knew, and how many came back."""

    job: Job
    skipped: tuple[Skip, ...] = ()
    missing: tuple[str, ...] = ()
    returned: Returned | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewResult:
    """How many letters moved, how many the rules refused, and the first refused ones with the reason."""

    to: ReviewState
    changed: int
    refused: int
    refusals: tuple[Skip, ...]
    missing: tuple[str, ...] = ()
