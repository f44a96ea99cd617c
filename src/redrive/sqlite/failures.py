"""What sqlite3 raises, as errors of redrive: the one table, by result code.

Every text says what happened, what became of the message, what to do. A damaged file is never deleted or replaced.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from redrive.errors import BrokerUnavailableError, InvalidMessageError, RedriveError, StorageCorruptError

_PRIMARY: Final = 0xFF
"""An extended result code carries its primary code in the low byte (sqlite.org/rescode.html)."""

_Row = tuple[type[RedriveError], str, str]

_LOCKED: Final[_Row] = (
    BrokerUnavailableError,
    "is locked by another process. Nothing of this call was written.",
    "Repeat it. If it stays so, look for a process that holds a transaction open: fuser {path}",
)
_CORRUPT: Final[_Row] = (
    StorageCorruptError,
    "is damaged. Nothing of this call was written and nothing was deleted.",
    'Stop all processes, keep the file, restore a backup, or recover it: sqlite3 {path} ".recover"',
)
_READ_ONLY: Final[_Row] = (
    BrokerUnavailableError,
    "cannot be written: the file or its directory is read-only. Nothing of this call was written.",
    "Give this user write permission on the file and on its directory (the -wal and -shm files live there).",
)

_BY_CODE: Final[dict[int, _Row]] = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_PROTOCOL: _LOCKED,
    sqlite3.SQLITE_FULL: (
        BrokerUnavailableError,
        "cannot grow: the disk or the file's page limit is full. Nothing of this call was written.",
        "Free disk space; everything goes on by itself then. What was accepted before is safe.",
    ),
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: (
        BrokerUnavailableError,
        "cannot be opened. Nothing was read or written.",
        "Does its directory exist, and may this user write there? redrive makes the file, not the directory.",
    ),
    sqlite3.SQLITE_IOERR: (
        BrokerUnavailableError,
        "met an input/output error. Whether this call was written is not known; repeating it is safe.",
        "Is the disk full? Else look at the system log, then copy what can be read: redrive backup",
    ),
    sqlite3.SQLITE_NOMEM: (
        BrokerUnavailableError,
        "ran out of memory. Nothing of this call was written.",
        "Repeat it with a smaller batch.",
    ),
    sqlite3.SQLITE_CORRUPT: _CORRUPT,
    sqlite3.SQLITE_NOTADB: (
        StorageCorruptError,
        "is not a SQLite file (or its first page is damaged). Nothing was read, written or deleted.",
        "Is the path right? Otherwise restore a backup.",
    ),
    sqlite3.SQLITE_TOOBIG: (
        InvalidMessageError, "cannot hold a value that large. It was not written.", "Keep the message below the limit.",
    ),
}  # fmt: skip

_OTHER: Final[_Row] = (
    BrokerUnavailableError,
    "refused a statement. Nothing of this call was written.",
    "Please report it with this text.",
)


def as_redrive_error(error: Exception, path: Path) -> Exception:
    """The error a caller gets for `error`: by its result code, or `error` itself where it is not sqlite3's."""
    if isinstance(error, OverflowError):
        return InvalidMessageError("A number is larger than 64 bits. Nothing of this call was written.")
    if not isinstance(error, sqlite3.Error):
        return error
    code = getattr(error, "sqlite_errorcode", None)
    kind, text, hint = _OTHER if code is None else _BY_CODE.get(code & _PRIMARY, _OTHER)
    detail = "" if kind is StorageCorruptError or text is _LOCKED[1] else f" (sqlite: {error})"
    return kind(f'File "{path}" {text}{detail}', hint=hint.format(path=path))


def is_locked(error: sqlite3.Error) -> bool:
    """Whether another connection holds the lock, so that waiting helps."""
    return (getattr(error, "sqlite_errorcode", 0) & _PRIMARY) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


@contextmanager
def mapped(path: Path) -> Iterator[None]:
    """Inside, what sqlite3 raises becomes the redrive error of the table."""
    try:
        yield
    except (sqlite3.Error, OverflowError) as error:
        raise as_redrive_error(error, path) from error
