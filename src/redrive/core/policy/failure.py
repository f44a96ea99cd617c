"""What went wrong in an attempt, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from redrive.core.units import Millis


class FailureKind(StrEnum):
    """Whether another attempt can help. UNKNOWN: the attempt may have had its effect, its answer never came (a mail
    server gone after the end of DATA); one more attempt is made, later, and may do it twice.
    """

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    UNKNOWN = "unknown"


class Scope(StrEnum):
    """Whom a failure is about, and so what follows beside the end of this attempt.

    MESSAGE, RECIPIENT and CONNECTION: this attempt failed and counts. LANE: everything sent this way (an account out
    of quota, wrong credentials): no message is to blame, so it costs none an attempt, and the consumer takes no more
    until the failure's delay is over, or, where it has none, takes them more slowly. TENANT: this tenant's messages
    alone; a transient one costs no attempt.
    """

    MESSAGE = "message"
    RECIPIENT = "recipient"
    TENANT = "tenant"
    LANE = "lane"
    CONNECTION = "connection"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt failed.

    `code` is for machines (UPPER_SNAKE: TIMEOUT, ECONNREFUSED, HTTP_503, VALIDATION_FAILED, …), `text` for a person,
    never empty. `error_type` is the exception's class ("httpx.ReadTimeout"; builtins without their module), None
    where there was none. `retry_after_ms`: the other side said how long to stay away. `cause`: what it is about in
    the words of its catalogue (`rate`, `bad_recipient`, …), None where that says no more than the code.
    """

    kind: FailureKind
    code: str
    text: str
    error_type: str | None = None
    retry_after_ms: Millis | None = None
    scope: Scope = Scope.MESSAGE
    cause: str | None = None

    @property
    def is_retryable(self) -> bool:
        """Whether another attempt can help."""
        return self.kind is not FailureKind.PERMANENT

    @property
    def spares_message(self) -> bool:
        """Whether the message is not to blame: the attempt does not count."""
        return self.scope is Scope.LANE or (self.scope is Scope.TENANT and self.kind is FailureKind.TRANSIENT)


class Failed(Exception):
    """An attempt failed, and its failure is known already: raise it from a handler that classified an answer itself.

    Classified as exactly that failure, over every catalogue; a consumer's own rules are still asked first.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure

    def __str__(self) -> str:
        return self.failure.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of a catalogue: what a failure known by name or number is. `source` says where that is laid down.
    `delay_ms`: stay away at least so long; `cause` and `scope` as in `Failure`.
    """

    kind: FailureKind
    code: str
    source: str
    delay_ms: Millis | None = None
    scope: Scope = Scope.MESSAGE
    cause: str | None = None


def transient(code: str, source: str) -> Entry:
    """A row for a failure that may go away by itself."""
    return Entry(kind=FailureKind.TRANSIENT, code=code, source=source)


def permanent(code: str, source: str) -> Entry:
    """A row for a failure that another attempt meets again."""
    return Entry(kind=FailureKind.PERMANENT, code=code, source=source)
