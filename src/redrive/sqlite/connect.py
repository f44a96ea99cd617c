"""Connections to one file: how they are opened, and how the write lock is waited for."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from pathlib import Path
from typing import Final

from redrive.errors import BrokerUnavailableError, ConfigurationError
from redrive.sqlite.failures import as_redrive_error, is_locked

OLDEST_SQLITE: Final = (3, 35, 0)
"""RETURNING, UPDATE FROM and row values with an index."""

CACHE_KIB: Final = 16_384
"""Page cache per connection. There is no mmap: with it a disk error kills the process (SIGBUS) instead of raising."""

READ_WAIT_MS: Final = 5_000
"""A reader only ever waits for a recovery or the very last close of the file."""

CACHED_STATEMENTS: Final = 512

FIRST_NAP_S: Final = 0.000_2
LONGEST_NAP_S: Final = 0.004
"""Sleeps while another process holds the write lock: short, because a group commit is; random, so that several
waiting processes do not meet again. (SQLite's own busy handler soon sleeps 100 ms.)"""


def check_sqlite_version() -> None:
    """Raises `ConfigurationError` where this Python came with a SQLite that is too old."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        needed = ".".join(map(str, OLDEST_SQLITE))
        raise ConfigurationError(
            f"This Python has SQLite {sqlite3.sqlite_version}; redrive needs {needed} or newer. Nothing was opened.",
            hint="Use a Python built with a newer SQLite, or another broker.",
        )


def connect_writer(path: Path, *, may_create: bool = False) -> sqlite3.Connection:
    """A connection that writes. Transactions are begun and ended by hand; it may move between threads."""
    return _connect(path, "rwc" if may_create else "rw", busy_ms=0)


def tune(connection: sqlite3.Connection) -> None:
    """What every writing connection is set to; the log is copied by `checkpoint.py`."""
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA wal_autocheckpoint = 0")


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that can only read. It never blocks a writer and is never blocked by one (WAL)."""
    connection = _connect(path, "rw", busy_ms=READ_WAIT_MS)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _connect(path: Path, mode: str, *, busy_ms: int) -> sqlite3.Connection:
    # A URI path may not hold ? or #, and as_uri() also escapes %.
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=busy_ms / 1_000,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=CACHED_STATEMENTS,
    )


def begin(connection: sqlite3.Connection, *, path: Path, wait_ms: float) -> None:
    """BEGIN IMMEDIATE, waiting at most `wait_ms` for other processes. Raises `BrokerUnavailableError` after it."""
    deadline = time.monotonic() + wait_ms / 1_000
    nap_s = FIRST_NAP_S
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if not is_locked(error):
                raise
            if time.monotonic() >= deadline:
                raise as_redrive_error(error, path) from error
        else:
            return
        nap(nap_s)
        nap_s = min(nap_s * 1.5, LONGEST_NAP_S)


def nap(about_s: float) -> None:
    """Sleep half to one and a half times as long: those who wait for one lock do not all wake together."""
    time.sleep(about_s * (0.5 + random.random()))  # noqa: S311 - spreads waiting processes, protects nothing


def turn_not_given(path: Path, wait_ms: float) -> BrokerUnavailableError:
    """The error where this process's own writes or transactions kept the turn for the whole wait."""
    return BrokerUnavailableError(
        f'File "{path}": a transaction of this process held the write lock for {wait_ms:.0f} ms. Nothing was written.',
        hint="Inside `async with delivery.transaction() as tx` write and publish only through tx, and keep it short.",
    )


def sync_directory(path: Path) -> None:
    """Make the name of a new file survive a power cut: its directory is written to the disk."""
    handle = os.open(path.absolute().parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
