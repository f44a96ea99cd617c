"""Backup, restore and check of one file. None of them ever deletes a damaged or replaced file."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from redrive.errors import BrokerUnavailableError, ConfigurationError
from redrive.sqlite.connect import connect_reader, connect_writer, sync_directory
from redrive.sqlite.failures import is_locked, mapped
from redrive.sqlite.schema import is_current, migrations, versions

MAX_PROBLEMS: Final = 100
"""Problems a check reports at most; a damaged file can have millions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What a check found. `problems` is empty for a healthy file."""

    path: Path
    schema_version: int
    messages: int
    letters: int
    problems: tuple[str, ...]


def backup(path: str | Path, target: str | Path) -> None:
    """Copy the file while it is in use; the copy is one instant of it, complete and checked.

    Writers go on meanwhile; their log grows until the copy is done. `target` must not exist: it appears under its
    name only when it is whole and on the disk, so a crash leaves at most a file ending in `.part`.
    """
    source, goal = Path(path), Path(target)
    _refuse_existing(goal)
    _copy(source, goal)


def restore(source: str | Path, path: str | Path, *, replace: bool = False) -> Path | None:
    """Put a backup in place of the file. Raises `BrokerUnavailableError` while any process has the file open.

    Without `replace` an existing file is refused. With it the old one is kept beside under a new name, which is
    returned. Start no worker until this returns.
    """
    copy, goal = Path(source), Path(path)
    found = check(copy)
    if found.problems:
        raise ConfigurationError(
            f'Backup "{copy}" is not sound: {found.problems[0]}. Nothing was changed.', hint="Use another backup."
        )
    kept = None
    name = _free_name(goal)
    if goal.exists():
        if not replace:
            _refuse_existing(goal)
        _take_for_itself(goal)
        kept = goal.rename(name)
    # A log that was left behind would be played into the restored file.
    for ending in ("-wal", "-shm"):
        left = goal.with_name(goal.name + ending)
        if left.exists():
            left.rename(name.with_name(name.name + ending))
    _copy(copy, goal)
    return kept


def check(path: str | Path) -> Check:
    """Whether the file is sound: SQLite's own integrity check, then that every message stands in exactly one place.

    Reads everything once. Raises `StorageCorruptError` where the file cannot be read at all, `SchemaTooNewError`
    where a newer redrive shut this one out.
    """
    goal = Path(path)
    with mapped(goal), contextlib.closing(connect_reader(goal)) as reader:
        reader.execute("BEGIN")
        rows = reader.execute(f"PRAGMA integrity_check({MAX_PROBLEMS})").fetchall()
        problems = [row[0] for row in rows if row[0] != "ok"]
        if versions(reader) == (0, 0):
            problems.append("it has no redrive tables")
            return Check(path=goal, schema_version=0, messages=0, letters=0, problems=tuple(problems))
        is_current(reader, migrations())
        problems += _misplaced(reader)
        return Check(
            path=goal,
            schema_version=versions(reader)[0],
            messages=reader.execute("SELECT count(*) FROM redrive_message").fetchone()[0],
            letters=reader.execute("SELECT count(*) FROM redrive_letter").fetchone()[0],
            problems=tuple(problems[:MAX_PROBLEMS]),
        )


_PLACES: Final = (
    "SELECT seq FROM redrive_ready UNION ALL SELECT seq FROM redrive_scheduled UNION ALL SELECT seq FROM redrive_leased"
)

_INVARIANTS: Final = {
    "message {} stands nowhere: it would never be handed out": (
        f"SELECT seq FROM redrive_message WHERE seq NOT IN ({_PLACES})"  # noqa: S608 - constants
    ),
    "message {} stands in more than one place": (
        f"SELECT seq FROM ({_PLACES}) GROUP BY seq HAVING count(*) > 1"  # noqa: S608 - constants
    ),
    "a place names message {}, which does not exist": (
        f"SELECT seq FROM ({_PLACES}) WHERE seq NOT IN (SELECT seq FROM redrive_message)"  # noqa: S608 - constants
    ),
    "letter {} has no content": (
        "SELECT seq FROM redrive_letter WHERE seq NOT IN (SELECT seq FROM redrive_letter_content)"
    ),
}


def _misplaced(reader: sqlite3.Connection) -> Iterator[str]:
    for text, statement in _INVARIANTS.items():
        for row in reader.execute(f"{statement} LIMIT {MAX_PROBLEMS}"):
            yield text.format(row[0])


def _refuse_existing(goal: Path) -> None:
    if goal.exists():
        raise ConfigurationError(f'File "{goal}" exists already. Nothing was changed.', hint="Name a new file.")


def _copy(source: Path, goal: Path) -> None:
    """All of the source, with what is still in its log, under its name only once it is on the disk."""
    part = goal.with_name(goal.name + ".part")
    part.unlink(missing_ok=True)
    with (
        mapped(source),
        contextlib.closing(connect_reader(source)) as reader,
        contextlib.closing(sqlite3.connect(part)) as copy,
    ):
        # In one step: SQLite starts over whenever another connection writes between two steps.
        reader.backup(copy)
    handle = os.open(part, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    part.rename(goal)
    sync_directory(goal)


def _take_for_itself(path: Path) -> None:
    # Leaving WAL mode succeeds only for the last connection, so it proves that nobody has the file open.
    with mapped(path), contextlib.closing(connect_writer(path)) as connection:
        try:
            mode = connection.execute("PRAGMA journal_mode = DELETE").fetchone()[0]
        except sqlite3.OperationalError as error:
            if not is_locked(error):
                raise
            mode = "wal"
    if mode == "wal":
        raise BrokerUnavailableError(
            f'File "{path}" is in use. Nothing was changed.', hint="Stop every worker and server on it, then restore."
        )


def _free_name(path: Path) -> Path:
    number = 1
    while (name := path.with_name(f"{path.name}.replaced-{number}")).exists():
        number += 1
    return name
