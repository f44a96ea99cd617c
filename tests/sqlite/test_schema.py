"""Migrations: once, in order, whole or not at all; and two neighbouring versions on one file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from redrive.errors import SchemaTooNewError
from redrive.runtime.clock import SystemClock
from redrive.sqlite import SqliteFile, SqliteLedger
from redrive.sqlite.schema import Migration, is_current, migrate, migrations, versions
from tests.sqlite.steps import end_all, many, take

OLD = Migration(version=1, script="CREATE TABLE redrive_meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL);\n"
                "CREATE TABLE redrive_thing (id INTEGER PRIMARY KEY, name TEXT);\n")  # fmt: skip
ADDITIVE = Migration(version=2, script="-- why\nALTER TABLE redrive_thing ADD COLUMN colour TEXT DEFAULT 'red';\n")
BREAKING = Migration(
    version=3,
    script="CREATE TRIGGER redrive_t AFTER INSERT ON redrive_thing BEGIN\n"
    "  DELETE FROM redrive_thing WHERE id < 0;\nEND;",
    min_reader_version=3,
)
BROKEN = Migration(version=4, script="CREATE TABLE redrive_more (id INTEGER);\nTHIS IS NOT SQL;\n")


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        yield connection


def apply(connection: sqlite3.Connection, *steps: Migration) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        migrate(connection, steps)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def test_an_old_file_is_brought_forward_and_keeps_its_rows(connection: sqlite3.Connection) -> None:
    apply(connection, OLD)
    connection.execute("INSERT INTO redrive_thing (name) VALUES ('kept')")

    apply(connection, OLD, ADDITIVE, BREAKING)

    assert [("kept", "red")] == connection.execute("SELECT name, colour FROM redrive_thing").fetchall()
    assert (3, 3) == versions(connection)
    assert is_current(connection, (OLD, ADDITIVE, BREAKING))


def test_an_additive_step_lets_the_older_version_go_on(connection: sqlite3.Connection) -> None:
    apply(connection, OLD, ADDITIVE)

    assert (2, 1) == versions(connection)
    assert is_current(connection, (OLD,))


def test_a_step_that_changes_meanings_shuts_the_older_version_out(connection: sqlite3.Connection) -> None:
    apply(connection, OLD, ADDITIVE, BREAKING)

    with pytest.raises(SchemaTooNewError):
        is_current(connection, (OLD, ADDITIVE))


def test_a_step_that_fails_leaves_no_trace(connection: sqlite3.Connection) -> None:
    apply(connection, OLD)

    with pytest.raises(sqlite3.OperationalError):
        apply(connection, OLD, ADDITIVE, BREAKING, BROKEN)

    assert (1, 1) == versions(connection)
    assert ["id", "name"] == [row[1] for row in connection.execute("PRAGMA table_info (redrive_thing)")]


def test_migrating_twice_changes_nothing(connection: sqlite3.Connection) -> None:
    apply(connection, *migrations())
    before = connection.execute("SELECT sql FROM sqlite_schema").fetchall()

    apply(connection, *migrations())

    assert before == connection.execute("SELECT sql FROM sqlite_schema").fetchall()


def test_versions_count_up_from_one_without_a_hole() -> None:
    assert list(range(1, len(migrations()) + 1)) == [step.version for step in migrations()]


async def test_a_file_a_newer_version_added_to_works_as_before(path: Path, file: SqliteFile) -> None:
    await SqliteLedger(file).publish(many(3))
    await file.close()
    with closing(sqlite3.connect(path)) as newer:
        newer.executescript(
            "ALTER TABLE redrive_message ADD COLUMN lane TEXT;"
            "ALTER TABLE redrive_ready ADD COLUMN turn INTEGER DEFAULT 0;"
            "ALTER TABLE redrive_claim ADD COLUMN note TEXT; ALTER TABLE redrive_letter ADD COLUMN colour TEXT;"
            "UPDATE redrive_meta SET value = value + 1 WHERE name = 'schema_version'"
        )

    again = SqliteFile(path, clock=SystemClock())
    await again.open()
    ledger = SqliteLedger(again)
    await ledger.publish(many(2, start=3))

    taken = await take(ledger)
    assert 5 == len(taken)
    assert [True] * 5 == await end_all(ledger, taken)
    await again.close()
