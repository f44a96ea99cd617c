"""What was answered is on the disk, and nobody holds the write lock while the disk works."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from redrive.core.idempotency import Acquired
from redrive.errors import BrokerUnavailableError
from redrive.runtime.clock import SystemClock
from redrive.sqlite import SqliteFile, SqliteLedger, check, checkpoint, log_sync
from redrive.sqlite.file import Durability
from redrive.stores.sqlite import SqliteClaimStore
from redrive.testing.samples import QUEUE
from tests.sqlite.steps import LEASE_MS, PATIENCE_S, blocked, end_all, many, rows, take

ROUNDS = 60

Watched = Callable[[Callable[[], None]], None]


@pytest.fixture
def after_sync(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Hands over what is to be done after each sync that did succeed."""

    def watch(then: Callable[[], None]) -> None:
        real = log_sync._SYNC

        def sync(handle: int) -> None:
            real(handle)
            then()

        monkeypatch.setattr(log_sync, "_SYNC", sync)

    return watch


class Disk:
    """What a power cut leaves for sure: the file and its log as they were at the last sync."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._copy = path.with_name("disk") / path.name
        self.syncs = 0

    def keep(self) -> None:
        self._copy.parent.mkdir(exist_ok=True)
        # The file first: what is moved into it meanwhile is still in the log.
        for ending in ("", "-wal"):
            shutil.copyfile(f"{self._path}{ending}", f"{self._copy}{ending}")
        self.syncs += 1

    def ids(self) -> set[str]:
        """Of the messages that are there after it."""
        place = self._copy.with_name("started again")
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self._copy.parent, place)
        assert () == check(place / self._path.name).problems
        return {name for (name,) in rows(place / self._path.name, "SELECT message_id FROM redrive_message")}


async def test_what_was_answered_survives_a_power_cut_right_then(
    path: Path, after_sync: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The log is copied back and started over again and again meanwhile.
    monkeypatch.setattr(checkpoint, "COMMITS", 5)
    disk = Disk(path)
    after_sync(disk.keep)
    file = SqliteFile(path, clock=SystemClock())
    await file.open()
    ledger = SqliteLedger(file)
    there: set[str] = set()

    for number in range(ROUNDS):
        batch = many(3, start=3 * number)
        await asyncio.gather(*(ledger.publish([each]) for each in batch))
        there |= {each.message.id for each in batch}
        assert there == disk.ids()
        taken = await take(ledger, limit=2)
        assert [True] * 2 == await end_all(ledger, taken)
        there -= {each.received.message.id for each in taken}
        assert there == disk.ids()
    await file.close()


@pytest.mark.parametrize(("durability", "synced"), [("full", 1), ("normal", 0)])
async def test_what_is_accepted_waits_for_the_disk_unless_told_otherwise(
    path: Path, after_sync: Watched, durability: Durability, synced: int
) -> None:
    disk = Disk(path)
    after_sync(disk.keep)
    file = SqliteFile(path, clock=SystemClock(), durability=durability)
    await file.open()
    ledger = SqliteLedger(file)

    await ledger.publish(many(1))
    assert synced == disk.syncs
    taken = await take(ledger)
    assert synced == disk.syncs
    await end_all(ledger, taken)
    assert 2 * synced == disk.syncs
    # What it saw may be what another process has not yet on the disk, so an answer that wrote nothing waits too.
    await file.write(lambda tx: tx.execute("SELECT 1").fetchall())
    assert 3 * synced == disk.syncs
    await file.close()


async def test_while_the_disk_works_others_write_and_takes_are_answered(
    path: Path, after_sync: Watched, live_file: SqliteFile, live_ledger: SqliteLedger
) -> None:
    is_syncing, may_go = threading.Event(), threading.Event()
    await live_ledger.publish(many(2))
    first = await take(live_ledger, limit=1)

    def hold() -> None:
        is_syncing.set()
        assert may_go.wait(PATIENCE_S)

    after_sync(hold)
    blocking, goes_on = await blocked(live_file)  # so that the next two calls share a group
    ending = asyncio.create_task(end_all(live_ledger, first))
    taking = asyncio.create_task(take(live_ledger, limit=1))
    await asyncio.sleep(0)
    goes_on.set()
    try:
        second = await asyncio.wait_for(taking, PATIENCE_S)
        assert await asyncio.to_thread(is_syncing.wait, PATIENCE_S)
        with closing(sqlite3.connect(path, timeout=0)) as other:
            other.execute("CREATE TABLE others (n)")
        assert not ending.done()
    finally:
        may_go.set()

    assert ["m-1"] == [each.received.message.id for each in second]
    assert [True] == await ending
    await blocking


async def test_a_claim_is_answered_before_the_disk_has_it_and_the_disk_gets_it_unasked(
    after_sync: Watched, live_file: SqliteFile
) -> None:
    is_syncing, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        is_syncing.set()
        assert may_go.wait(PATIENCE_S)

    after_sync(hold)
    claims = SqliteClaimStore(live_file)
    try:
        (verdict,) = await asyncio.wait_for(claims.claim([(QUEUE, "k")], lease_ms=LEASE_MS, owner="w1"), PATIENCE_S)
        assert isinstance(verdict, Acquired)
        assert await asyncio.to_thread(is_syncing.wait, PATIENCE_S)
    finally:
        may_go.set()


async def test_a_claim_that_says_not_to_start_is_answered_once_the_disk_has_why(
    after_sync: Watched, live_file: SqliteFile
) -> None:
    claims = SqliteClaimStore(live_file)
    await claims.claim([(QUEUE, "k")], lease_ms=LEASE_MS, owner="w1")
    # What was to be synced for that first claim is over.
    await live_file.write(lambda tx: tx.execute("SELECT 1").fetchall())
    is_syncing, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        is_syncing.set()
        assert may_go.wait(PATIENCE_S)

    after_sync(hold)
    claiming = asyncio.create_task(claims.claim([(QUEUE, "k")], lease_ms=LEASE_MS, owner="w2"))
    try:
        assert await asyncio.to_thread(is_syncing.wait, PATIENCE_S)
        assert not claiming.done()
    finally:
        may_go.set()

    assert ["InProgress"] == [type(verdict).__name__ for verdict in await claiming]


async def test_a_disk_that_refuses_is_told_to_those_who_waited_for_it_alone(
    path: Path, live_ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = log_sync._SYNC
    failures = iter([OSError(5, os.strerror(5))])

    def sync(handle: int) -> None:
        for error in failures:
            raise error
        real(handle)

    monkeypatch.setattr(log_sync, "_SYNC", sync)
    publishing = asyncio.create_task(live_ledger.publish(many(1)))
    taking = asyncio.create_task(take(live_ledger, limit=5, wait_ms=round(PATIENCE_S * 1_000)))

    with pytest.raises(BrokerUnavailableError, match="the disk did not take it"):
        await publishing

    assert ["m-0"] == [each.received.message.id for each in await taking]
    await live_ledger.publish(many(1, start=1))
    assert ["m-1"] == [each.received.message.id for each in await take(live_ledger)]
    assert () == check(path).problems


async def test_a_disk_that_refuses_when_nobody_waits_is_told_to_who_waits_next(
    live_file: SqliteFile, live_ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = log_sync._SYNC
    failures = iter([OSError(5, os.strerror(5))])
    has_failed = threading.Event()

    def sync(handle: int) -> None:
        for error in failures:
            has_failed.set()
            raise error
        real(handle)

    monkeypatch.setattr(log_sync, "_SYNC", sync)
    (verdict,) = await SqliteClaimStore(live_file).claim([(QUEUE, "k")], lease_ms=LEASE_MS, owner="w1")
    assert isinstance(verdict, Acquired)
    assert await asyncio.to_thread(has_failed.wait, PATIENCE_S)

    with pytest.raises(BrokerUnavailableError, match="the disk did not take it"):
        await live_ledger.publish(many(1))
    await live_ledger.publish(many(1, start=1))


async def test_the_log_is_found_where_links_lead(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "real" / "orders.db")
    file = SqliteFile(link, clock=SystemClock())
    await file.open()
    ledger = SqliteLedger(file)

    await ledger.publish(many(1))

    assert 1 == len(await take(ledger))
    await file.close()
