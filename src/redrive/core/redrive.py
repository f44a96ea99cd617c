"""The redrive job: its states as a table, its items, and which letter may be sent.

A job is stored before it starts and can be resumed by anyone after a kill at any point:

    staged ─start→ running ─finish→ done
       │              ├─abort→ aborted      (a person, or its canary; can be resumed)
       │              ├─break→ failed       (target gone, store away; can be resumed)
       │              └─pause→ paused       (a person; keeps its letters)
       └─abort→ aborted, ─pause→ paused;  aborted | failed | paused ─start→ running;  paused ─abort→ aborted

Authoritative are the items: an item is `sent` only in the same commit that made the copy durable (embedded), or
after the broker's confirm (elsewhere; a crash between leaves a second copy with the same message id and redrive
id, whose effect idempotency removes).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.refusals import RefusalCode
from redrive.core.units import Millis, UnixMs
from redrive.errors import LeaseLostError

MAX_REDRIVES: Final = 3
"""A letter redriven this often already needs `force`."""


class JobState(StrEnum):
    """Where a job stands."""

    STAGED = "staged"
    RUNNING = "running"
    DONE = "done"
    PAUSED = "paused"
    ABORTED = "aborted"
    FAILED = "failed"


class JobEvent(StrEnum):
    """What can happen to a job."""

    START = "start"
    FINISH = "finish"
    PAUSE = "pause"
    ABORT = "abort"
    BREAK = "break"


JOB_TRANSITIONS: Final[dict[JobState, dict[JobEvent, JobState]]] = {
    JobState.STAGED: {
        JobEvent.START: JobState.RUNNING,
        JobEvent.PAUSE: JobState.PAUSED,
        JobEvent.ABORT: JobState.ABORTED,
        JobEvent.BREAK: JobState.FAILED,
    },
    JobState.RUNNING: {
        JobEvent.START: JobState.RUNNING,
        JobEvent.FINISH: JobState.DONE,
        JobEvent.PAUSE: JobState.PAUSED,
        JobEvent.ABORT: JobState.ABORTED,
        JobEvent.BREAK: JobState.FAILED,
    },
    JobState.DONE: {},
    JobState.PAUSED: {JobEvent.START: JobState.RUNNING, JobEvent.ABORT: JobState.ABORTED},
    JobState.ABORTED: {JobEvent.START: JobState.RUNNING},
    JobState.FAILED: {JobEvent.START: JobState.RUNNING},
}


class ItemState(StrEnum):
    """Where one letter of a job stands."""

    PENDING = "pending"
    SENT = "sent"
    SKIPPED = "skipped"
    """Not sent, and why is on the item (core/refusals.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """How to send. `limit`: at most so many letters, oldest first. `rate_per_s`: None is as fast as it goes.
    `keep_attempts`: continue the old count instead of starting at 1. `target_queue`: None is where it came from.
    `keep_ttl`: keep the message's expiry (default: a redriven copy does not expire by its old deadline). `canary`: so
    many letters go first and are watched for `canary_watch_ms` (core/letters/canary.py); None: all go at once. `edit`:
    a JSON Patch, as text, that changes the body of each copy; the letter keeps the original. `even_if`: what a person
    has said to send all the same (core/refusals.py, `WAIVABLE`).
    """

    limit: int | None = None
    rate_per_s: float | None = None
    keep_attempts: bool = False
    keep_ttl: bool = False
    target_queue: str | None = None
    force: bool = False
    max_redrives: int = MAX_REDRIVES
    canary: int | None = None
    canary_watch_ms: Millis = 60_000
    edit: str | None = None
    even_if: tuple[RefusalCode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCounts:
    """Items by state; `selected` = pending + sent + skipped once staging is complete."""

    selected: int = 0
    pending: int = 0
    sent: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A stored redrive job. `progress`: what its runner keeps from one run to the next, as JSON text. `request_key`
    makes creating it idempotent: the same key returns the same job. `staged_to` is how far the frozen selection has
    been copied into items, `is_staged` that it is complete. `token` fences: only the runner holding it may move the
    job.
    """

    id: str
    selection: Selection
    options: JobOptions = field(default_factory=JobOptions)
    actor: str
    note: str = ""
    request_key: str | None = None
    state: JobState = JobState.STAGED
    is_staged: bool = False
    counts: JobCounts = field(default_factory=JobCounts)
    created_at: UnixMs
    updated_at: UnixMs
    error: str | None = None
    progress: str | None = None
    token: int = 0
    owner: str | None = None
    lease_until: UnixMs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What became of sent letters. The rest of `sent` is on its way, or nobody will ever tell."""

    sent: int = 0
    succeeded: int = 0
    failed_again: int = 0


NO_OUTCOMES: Final = Outcomes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One letter in a job, in order of death (so the order of one key is kept)."""

    job_id: str
    position: int
    letter_id: str
    state: ItemState = ItemState.PENDING
    why: str | None = None


class Candidate(Protocol):
    """What `refusal` looks at: a `Letter` or its summary in a list."""

    @property
    def queue(self) -> str: ...

    @property
    def dead_letter_queue(self) -> str: ...

    @property
    def state(self) -> ReviewState: ...

    @property
    def outstanding_job(self) -> str | None: ...

    @property
    def redrive_count(self) -> int: ...

    @property
    def expires_at(self) -> UnixMs | None: ...


def refusal(letter: Candidate | None, options: JobOptions, *, job_id: str, at: UnixMs | None = None) -> str | None:
    """Why this letter may not be sent by this job, in words for a person; None where it may.

    `letter` None: it is gone, pruned since it was selected. `at`: when the job was created. A letter whose retention
    had ended by then is out, as one that is archived; None does not look at it (the item was staged already).
    """
    if letter is None:
        return "it no longer exists"
    if letter.queue == letter.dead_letter_queue and options.target_queue is None:
        return "it does not say which queue it came from: name one with --to"
    if letter.state not in OPEN_STATES and not (letter.state is ReviewState.REPLAYED and options.force):
        return f"it is {letter.state}: restore it first"
    if letter.outstanding_job not in (None, job_id):
        return f"it is in progress in job {letter.outstanding_job}"
    if at is not None and letter.expires_at is not None and letter.expires_at <= at and not options.force:
        return "its retention has ended: use --force"
    if letter.redrive_count >= options.max_redrives and not options.force:
        return f"it was redriven {letter.redrive_count} times (maximum {options.max_redrives}): use --force"
    return None


def runner_lost(job: Job, consequence: str = "Nothing more is sent by this runner.") -> LeaseLostError:
    """What a runner gets whose `job.token` is no longer the job's."""
    return LeaseLostError(f"Job {job.id} was aborted or taken over. {consequence}")


def sent_note(job_id: str) -> str:
    """The note in a letter's audit trail where a job sent it."""
    return f"redrive job {job_id}"


def pace_ms(options: JobOptions, sent: int, elapsed_ms: Millis) -> Millis:
    """How long to wait before sending the next item so that `rate_per_s` holds from the start of the run."""
    if options.rate_per_s is None:
        return 0
    return max(0, int(sent * 1_000 / options.rate_per_s) - elapsed_ms)
