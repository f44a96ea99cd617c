"""The four ends of a delivery. Always written with the module's name: `settlement.Retry(due_at=…)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from redrive.core.units import UnixMs


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why: `code` for machines (UPPER_SNAKE), `text` for a person, never empty."""

    code: str
    text: str

    def __post_init__(self) -> None:
        if not self.code or not self.text.strip():
            raise ValueError(f"a reason needs a code and a text, got {self.code!r} and {self.text!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Done: the message leaves the queue. `reason` is set where the handler did not run (a duplicate)."""

    reason: Reason | None = None


ACK: Final = Ack()


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The attempt failed and counts; hand the message out again at `due_at`, never before.

    `body`, where set, replaces the stored body (the attempt number in it was rewritten); the first body is kept.
    """

    due_at: UnixMs
    reason: Reason
    body: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    """Hand the message out again at `due_at`. Costs no attempt: shutdown, in-progress elsewhere, `Requeue`."""

    due_at: UnixMs
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Given up: the message becomes a letter with this reason and leaves the queue."""

    reason: Reason


Settlement: TypeAlias = Ack | Retry | Requeue | DeadLetter
