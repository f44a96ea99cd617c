"""`kill -9` at random moments, with real processes: nothing accepted is lost, nothing takes effect twice."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from redrive.runtime.clock import SystemClock
from redrive.sqlite import SqliteFile, SqliteLedger, check
from redrive.stores.sqlite import SqliteJobStore, SqliteLetterStore
from redrive.testing.samples import job, letter
from tests.sqlite.steps import end_all, end_child, many, read_line, rows, run, start_child, take

MESSAGES = 400
KILLS = 8
PUBLISHER_KILLS = 4
LEASE_MS = 400
LETTERS = 300
LIMIT_S = 60


async def test_workers_killed_at_any_moment_lose_nothing_and_repeat_no_effect(
    path: Path, live_file: SqliteFile, live_ledger: SqliteLedger
) -> None:
    run(path, "CREATE TABLE effects (name TEXT NOT NULL)")
    await live_ledger.publish(many(MESSAGES))
    await live_file.close()
    chance = random.Random(20_260_101)

    for _ in range(KILLS):
        children = [start_child(path, "work", str(LEASE_MS)) for _ in range(2)]
        for child in children:
            read_line(child)
        time.sleep(chance.uniform(0.0, 0.15))  # sleep: the moment of the kill is random
        for child in children:
            end_child(child)
        assert () == check(path).problems
    finisher = start_child(path, "work", str(LEASE_MS))
    finish(path)
    end_child(finisher)

    names = [name for (name,) in rows(path, "SELECT name FROM effects")]
    assert MESSAGES == len(names)
    assert MESSAGES == len(set(names))
    assert {(2,)} == set(rows(path, "SELECT state FROM redrive_claim"))
    assert [(0,)] == rows(path, "SELECT count(*) FROM redrive_attempt")
    assert () == check(path).problems


def finish(path: Path) -> None:
    """Wait until no message is left."""
    deadline = time.monotonic() + LIMIT_S
    while rows(path, "SELECT count(*) FROM redrive_message") != [(0,)]:
        assert time.monotonic() < deadline, "messages are stuck"
        time.sleep(0.05)  # sleep: another process works


@pytest.mark.parametrize("batch", [1, 25])
def test_a_publisher_killed_at_any_moment_keeps_what_was_answered(path: Path, batch: int) -> None:
    chance = random.Random(batch)
    for _ in range(PUBLISHER_KILLS):
        before = count(path)
        child = start_child(path, "publish", "1000000", str(batch))
        read_line(child)
        answered = 0
        until = time.monotonic() + chance.uniform(0.02, 0.2)
        while time.monotonic() < until:
            answered = int(read_line(child))
        end_child(child)

        stored = count(path) - before
        # One more batch may be in without its answer having been read; never half of one.
        assert answered <= stored
        assert 0 == stored % batch
        assert () == check(path).problems


def test_a_publisher_killed_between_commit_and_disk_leaves_a_message_that_nobody_was_promised(path: Path) -> None:
    child = start_child(path, "publish_unsynced", "3")

    said = [read_line(child) for _ in range(4)]
    child.wait(LIMIT_S)
    end_child(child)

    assert ["ready", "1", "2", "3"] == said
    assert [(f"m-{n}",) for n in range(4)] == rows(path, "SELECT message_id FROM redrive_message ORDER BY seq")
    assert () == check(path).problems


async def test_a_worker_killed_between_commit_and_disk_has_ended_its_message(
    path: Path, live_ledger: SqliteLedger
) -> None:
    await live_ledger.publish(many(2))
    child = start_child(path, "end_unsynced")
    assert ["ready", "1"] == [read_line(child), read_line(child)]
    child.wait(LIMIT_S)
    end_child(child)

    left = await take(live_ledger, limit=2)

    assert ["m-1"] == [each.received.message.id for each in left]
    assert [(2,), (1,)] == rows(path, "SELECT state FROM redrive_claim ORDER BY id")
    assert [True] == await end_all(live_ledger, left)
    assert () == check(path).problems


def count(path: Path) -> int:
    return int(rows(path, "SELECT count(*) FROM redrive_message")[0][0]) if path.exists() else 0


async def test_two_processes_share_one_file_and_each_message_is_handled_once(path: Path) -> None:
    file = SqliteFile(path, clock=SystemClock())
    await file.open()
    run(path, "CREATE TABLE effects (name TEXT NOT NULL)")
    children = [start_child(path, "work", "30000") for _ in range(2)]
    for child in children:
        read_line(child)

    for start in range(0, MESSAGES, 50):
        await SqliteLedger(file).publish(many(50, start=start))
    finish(path)
    for child in children:
        end_child(child)
    await file.close()

    names = [name for (name,) in rows(path, "SELECT name FROM effects")]
    assert sorted(f"m-{n}" for n in range(MESSAGES)) == sorted(names)


async def test_a_redrive_killed_at_any_moment_sends_every_letter_once(path: Path, live_file: SqliteFile) -> None:
    await SqliteLedger(live_file).publish(many(1))
    await SqliteLetterStore(live_file).put([letter(f"dl_{n:04}", died_at=1_000 + n) for n in range(LETTERS)])
    await SqliteJobStore(live_file).create(job("job-1"))
    await live_file.close()
    chance = random.Random(7)

    for _ in range(KILLS):
        child = start_child(path, "redrive", str(LEASE_MS))
        read_line(child)
        time.sleep(chance.uniform(0.0, 0.6))  # sleep: the moment of the kill is random
        end_child(child)
        assert () == check(path).problems
    child = start_child(path, "redrive", str(LEASE_MS))
    assert "ready" == read_line(child)
    if rows(path, "SELECT state FROM redrive_job") != [("done",)]:
        assert "done" == read_line(child)
    end_child(child)

    sent = [name for (name,) in rows(path, "SELECT message_id FROM redrive_message ORDER BY seq")][1:]
    assert [f"m-dl_{n:04}" for n in range(LETTERS)] == sent
    assert {(2, None)} == set(rows(path, "SELECT state, outstanding_job FROM redrive_letter"))
    assert [(0, LETTERS, 0)] == rows(path, "SELECT pending, sent, skipped FROM redrive_job")
    assert [(LETTERS,)] == rows(path, "SELECT count(*) FROM redrive_item WHERE state = 'sent'")
