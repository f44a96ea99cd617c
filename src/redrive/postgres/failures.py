"""What psycopg raises, as errors of redrive: the one table, by SQLSTATE.

Every text says what happened, what became of the message, what to do. A connection that broke is never used again; the
next call makes a new one, so an outage, a restart or a failover ends by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from redrive.core.text import cut
from redrive.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    InvalidMessageError,
    RedriveError,
    StorageCorruptError,
)

MAX_DETAIL_BYTES: Final = 300

_Row = tuple[type[RedriveError], str, str]

_AWAY: Final[_Row] = (
    BrokerUnavailableError,
    "does not answer, or ended the connection. Whether this call was written is not known; repeating it is safe.",
    "Is the server up? Everything goes on by itself once it is.",
)
_WAITED: Final[_Row] = (
    BrokerUnavailableError,
    "took too long: a lock or a statement went over its time. Nothing of this call was written.",
    "Repeat it. If it stays so, look for long transactions: SELECT * FROM pg_stat_activity WHERE state <> 'idle'",
)
_REFUSED: Final[_Row] = (
    ConfigurationError,
    "refused the login or the database. Nothing was read or written.",
    "Check user, password and database of the URL, and pg_hba.conf.",
)
_DATA: Final[_Row] = (
    InvalidMessageError,
    "cannot hold a value. Nothing of this call was written.",
    "Keep the message within its limits.",
)
_DAMAGED: Final[_Row] = (
    StorageCorruptError,
    "says that its data are damaged. Nothing of this call was written and nothing was deleted.",
    "Stop all processes, keep the data directory, and restore a backup.",
)

_BY_STATE: Final[dict[str, _Row]] = {
    "08": _AWAY,
    "57P": _AWAY,
    "57014": _WAITED,
    "55P03": _WAITED,
    "25P03": _WAITED,
    "40": _WAITED,
    "25006": (
        BrokerUnavailableError,
        "takes no writes: it is a replica now, or set read-only. Nothing of this call was written.",
        "After a failover it ends by itself where the URL names all hosts and target_session_attrs=read-write.",
    ),
    "53300": (
        BrokerUnavailableError,
        "has no connection left (max_connections). Nothing of this call was written.",
        "It is tried again by itself. Raise max_connections, run fewer processes, or put ?pool=… in the URL.",
    ),
    "53100": (
        BrokerUnavailableError,
        "has no disk space left. Nothing of this call was written.",
        "Free disk space; everything goes on by itself then. What was accepted before is safe.",
    ),
    "53": (BrokerUnavailableError, "lacks resources. Nothing of this call was written.", "Repeat it."),
    "58": (
        BrokerUnavailableError,
        "met an input/output error. Nothing of this call was written.",
        "Look at the server's log.",
    ),
    "XX001": _DAMAGED,
    "XX002": _DAMAGED,
    "28": _REFUSED,
    "3D": _REFUSED,
    "42501": (
        ConfigurationError,
        "does not allow this user to do that. Nothing of this call was written.",
        "Give the user the tables redrive_…, and the right to make them for the first start and each upgrade.",
    ),
    "3F": (ConfigurationError, "has no such schema. Nothing was read or written.", "Is ?schema=… right?"),
    "22": _DATA,
    "54": _DATA,
}
"""By SQLSTATE, or its start: the longest one that fits holds (postgresql.org/docs/current/errcodes-appendix.html)."""

_OTHER: Final[_Row] = (
    BrokerUnavailableError,
    "refused a statement. Nothing of this call was written.",
    "Please report it with this text.",
)
_LOGIN: Final = re.compile(r"authentication failed|no password supplied|does not exist|no pg_hba\.conf entry")
_FULL: Final = re.compile(r"too many clients|remaining connection slots")
_REPEATED: Final = ("40001", "40P01")


def as_redrive_error(error: Exception, shown: str) -> Exception:
    """The error a caller gets for `error`, or `error` itself where it is not psycopg's. `shown`: the masked URL."""
    if not isinstance(error, psycopg.Error):
        return error
    kind, text, hint = _row(error)
    return kind(f'Store "{shown}" {text} (PostgreSQL: {cut(_words(error), MAX_DETAIL_BYTES)})', hint=hint)


def is_lost(error: psycopg.Error) -> bool:
    """Whether the connection is gone, so that whether the statement was carried out is not known."""
    return _row(error) is _AWAY


def is_repeated(error: psycopg.Error) -> bool:
    """Whether the server chose this transaction to fail so that others go on: nothing of it happened."""
    return error.sqlstate in _REPEATED


def _row(error: psycopg.Error) -> _Row:
    state = error.sqlstate
    if state is not None:
        for length in range(len(state), 1, -1):
            if (found := _BY_STATE.get(state[:length])) is not None:
                return found
        return _OTHER
    if isinstance(error, psycopg.DataError):
        return _DATA
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        # Of a login that failed psycopg knows the words only.
        words = str(error)
        if _FULL.search(words):
            return _BY_STATE["53300"]
        return _REFUSED if _LOGIN.search(words) else _AWAY
    return _OTHER


def _words(error: psycopg.Error) -> str:
    said = error.diag.message_primary or str(error)
    return " ".join(said.split())


@contextmanager
def mapped(shown: str) -> Iterator[None]:
    """Inside, what psycopg raises becomes the redrive error of the table."""
    try:
        yield
    except psycopg.Error as error:
        raise as_redrive_error(error, shown) from error
