"""The versioned schema: sql/NNN_name.sql, each applied once, in order, all in one transaction under an advisory lock.

`redrive_meta` holds two numbers, as a redrive file does. `schema_version` is the newest script applied;
`min_reader_version` the oldest redrive schema that can still work here. An additive script leaves it alone, so that two
neighbouring versions of redrive work on one database at the same time; one that changes the meaning of what is there
starts with the line `-- min_reader_version: N` and shuts older ones out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

import psycopg

from redrive.errors import SchemaTooNewError

_NAME: Final = re.compile(r"(\d{3})_\w+\.sql")
_MIN_READER: Final = re.compile(r"^-- min_reader_version: (\d+)$", re.MULTILINE)
LOCK: Final = 7_233_746_701
"""Of all migrations in one database; any number that nobody else uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step. `min_reader_version` is None where older versions of redrive can go on working."""

    version: int
    script: str
    min_reader_version: int | None = None


def migrations() -> tuple[Migration, ...]:
    """All steps this redrive knows, oldest first."""
    found = []
    for entry in files("redrive.postgres").joinpath("sql").iterdir():
        if name := _NAME.fullmatch(entry.name):
            script = entry.read_text(encoding="utf-8")
            shut = _MIN_READER.search(script)
            found.append(
                Migration(version=int(name[1]), script=script, min_reader_version=int(shut[1]) if shut else None)
            )
    return tuple(sorted(found, key=lambda step: step.version))


def migrate(
    connection: psycopg.Connection, steps: Sequence[Migration], *, sql: Callable[[str], bytes], schema: str | None
) -> None:
    """Apply what is missing; nothing is locked where nothing is. A crash in here leaves no trace. Raises
    `SchemaTooNewError` where the tables shut this redrive out. `sql`: names the tables of a statement.
    """
    if _is_current(_versions(connection, sql), steps):
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        if schema is not None and not _has_schema(connection, schema):
            connection.execute(f'CREATE SCHEMA "{schema}"'.encode())
        schema_version, min_reader_version = _versions(connection, sql)
        if _is_current((schema_version, min_reader_version), steps):
            return
        for step in steps:
            if step.version > schema_version:
                connection.execute(sql(step.script))
                min_reader_version = step.min_reader_version or min_reader_version or step.version
                schema_version = step.version
        for name, value in (("schema_version", schema_version), ("min_reader_version", min_reader_version)):
            connection.execute(
                sql("INSERT INTO @meta VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"),
                (name, value),
            )


def _has_schema(connection: psycopg.Connection, schema: str) -> bool:
    # "IF NOT EXISTS" asks for the right to make one even where it is there.
    row = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone()
    return row is not None


def _versions(connection: psycopg.Connection, sql: Callable[[str], bytes]) -> tuple[int, int]:
    """(schema_version, min_reader_version); (0, 0) where redrive has not been here."""
    # Reading a table makes the session hear of what others made; without it, it may still believe that there is none.
    row = connection.execute(
        "SELECT to_regclass(%s) IS NULL FROM pg_class LIMIT 1", (sql("@meta").decode(),)
    ).fetchone()
    if row is None or row[0]:
        return 0, 0
    values: dict[str, int] = dict(connection.execute(sql("SELECT name, value FROM @meta")).fetchall())
    return values.get("schema_version", 0), values.get("min_reader_version", 0)


def _is_current(versions: tuple[int, int], steps: Sequence[Migration]) -> bool:
    schema_version, min_reader_version = versions
    newest = steps[-1].version
    if min_reader_version > newest:
        raise SchemaTooNewError(
            f"The tables need a redrive that knows schema {min_reader_version}; this one knows up to {newest}. "
            "Nothing was read or written.",
            hint="Upgrade this process: pip install --upgrade redrive",
        )
    return schema_version >= newest
