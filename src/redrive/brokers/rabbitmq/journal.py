"""The journal of redrives in place: what was about to be sent, in a SQLite file of its own.

A row is written before its message is published, and goes when the broker has removed the original. What it says after
a kill:

    intended    the copy may have been sent; the original lies in its queue, for nothing was acknowledged yet
    confirmed   the copy lies in its target; the original may have been removed

A message without any id has only its digest to be known by, so the row keeps that, the place it had, the id of the
copy, and what the broker had counted of it. One process at a time redrives one queue: it holds a lock, which ends with
the process.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, TextIO

from redrive.core.units import UnixMs
from redrive.errors import BrokerUnavailableError, ConfigurationError

SCHEMA_VERSION: Final = 1
FILE_NAME: Final = "in-place.db"

_SCHEMA: Final = """
CREATE TABLE batches (
  batch TEXT PRIMARY KEY, broker TEXT NOT NULL, queue TEXT NOT NULL, actor TEXT NOT NULL, started_at INTEGER NOT NULL,
  next_item INTEGER NOT NULL DEFAULT 1, moved INTEGER NOT NULL DEFAULT 0, is_open INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE INDEX batches_open ON batches (broker, queue) WHERE is_open;
CREATE TABLE items (
  batch TEXT NOT NULL REFERENCES batches, item INTEGER NOT NULL, position INTEGER NOT NULL, digest TEXT NOT NULL,
  has_id INTEGER NOT NULL, state TEXT NOT NULL, deliveries INTEGER NOT NULL, was_looked_at INTEGER NOT NULL,
  PRIMARY KEY (batch, item)
) STRICT, WITHOUT ROWID;
"""


def default_journal() -> Path:
    """One file for each user of this machine, wherever a command is run from: `$XDG_STATE_HOME/redrive/in-place.db`."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "redrive" / FILE_NAME


class ItemState(StrEnum):
    """See the module."""

    INTENDED = "intended"
    CONFIRMED = "confirmed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One message that is on its way. `position`: how many were taken before it; `has_id`: it names itself;
    `deliveries`: how often the broker said it had handed it out before, 0 where it does not say; `was_looked_at`:
    before it was taken first, or since.
    """

    number: int
    position: int
    digest: str
    has_id: bool
    deliveries: int = 0
    was_looked_at: bool = False
    state: ItemState = ItemState.INTENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One redrive of a queue, new or interrupted. `moved`: originals that are gone from the queue; `items`: those of
    which that is not known, in the order in which they were taken. `actor` and `started_at` are the first run's.
    """

    id: str
    actor: str
    started_at: UnixMs
    moved: int
    next_item: int
    items: tuple[Item, ...]

    def item_id(self, number: int) -> str:
        """What the copy is named: the same in every try."""
        return f"{self.id}-{number}"


class Journal:
    """The rows of one queue of one broker. Every method is one transaction, on disk when it returns; all of them block.

    Raises `BrokerUnavailableError` where the file cannot be written, `ConfigurationError` where another process
    redrives the same queue, or a newer redrive wrote the file.
    """

    def __init__(self, path: Path, *, broker: str, queue: str) -> None:
        self.path = path
        self._broker, self._queue = broker, queue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = self._locked()
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
            self._prepare()
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(error) from error

    def _locked(self) -> TextIO:
        name = hashlib.sha256(f"{self._broker}\n{self._queue}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
        lock = self.path.with_name(f"{self.path.name}.{name}.lock").open("a", encoding="utf-8")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise ConfigurationError(
                f'Another process redrives queue "{self._queue}" of this broker right now. Nothing was sent.',
                hint="Wait until it is done, or stop it.",
            ) from None
        return lock

    def _prepare(self) -> None:
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        with self._transaction():
            found = self._connection.execute("PRAGMA user_version").fetchone()[0]
            if found == 0:
                for statement in _SCHEMA.split(";"):
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        if found > SCHEMA_VERSION:
            raise ConfigurationError(f'The journal "{self.path}" was written by a newer redrive. Nothing was sent.')

    def _transaction(self) -> _Transaction:
        return _Transaction(self._connection)

    def _unusable(self, error: Exception) -> BrokerUnavailableError:
        return BrokerUnavailableError(
            f'The journal "{self.path}" cannot be used ({error}). Nothing was sent.',
            hint="Name another file with --journal; of an interrupted redrive the same one.",
        )

    def close(self) -> None:
        """Give the queue free for others."""
        self._connection.close()
        self._lock.close()

    def begin(self, *, actor: str, now: UnixMs) -> Batch:
        """The batch that was interrupted on this queue, or a new one."""
        with self._transaction():
            row = self._connection.execute(
                "SELECT batch, actor, started_at, moved, next_item FROM batches WHERE broker = ? AND queue = ? "
                "AND is_open ORDER BY started_at LIMIT 1",
                (self._broker, self._queue),
            ).fetchone()
            if row is None:
                row = (f"rd_{now:012x}{secrets.token_hex(6)}", actor, now, 0, 1)
                self._connection.execute(
                    "INSERT INTO batches (batch, broker, queue, actor, started_at) VALUES (?, ?, ?, ?, ?)",
                    (row[0], self._broker, self._queue, actor, now),
                )
            items = self._connection.execute(
                "SELECT item, position, digest, has_id, deliveries, was_looked_at, state FROM items WHERE batch = ? "
                "ORDER BY item",
                (row[0],),
            ).fetchall()
        return Batch(
            id=row[0],
            actor=row[1],
            started_at=row[2],
            moved=row[3],
            next_item=row[4],
            items=tuple(map(_item, items)),
        )

    def intend(self, batch: Batch, items: Sequence[Item]) -> None:
        """Before they are published. Of an item that is on record already only the deliveries are new."""
        with self._transaction():
            self._connection.executemany(
                "INSERT INTO items (batch, item, position, digest, has_id, deliveries, was_looked_at, state) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET deliveries = excluded.deliveries",
                [
                    (
                        batch.id,
                        each.number,
                        each.position,
                        each.digest,
                        each.has_id,
                        each.deliveries,
                        each.was_looked_at,
                        each.state,
                    )
                    for each in items
                ],
            )
            highest = max((each.number for each in items), default=0)
            self._connection.execute(
                "UPDATE batches SET next_item = max(next_item, ?) WHERE batch = ?", (highest + 1, batch.id)
            )

    def confirm(self, batch: Batch, numbers: Sequence[int]) -> None:
        """The broker has the copies; before the originals are acknowledged."""
        with self._transaction():
            self._connection.executemany(
                "UPDATE items SET state = ? WHERE batch = ? AND item = ?",
                [(ItemState.CONFIRMED, batch.id, number) for number in numbers],
            )

    def finish(self, batch: Batch, numbers: Sequence[int]) -> None:
        """The originals are gone."""
        with self._transaction():
            self._connection.executemany(
                "DELETE FROM items WHERE batch = ? AND item = ?", [(batch.id, number) for number in numbers]
            )
            self._connection.execute("UPDATE batches SET moved = moved + ? WHERE batch = ?", (len(numbers), batch.id))

    def end(self, batch: Batch) -> None:
        """Nothing of it is left to do: the next redrive of the queue is a new batch. Its rows are forgotten."""
        with self._transaction():
            self._connection.execute("DELETE FROM items WHERE batch = ?", (batch.id,))
            self._connection.execute("UPDATE batches SET is_open = 0 WHERE batch = ?", (batch.id,))


def note_look(path: Path, *, broker: str, queue: str) -> None:
    """Somebody is about to look at this queue: what an interrupted redrive had in hand is not to be known by what the
    broker says of deliveries any more. Nothing where there is no journal, or it cannot be written.
    """
    if not path.exists():
        return
    with suppress(sqlite3.Error), closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
        connection.execute(
            "UPDATE items SET was_looked_at = 1 WHERE batch IN "
            "(SELECT batch FROM batches WHERE broker = ? AND queue = ? AND is_open)",
            (broker, queue),
        )


def _item(row: tuple[int, int, str, int, int, int, str]) -> Item:
    number, position, digest, has_id, deliveries, was_looked_at, state = row
    return Item(
        number=number,
        position=position,
        digest=digest,
        has_id=bool(has_id),
        deliveries=deliveries,
        was_looked_at=bool(was_looked_at),
        state=ItemState(state),
    )


class _Transaction:
    """BEGIN IMMEDIATE to COMMIT; ROLLBACK where it breaks."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, error: object, tb: object) -> None:
        self._connection.execute("COMMIT" if kind is None else "ROLLBACK")
