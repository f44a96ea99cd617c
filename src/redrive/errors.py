"""Every error a user can meet: one base, a stable code, a hint.

The text of an error says three things: what happened, what became of the message, what to do. `code` is stable:
it is the log field, the last part of the RFC 9457 `type`, and the anchor in docs/reference/errors.md. Signals
(`RetryLater`, `DeadLetter`, `Requeue`) are not errors and live in `redrive.core.signals`.
"""

from __future__ import annotations

from typing import ClassVar


class RedriveError(Exception):
    """Base of all errors raised by redrive.

    Shows as `text` followed by `hint`. Catch a subclass to treat one case; catch this to treat them all.
    """

    code: ClassVar[str] = "redrive_error"

    def __init__(self, text: str, *, hint: str = "") -> None:
        super().__init__(text, hint)
        self.text = text
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.text} {self.hint}".rstrip()

    def __reduce__(self) -> tuple[object, tuple[type[RedriveError], str, str]]:
        return (_rebuild, (type(self), self.text, self.hint))


def _rebuild(kind: type[RedriveError], text: str, hint: str) -> RedriveError:
    return kind(text, hint=hint)


class ConfigurationError(RedriveError):
    """A setting or argument is wrong. Nothing was consumed or published. Fix the named field and start again."""

    code = "configuration"


class InvalidMessageError(RedriveError):
    """A message cannot be published as given (a header kind no broker holds, a body over the limit). Not sent."""

    code = "invalid_message"


class BrokerUnavailableError(RedriveError):
    """The broker or its file cannot be reached or written now (away, locked, full, read-only). Nothing was
    accepted by this call; repeating it with the same message id is safe.
    """

    code = "broker_unavailable"


class StorageCorruptError(BrokerUnavailableError):
    """The file is damaged. Consuming stops; nothing is deleted. Restore a backup, or recover the file by hand."""

    code = "storage_corrupt"


class SchemaTooNewError(RedriveError):
    """The file was written by a newer redrive than this one. Nothing was read or written. Upgrade this process."""

    code = "schema_too_new"


class QueueNotFoundError(RedriveError):
    """The target queue does not exist. Nothing was sent to it and redrive does not create it by itself."""

    code = "queue_not_found"


class LeaseLostError(RedriveError):
    """This delivery's lease passed to another worker. Whatever was open was rolled back; the result is refused."""

    code = "lease_lost"


class TransitionError(RedriveError):
    """A state machine refused a move (a letter, a claim, a job). Nothing was changed."""

    code = "illegal_transition"


class NotFoundError(RedriveError):
    """No letter, job or claim with this id. Nothing was changed."""

    code = "not_found"


class UnsupportedError(RedriveError):
    """The broker or store in use cannot do this; its `Features` say so. Nothing was changed."""

    code = "unsupported"


class MissingExtraError(RedriveError):
    """An optional driver is not installed. The hint names the extra to install."""

    code = "missing_extra"
