"""The versioned schema: sql/NNN_name.sql, each applied once, in order, all in one transaction.

`redrive_meta` holds two numbers. `schema_version` is the newest file applied. `min_reader_version` is the oldest
redrive schema that can still work on the file. An additive migration leaves it alone, so that two neighbouring
versions of redrive work on one file at the same time; a migration that changes the meaning of what is there starts
with the line `-- min_reader_version: N` and shuts older ones out.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from redrive.errors import SchemaTooNewError

_NAME: Final = re.compile(r"(\d{3})_\w+\.sql")
_MIN_READER: Final = re.compile(r"^-- min_reader_version: (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step. `min_reader_version` is None where older versions of redrive can go on working on the file."""

    version: int
    script: str
    min_reader_version: int | None = None


def migrations() -> tuple[Migration, ...]:
    """All steps this redrive knows, oldest first."""
    found = []
    for entry in files("redrive.sqlite").joinpath("sql").iterdir():
        if name := _NAME.fullmatch(entry.name):
            script = entry.read_text(encoding="utf-8")
            shut = _MIN_READER.search(script)
            found.append(
                Migration(version=int(name[1]), script=script, min_reader_version=int(shut[1]) if shut else None)
            )
    return tuple(sorted(found, key=lambda step: step.version))


def versions(connection: sqlite3.Connection) -> tuple[int, int]:
    """(schema_version, min_reader_version) of the file; (0, 0) where redrive has not been there."""
    known = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'redrive_meta'").fetchone()
    if known is None:
        return 0, 0
    values = dict(connection.execute("SELECT name, value FROM redrive_meta").fetchall())
    return values.get("schema_version", 0), values.get("min_reader_version", 0)


def is_current(connection: sqlite3.Connection, steps: Sequence[Migration]) -> bool:
    """Whether there is nothing to apply. Raises `SchemaTooNewError` where the file shuts this redrive out."""
    schema_version, min_reader_version = versions(connection)
    newest = steps[-1].version
    if min_reader_version > newest:
        raise SchemaTooNewError(
            f"The file needs a redrive that knows schema {min_reader_version}; this one knows up to {newest}. "
            "Nothing was read or written.",
            hint="Upgrade this process: pip install --upgrade redrive",
        )
    return schema_version >= newest


def migrate(connection: sqlite3.Connection, steps: Sequence[Migration]) -> None:
    """Apply what is missing. The caller holds the write lock and commits; a crash before that leaves no trace."""
    if is_current(connection, steps):
        return
    schema_version, min_reader_version = versions(connection)
    for step in steps:
        if step.version > schema_version:
            for statement in _statements(step.script):
                connection.execute(statement)
            min_reader_version = step.min_reader_version or min_reader_version or step.version
            schema_version = step.version
    rows = [("schema_version", schema_version), ("min_reader_version", min_reader_version)]
    connection.executemany("INSERT OR REPLACE INTO redrive_meta (name, value) VALUES (?, ?)", rows)


def _statements(script: str) -> Iterator[str]:
    # executescript() would commit the open transaction first.
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip() and not all(line.startswith("--") for line in pending.split("\n") if line.strip()):
        yield pending
