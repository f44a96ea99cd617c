"""Letter: the dead letter record."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from redrive.core.message import Message
from redrive.core.settlement import Reason
from redrive.core.units import Millis, UnixMs


class AttemptOutcome(StrEnum):
    """How one start of a handler ended, as kept in the history (success ends the history)."""

    FAILED = "failed"
    INTERRUPTED = "interrupted"
    """The worker died or lost its lease; whether the effect happened is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One entry of a message's history. `traceback` is a tail, cut at a character border."""

    attempt: int
    outcome: AttemptOutcome
    at: UnixMs
    duration_ms: Millis | None = None
    error_code: str | None = None
    error_type: str | None = None
    error_text: str | None = None
    traceback: str | None = None
    worker: str | None = None
    next_delay_ms: Millis | None = None


class ReviewState(StrEnum):
    """Where a person stands with a letter. The legal moves are in `redrive.core.letters.review`."""

    PENDING = "pending"
    REVIEWED = "reviewed"
    REPLAYED = "replayed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One dead letter: the whole original message with its exact bytes, and why it lies here.

    `id` is deterministic (see `letter_id`), so storing twice is storing once. `system` is the app's name, `queue`
    the consumer queue, `dead_letter_queue` the name people look under. `previous` links to the letter this copy
    was redriven from; `first_failed_at` and `redrive_count` carry over from it. `outstanding_job`: the redrive
    job that holds this letter now, None where none does (one outstanding redrive per letter). `version`: of the app
    whose worker gave the message up, None where it has none.
    """

    id: str
    system: str
    queue: str
    dead_letter_queue: str
    message: Message
    reason: Reason
    error_type: str | None = None
    error_code: str | None = None
    attempt_count: int
    history: tuple[Attempt, ...] = ()
    fingerprint: str = ""
    group_title: str = ""
    state: ReviewState = ReviewState.PENDING
    first_failed_at: UnixMs
    dead_lettered_at: UnixMs
    expires_at: UnixMs | None = None
    redrive_count: int = 0
    previous: str | None = None
    outstanding_job: str | None = None
    version: str | None = None


COLLECTED_ID: Final = "dl_x"
"""How the id of a letter begins that was collected: no consumer of redrive's had its message in hand, or has its key on
record. No other letter's does.
"""


def letter_id(
    queue: str, *, key: str | None, cycle: int, message_id: str, position: str, published_at: UnixMs = 0
) -> str:
    """The id a dead letter of this message always gets.

    With a key: (queue, key, cycle, when it was sent), so a crash between storing and settling stores the same letter
    again. The cycle alone is not enough: it starts at 0 again once the key's record is gone, and a letter that a
    person has not closed may be older than that.
    Without: (queue, message id, position), `position` being the broker's own mark for this copy, so that two
    malformed messages never overwrite each other.
    """
    if key is not None:
        parts: tuple[str, ...] = ("key", queue, key, str(cycle), str(published_at))
    else:
        parts = ("copy", queue, message_id, position)
    digest = hashlib.sha256("\x00".join(f"{len(part)}:{part}" for part in parts).encode("utf-8", "surrogatepass"))
    return f"dl_{digest.hexdigest()[:24]}"
