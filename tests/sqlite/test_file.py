"""Opening the file, and what goes wrong with files: a clear error, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from redrive.core.ports import End
from redrive.core.settlement import ACK
from redrive.errors import BrokerUnavailableError, ConfigurationError, SchemaTooNewError, StorageCorruptError
from redrive.runtime.clock import SystemClock
from redrive.sqlite import SqliteFile, SqliteLedger, check, connect, failures
from tests.sqlite.steps import end_all, execute, many, rows, run, take

OVERWRITTEN_FROM = 8_192


async def test_a_new_file_is_made_durable_in_wal_mode(path: Path, ledger: SqliteLedger) -> None:
    await ledger.publish(many(3))

    assert [("wal",)] == rows(path, "PRAGMA journal_mode")
    assert [(2,)] == rows(path, "PRAGMA auto_vacuum")
    assert () == check(path).problems
    assert 3 == check(path).messages


async def test_each_face_may_open_and_close_and_closing_twice_is_harmless(path: Path) -> None:
    file = SqliteFile(path, clock=SystemClock())
    await file.open()
    await file.open()

    await file.close()
    await SqliteLedger(file).publish(many(1))
    await file.close()
    await file.close()

    with pytest.raises(BrokerUnavailableError, match=r"is not open"):
        await SqliteLedger(file).publish(many(1))


async def test_a_missing_directory_is_named_and_not_made(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "nowhere" / "x.db", clock=SystemClock())

    with pytest.raises(BrokerUnavailableError, match=r"nowhere/x\.db.*cannot be opened.*directory"):
        await file.open()

    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", ["a b?c#d%20e.db", "naïve-Ω.db"])
async def test_any_file_name_works(tmp_path: Path, name: str) -> None:
    file = SqliteFile(tmp_path / name, clock=SystemClock())

    await file.open()
    await SqliteLedger(file).publish(many(1))
    await file.close()

    assert (tmp_path / name).is_file()


async def test_a_file_that_is_no_database_is_refused_and_kept(path: Path) -> None:
    content = b"these are not the bytes you are looking for" * 200
    path.write_bytes(content)

    with pytest.raises(StorageCorruptError, match=r"not a SQLite file"):
        await SqliteFile(path, clock=SystemClock()).open()

    assert content == path.read_bytes()


async def test_a_damaged_file_says_so_and_is_never_deleted(path: Path) -> None:
    file = SqliteFile(path, clock=SystemClock())
    await file.open()
    await SqliteLedger(file).publish(many(500, body=bytes(400)))
    await file.close()
    damaged = bytearray(path.read_bytes())
    damaged[OVERWRITTEN_FROM:] = os.urandom(len(damaged) - OVERWRITTEN_FROM)
    path.write_bytes(damaged)

    file = SqliteFile(path, clock=SystemClock())
    with pytest.raises(StorageCorruptError, match=r"damaged.*nothing was deleted.*recover"):  # noqa: PT012 - either call
        await file.open()
        await take(SqliteLedger(file))
    await file.close()

    assert len(damaged) == path.stat().st_size


async def test_a_file_of_a_newer_redrive_that_shuts_us_out_is_refused(path: Path, file: SqliteFile) -> None:
    await file.close()
    run(path, "UPDATE redrive_meta SET value = 99 WHERE name IN ('schema_version', 'min_reader_version')")

    with pytest.raises(SchemaTooNewError, match=r"needs a redrive that knows schema 99.*Upgrade"):
        await SqliteFile(path, clock=SystemClock()).open()


async def test_a_read_only_file_is_an_error_that_says_what_to_do(path: Path, file: SqliteFile) -> None:
    await execute(file, "PRAGMA query_only = ON")

    with pytest.raises(BrokerUnavailableError, match=r"read-only.*write permission"):
        await SqliteLedger(file).publish(many(1))

    file.live.writer._connection.execute("PRAGMA query_only = OFF")
    await SqliteLedger(file).publish(many(1))
    assert 1 == len(await take(SqliteLedger(file)))


async def test_a_full_file_refuses_a_batch_and_keeps_all_before_it(path: Path, file: SqliteFile) -> None:
    ledger = SqliteLedger(file)
    await ledger.publish(many(50))
    taken = await take(ledger, limit=5)
    pages = rows(path, "PRAGMA page_count")[0][0]
    await execute(file, f"PRAGMA max_page_count = {pages + 2}")

    with pytest.raises(BrokerUnavailableError, match=r"cannot grow.*Free disk space"):
        await ledger.publish(many(500, start=50, body=bytes(2_000)))

    assert [True] * 5 == await end_all(ledger, taken)
    await execute(file, "PRAGMA max_page_count = 1000000")
    await ledger.publish(many(1, start=50))
    assert 46 == len(await take(ledger))
    assert () == check(path).problems


async def test_a_lock_held_elsewhere_is_waited_for_and_then_an_error(path: Path) -> None:
    hasty, patient = (SqliteFile(path, clock=SystemClock(), lock_timeout_ms=limit) for limit in (100, 60_000))
    await hasty.open()
    await patient.open()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(BrokerUnavailableError, match=r"locked by another process.*Repeat it"):
            await SqliteLedger(hasty).publish(many(1))
        waiting = asyncio.create_task(SqliteLedger(patient).publish(many(1)))
        await asyncio.sleep(0.02)  # sleep: the publish should meet the lock
        other.execute("COMMIT")

    await waiting
    assert 1 == len(await take(SqliteLedger(hasty)))
    for file in (hasty, patient):
        await file.close()


async def test_starting_many_times_at_once_makes_one_schema(path: Path) -> None:
    files = [SqliteFile(path, clock=SystemClock()) for _ in range(8)]

    await asyncio.gather(*(file.open() for file in files))

    await asyncio.gather(*(SqliteLedger(file).publish(many(1, start=n)) for n, file in enumerate(files)))
    assert 8 == len(await take(SqliteLedger(files[0])))
    for file in files:
        await file.close()
    assert () == check(path).problems


async def test_closing_ends_every_thread_and_leaves_no_log(path: Path) -> None:
    before = set(threading.enumerate())
    file = SqliteFile(path, clock=SystemClock())
    await file.open()
    await SqliteLedger(file).publish(many(10))
    await file.read(lambda reader: reader.execute("SELECT 1").fetchone())

    await file.close()

    # Those of asyncio's own pool stay.
    assert [] == [each.name for each in set(threading.enumerate()) - before if not each.name.startswith("asyncio")]
    assert not path.with_name(path.name + "-wal").exists()


def test_an_old_sqlite_is_named_with_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))

    with pytest.raises(ConfigurationError, match=r"needs 3\.35\.0 or newer"):
        connect.check_sqlite_version()


def test_every_result_code_in_the_table_says_what_happened_and_what_to_do() -> None:
    for code, (kind, text, hint) in failures._BY_CODE.items():
        assert kind.code in {"broker_unavailable", "storage_corrupt", "invalid_message"}, code
        assert text.endswith("."), code
        assert len(hint) > 10, code


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_file_deleted_or_replaced_under_us_accepts_nothing_more(
    path: Path, file: SqliteFile, ledger: SqliteLedger, *, is_replaced: bool
) -> None:
    await ledger.publish(many(1))
    taken = await take(ledger)
    moved = path.rename(path.with_name("moved.db"))
    if is_replaced:
        path.write_bytes(moved.read_bytes())

    with pytest.raises(BrokerUnavailableError, match="deleted or replaced while it was open"):
        await ledger.publish(many(1, start=1))
    with pytest.raises(BrokerUnavailableError, match="deleted or replaced"):
        async with ledger.transaction(End(taken=taken[0], settlement=ACK)):
            pass

    moved.rename(path)
    assert [True] == await end_all(ledger, taken)
