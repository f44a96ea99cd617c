"""Making commits durable: one fsync of the write-ahead log, with no lock held.

SQLite can do it inside COMMIT (`synchronous = FULL`), but then every other process waits for the write lock as long as
the disk does, and the fsyncs of several processes queue up behind each other. So the writer commits without one
(`NORMAL`) and hands the lock on; whoever asked for a durable answer gets it once the log was synced here. The log is
written in order, so this covers every commit before it, whoever made it: also where the call itself wrote nothing,
because what it saw was there already. Hence it is done for every such call.

Killed between the commit and the sync: the commit stands, nobody was answered. A power cut there: the commit may be
gone, and with it everything after it, none of which was answered. Had a checkpoint copied the commit into the file
meanwhile and started the log over, then it had synced the file before (sqlite.org/wal.html, "Checkpointing").

Source for what FULL and NORMAL do: sqlite.org/pragma.html#pragma_synchronous.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from redrive.errors import BrokerUnavailableError

_SYNC: Final[Callable[[int], None]] = getattr(os, "fdatasync", os.fsync)


class LogSync:
    """The log of one file. Make it while a connection is open on the file: until the last one is closed the log stays
    the same file, and no lock of SQLite's is on it that closing our handle would let go.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # SQLite names the log after the file that links lead to.
        self._handle = os.open(f"{os.path.realpath(path)}-wal", os.O_RDWR | getattr(os, "O_BINARY", 0))

    def sync(self) -> None:
        """Everything committed so far is on the disk. Blocks. Raises `BrokerUnavailableError` where the disk refuses;
        what was committed is then seen by everyone, but a power cut may take it.
        """
        try:
            _SYNC(self._handle)
        except OSError as error:
            raise BrokerUnavailableError(
                f'File "{self._path}" was written, but the disk did not take it ({error}). Whether this call survives '
                "a power cut is not known; repeating it is safe.",
                hint="Look at the system log, then copy what can be read: redrive backup",
            ) from error

    def close(self) -> None:
        """Let go of the log."""
        os.close(self._handle)
