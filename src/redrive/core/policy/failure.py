"""What went wrong in an attempt, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from redrive.core.units import Millis


class FailureKind(StrEnum):
    """Whether another attempt can help."""

    TRANSIENT = "transient"
    PERMANENT = "permanent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt failed.

    `code` is for machines (UPPER_SNAKE: TIMEOUT, ECONNREFUSED, HTTP_503, VALIDATION_FAILED, …), `text` for a person,
    never empty. `error_type` is the exception's class ("httpx.ReadTimeout"; builtins without their module), None
    where there was none. `retry_after_ms`: the other side said how long to stay away.
    """

    kind: FailureKind
    code: str
    text: str
    error_type: str | None = None
    retry_after_ms: Millis | None = None

    @property
    def is_retryable(self) -> bool:
        """Whether the failure is transient."""
        return self.kind is FailureKind.TRANSIENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of a catalogue: what a failure known by name or number is. `source` says where that is laid down."""

    kind: FailureKind
    code: str
    source: str


def transient(code: str, source: str) -> Entry:
    """A row for a failure that may go away by itself."""
    return Entry(kind=FailureKind.TRANSIENT, code=code, source=source)


def permanent(code: str, source: str) -> Entry:
    """A row for a failure that another attempt meets again."""
    return Entry(kind=FailureKind.PERMANENT, code=code, source=source)
