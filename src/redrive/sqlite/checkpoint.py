"""Copying the write-ahead log back into the file, without making a commit wait for it.

SQLite's own automatic checkpoint runs inside the COMMIT that makes the log long enough, so one unlucky caller waits
for megabytes of writing. Here it is two halves. A thread of its own copies what is there (`PASSIVE`: waits for
nobody, holds up nobody). Under steady load the log has grown again by then, and the log starts over only when all of
it has been copied; so the writer copies that small rest itself, between two commits, and then finds an empty log.

A crash at any point loses nothing: what is not copied is still in the log. A failure is ignored here: a commit that
meets the same trouble reports it.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from typing import Final

from redrive.sqlite.space import shrink

ROWS: Final = 10_000
"""Changed rows after which the log is copied: between 2 and 40 MB of it."""

COMMITS: Final = 1_000
"""The same for small commits, which write a few pages for a row."""

LOG_LIMIT_BYTES: Final = 64 * 1024 * 1024
"""A log that a burst or a long reader made longer is cut to this once it starts over."""

_COPY: Final = "PRAGMA wal_checkpoint(PASSIVE)"


class Checkpoints:
    """The thread, and what the writer does between two commits."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._rows = 0
        self._commits = 0
        self._wanted = threading.Event()
        self._is_copied = False
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="redrive-checkpoint", daemon=True)

    def start(self) -> None:
        """Begin to copy when asked."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after what it is doing. Blocks."""
        self._is_closing = True
        self._wanted.set()
        self._thread.join()

    def tend(self, connection: sqlite3.Connection, is_pruned: bool) -> None:  # noqa: FBT001 - called by position
        """From the writer, after each commit and with no transaction open. `is_pruned`: space may have become free."""
        self._commits += 1
        if self._is_copied:
            self._is_copied = False
            _copy(connection)
            shrink(connection)
        elif is_pruned:
            shrink(connection)
        elif connection.total_changes - self._rows >= ROWS or self._commits >= COMMITS:
            self._rows, self._commits = connection.total_changes, 0
            self._wanted.set()

    def _run(self) -> None:
        with contextlib.closing(self._connect()) as connection:
            while True:
                self._wanted.wait()
                if self._is_closing:
                    return
                self._wanted.clear()
                _copy(connection)
                self._is_copied = True


def _copy(connection: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error):
        connection.execute(_COPY).fetchall()
