"""What PyMongo raises, as redrive's errors: the only table of it.

Away: no server, no primary, no answer in time; the same call is good again once there is one. Full: no room on its
disk. Everything else it refuses is a person's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pymongo import errors

from redrive.core.text import cut
from redrive.errors import BrokerUnavailableError, ConfigurationError, RedriveError

MAX_TEXT_BYTES: Final = 300
DUPLICATE_KEY: Final = 11_000

_BY_ITSELF: Final = "It is tried again by itself; what was stored before is safe."
_AWAY: Final = (
    errors.ServerSelectionTimeoutError,
    errors.AutoReconnect,
    errors.ConnectionFailure,
    errors.WTimeoutError,
    errors.ExecutionTimeout,
    errors.InvalidOperation,
)
_NO_PERMISSION: Final = (13, 18)
"""Unauthorized, AuthenticationFailed (MongoDB: error codes)."""
_NO_ROOM: Final = (14_031,)
"""OutOfDiskSpace."""
_PASSING: Final = (6, 7, 24, 89, 91, 100, 112, 189, 262, 9_001, 10_107, 11_600, 11_602, 13_435, 13_436)
"""Host and network errors, lock and write conflicts, not enough members for the write concern, shutting down, not
primary, over its time."""


@contextmanager
def translated(where: str, *, fate: str = "Nothing is known to have happened.") -> Iterator[None]:
    """Raises redrive's error for PyMongo's. `where`: the server as people know it; `fate`: what became of the call."""
    try:
        yield
    except errors.PyMongoError as error:
        raise error_for(error, where, fate=fate) from error


def error_for(
    error: errors.PyMongoError, where: str, *, fate: str = "Nothing is known to have happened."
) -> RedriveError:
    """The error of redrive for what the driver raised."""
    words = cut(str(error), MAX_TEXT_BYTES)
    code = _code(error)
    if code in _NO_PERMISSION:
        return ConfigurationError(
            f"MongoDB at {where} refused the user or the password, or this user may not do that ({words}). {fate}",
            hint="Check the URL's user and password, and give it the role readWrite on the database.",
        )
    if code in _NO_ROOM or "disk is full" in words or "no space left" in words.lower():
        return BrokerUnavailableError(
            f"MongoDB at {where} has no room on its disk ({words}). {fate}", hint="Give it room; nothing is lost."
        )
    if isinstance(error, _AWAY) or code in _PASSING:
        return BrokerUnavailableError(f"MongoDB at {where} cannot be reached now: {words}. {fate}", hint=_BY_ITSELF)
    return ConfigurationError(f"MongoDB at {where} refused the command ({words}). {fate}")


def _code(error: errors.PyMongoError) -> int | None:
    if isinstance(error, errors.BulkWriteError):
        details = error.details or {}
        failed = [*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())]
        codes = [each.get("code") for each in failed if each.get("code") != DUPLICATE_KEY]
        return codes[0] if codes else None
    return error.code if isinstance(error, errors.OperationFailure) else None


def duplicates_of(error: errors.BulkWriteError) -> set[int]:
    """The places in the batch whose key was there already. Raises the error where anything else went wrong."""
    details = error.details or {}
    failed = details.get("writeErrors", ())
    if details.get("writeConcernErrors") or any(each.get("code") != DUPLICATE_KEY for each in failed):
        raise error
    return {each["index"] for each in failed}
