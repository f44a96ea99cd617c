"""What the operations of the service answer: frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from redrive.core.letters.groups import Group, GroupEntry
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.policy.control import Control, Kind, Pause
from redrive.core.policy.standing import Standing
from redrive.core.ports import AuditEntry, HourCount, LetterStats, LetterSummary
from redrive.core.redrive import NO_OUTCOMES, Job, Outcomes
from redrive.core.units import Millis, UnixMs
from redrive.runtime.redriver import Returned


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """One queue: what waits in it, what is dead of it, whether this app consumes it, and whether a person has paused
    it. `quarantined`: tenants and keys that are set aside.
    """

    queue: str
    ready: int
    scheduled: int
    leased: int
    dead: int
    oldest_ready_at: UnixMs | None
    is_consumed: bool
    paused: Pause | None = None
    quarantined: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """How many letters are, or were, erased: of the store, and of so many archive files. `held`: those that stay
    because a redrive job holds them. `unreadable`: lines of archives that are no letter; they stay. `claims`: their
    idempotency keys that go; `claims_kept`: those that stay until their time is over, so that a late copy of a message
    is not handled a second time.
    """

    letters: int
    held: int
    archived: int
    files: int
    unreadable: int
    claims: int = 0
    claims_kept: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prunable:
    """What a prune removes: these letters, so many. `spared`: those that stay because nobody has decided about them."""

    selection: Selection
    letters: int
    spared: int


Name: TypeAlias = tuple[Kind, str]
"""A tenant or a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """What lies aside of one tenant or key: open letters, and which ones a redrive is to name."""

    kind: Kind
    name: str
    letters: int
    selection: Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The control after the release, and what was released with the letters that lie aside of each."""

    control: Control
    asides: tuple[Aside, ...]


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
    """What a redrive would do with the letters of one queue. `target_exists`: False where the broker does not have the
    queue they would go to, so that nothing could be sent.
    """

    queue: str
    target: str
    send: int
    skip: int
    target_exists: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """One letter that would not be, or was not, sent, and why."""

    letter_id: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """What an edit would change in the body of one letter, line by line as `diff -u` writes it."""

    letter_id: str
    diff: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `redrive` would do now, letter by letter. Nothing was changed.

    `letters` are the first that would be sent, `skipped` the first that would not; `send`, `skip` and `queues` count
    all, and `refusals` by code why not (core/refusals.py). `takes_ms`: how long it lasts at the wanted rate, None where
    it goes as fast as it can. `edits`: the first few.
    """

    send: int
    skip: int
    queues: tuple[QueuePlan, ...]
    letters: tuple[LetterSummary, ...]
    skipped: tuple[Skip, ...]
    missing: tuple[str, ...]
    takes_ms: Millis | None
    edits: tuple[Edited, ...] = ()
    refusals: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A redrive job, the first of the letters it skipped and why, the ids nobody knew, and how many came back within
    the last minute. `refusals`: of all it skipped, how many for each code. `outcomes`: what became of the letters it
    sent; of those without an outcome, `waiting` may still get one, and `unknown` most likely never will.
    """

    job: Job
    skipped: tuple[Skip, ...] = ()
    missing: tuple[str, ...] = ()
    returned: Returned | None = None
    outcomes: Outcomes = NO_OUTCOMES
    waiting: int = 0
    unknown: int = 0
    refusals: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewResult:
    """How many letters moved, how many the rules refused, and the first refused ones with the reason."""

    to: ReviewState
    changed: int
    refused: int
    refusals: tuple[Skip, ...]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedLine:
    """A line of an import whose letter the store cannot hold. Lines are counted from 1."""

    line: int
    letter_id: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many there are. `is_at_least`: not all were looked at."""

    total: int
    is_at_least: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What is going on at one moment. `stats` and `last_hour` are of the letters a person has to decide about;
    `tenants`: of each fair queue, those that wait, the hungriest first.
    """

    at: UnixMs
    queues: tuple[QueueView, ...]
    stats: LetterStats
    last_hour: Count
    groups: tuple[Group, ...]
    tenants: Mapping[str, tuple[Standing, ...]]
    jobs: tuple[Job, ...]
