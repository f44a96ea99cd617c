"""Online backup, restore that refuses to hurt, and the check."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from redrive.errors import BrokerUnavailableError, ConfigurationError, StorageCorruptError
from redrive.sqlite import SqliteFile, SqliteLedger, backup, check, restore
from tests.sqlite.steps import end_child, many, read_line, rows, run, start_child, take


async def test_a_backup_of_a_busy_file_is_one_whole_instant(
    path: Path, live_ledger: SqliteLedger, tmp_path: Path
) -> None:
    is_over = asyncio.Event()

    async def publish() -> None:
        start = 0
        while not is_over.is_set():
            await live_ledger.publish(many(10, start=start))
            start += 10

    publishing = asyncio.create_task(publish())
    await take(live_ledger, wait_ms=5_000)
    for number in range(3):
        await asyncio.to_thread(backup, path, tmp_path / f"copy-{number}.db")
    is_over.set()
    await publishing

    for number in range(3):
        found = check(tmp_path / f"copy-{number}.db")
        assert () == found.problems
        assert found.messages > 0
        assert 0 == found.messages % 10


async def test_a_restored_backup_works_and_the_replaced_file_is_kept(
    path: Path, file: SqliteFile, ledger: SqliteLedger, tmp_path: Path
) -> None:
    await ledger.publish(many(3))
    backup(path, tmp_path / "copy.db")
    await ledger.publish(many(4, start=3))
    await file.close()

    kept = restore(tmp_path / "copy.db", path, replace=True)

    assert 3 == check(path).messages
    assert kept is not None
    assert 7 == check(kept).messages
    await file.open()
    assert 3 == len(await take(ledger))


async def test_a_file_in_use_by_this_or_another_process_is_not_replaced(
    path: Path, file: SqliteFile, ledger: SqliteLedger, tmp_path: Path
) -> None:
    await ledger.publish(many(1))
    backup(path, tmp_path / "copy.db")

    with pytest.raises(BrokerUnavailableError, match="is in use"):
        restore(tmp_path / "copy.db", path, replace=True)
    await file.close()
    child = start_child(path, "hold")
    assert ["ready", "1"] == [read_line(child), read_line(child)]
    with pytest.raises(BrokerUnavailableError, match="is in use"):
        restore(tmp_path / "copy.db", path, replace=True)
    end_child(child)

    assert 1 == check(path).messages


async def test_nothing_is_overwritten_without_being_asked(path: Path, ledger: SqliteLedger, tmp_path: Path) -> None:
    await ledger.publish(many(1))
    backup(path, tmp_path / "copy.db")

    with pytest.raises(ConfigurationError, match="exists already"):
        backup(path, tmp_path / "copy.db")
    with pytest.raises(ConfigurationError, match="exists already"):
        restore(tmp_path / "copy.db", path)


async def test_a_backup_that_is_not_sound_is_not_restored(path: Path, ledger: SqliteLedger, tmp_path: Path) -> None:
    await ledger.publish(many(1))
    copy = tmp_path / "copy.db"
    backup(path, copy)
    run(copy, "DELETE FROM redrive_ready")

    with pytest.raises(ConfigurationError, match=r"not sound.*stands nowhere"):
        restore(copy, tmp_path / "new.db")

    assert not (tmp_path / "new.db").exists()


def test_a_file_that_is_no_database_cannot_be_checked_or_restored(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.db"
    wrong.write_bytes(b"nothing of ours" * 300)

    with pytest.raises(StorageCorruptError):
        check(wrong)
    with pytest.raises(StorageCorruptError):
        restore(wrong, tmp_path / "new.db")


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        ("DELETE FROM redrive_ready WHERE seq = 1", "message 1 stands nowhere"),
        ("DELETE FROM redrive_message WHERE seq = 2", "names message 2"),
        ("INSERT INTO redrive_scheduled VALUES (1, 5, 3, 0, 0, 0, 0)", "message 3 stands in more than one place"),
    ],
)
async def test_the_check_names_a_message_that_is_not_in_exactly_one_place(
    path: Path, ledger: SqliteLedger, harm: str, problem: str
) -> None:
    await ledger.publish(many(3))
    assert () == check(path).problems

    run(path, harm)

    assert problem in check(path).problems[0]
    assert 3 == len(rows(path, "SELECT 1 FROM redrive_ready")) + ("DELETE FROM redrive_ready" in harm)


async def test_a_file_that_was_never_closed_is_restored_with_what_is_in_its_log(
    path: Path, ledger: SqliteLedger, tmp_path: Path
) -> None:
    await ledger.publish(many(5))
    assert path.with_name(path.name + "-wal").stat().st_size > 0

    restore(path, tmp_path / "new.db")

    assert 5 == check(tmp_path / "new.db").messages


async def test_a_log_left_behind_is_not_played_into_the_restored_file(
    path: Path, file: SqliteFile, ledger: SqliteLedger, tmp_path: Path
) -> None:
    await ledger.publish(many(2))
    backup(path, tmp_path / "copy.db")
    await ledger.publish(many(3, start=2))
    log = path.with_name(path.name + "-wal").read_bytes()
    await file.close()
    path.unlink()
    path.with_name(path.name + "-wal").write_bytes(log)

    assert restore(tmp_path / "copy.db", path) is None

    assert 2 == check(path).messages
    assert log == path.with_name(path.name + ".replaced-1-wal").read_bytes()
