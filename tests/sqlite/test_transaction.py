"""A handler's transaction: effect and end together or not at all, and it never keeps the lock for long."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from redrive.core.ports import End, Outgoing, Taken
from redrive.core.settlement import ACK
from redrive.errors import BrokerUnavailableError, LeaseLostError, UnsupportedError
from redrive.runtime.clock import SystemClock
from redrive.sqlite import SqliteFile, SqliteLedger, transaction
from redrive.testing import FakeClock
from redrive.testing.samples import message
from tests.sqlite.steps import LEASE_MS, PATIENCE_S, end_all, execute, many, rows, take


@pytest_asyncio.fixture
async def taken(ledger: SqliteLedger, file: SqliteFile) -> AsyncIterator[list[Taken]]:
    await execute(file, "CREATE TABLE effects (name TEXT)")
    await ledger.publish(many(5))
    yield await take(ledger)


def end(taken: Taken) -> End:
    return End(taken=taken, settlement=ACK)


def effects(path: Path) -> list[str]:
    return [name for (name,) in rows(path, "SELECT name FROM effects ORDER BY name")]


async def test_in_a_thread_it_is_a_plain_with(ledger: SqliteLedger, path: Path, taken: list[Taken]) -> None:
    def handle(each: Taken) -> None:
        with ledger.transaction(end(each)) as transaction:
            transaction.execute("INSERT INTO effects VALUES (?)", (each.received.message.id,))
            transaction.publish(Outgoing(queue="next", message=message(each.received.message.id)))

    await asyncio.gather(*(asyncio.to_thread(handle, each) for each in taken))

    assert [f"m-{n}" for n in range(5)] == effects(path)
    assert [(5,)] == rows(path, "SELECT count(*) FROM redrive_ready")
    assert [(0,)] == rows(path, "SELECT count(*) FROM redrive_leased")


async def test_a_second_end_of_one_delivery_is_refused_with_its_effects(
    ledger: SqliteLedger, path: Path, taken: list[Taken]
) -> None:
    assert [True] == await end_all(ledger, taken[:1])

    with pytest.raises(LeaseLostError, match="rolled back"):
        async with ledger.transaction(end(taken[0])) as open_transaction:
            open_transaction.execute("INSERT INTO effects VALUES ('twice')")

    assert [] == effects(path)


async def test_the_end_of_a_lease_that_nobody_took_over_still_counts(
    ledger: SqliteLedger, path: Path, clock: FakeClock, taken: list[Taken]
) -> None:
    await clock.advance(LEASE_MS + 1)

    async with ledger.transaction(end(taken[0])) as open_transaction:
        open_transaction.execute("INSERT INTO effects VALUES ('late')")

    assert ["late"] == effects(path)


@pytest.mark.parametrize(
    "statement", ["COMMIT", "ROLLBACK", "END", "BEGIN", "SAVEPOINT x", "ATTACH ':memory:' AS other", " commit ;"]
)
async def test_a_handler_cannot_end_the_transaction_by_itself(
    ledger: SqliteLedger, path: Path, taken: list[Taken], statement: str
) -> None:
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):  # noqa: PT012 - what comes before is the point
        async with ledger.transaction(end(taken[0])) as open_transaction:
            open_transaction.execute("INSERT INTO effects VALUES ('half')")
            open_transaction.execute(statement)

    assert [] == effects(path)
    async with ledger.transaction(end(taken[0])) as open_transaction:
        open_transaction.execute("INSERT INTO effects VALUES ('whole')")
    assert ["whole"] == effects(path)


async def test_an_application_error_inside_passes_through_unchanged(ledger: SqliteLedger, taken: list[Taken]) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        async with ledger.transaction(end(taken[0])) as open_transaction:
            open_transaction.execute("INSERT INTO nowhere VALUES (1)")

    assert [True] * 5 == await end_all(ledger, taken)


async def test_outside_its_with_it_is_closed(ledger: SqliteLedger, taken: list[Taken]) -> None:
    unopened = ledger.transaction(end(taken[0]))
    assert isinstance(unopened, transaction.SqliteTransaction)

    with pytest.raises(UnsupportedError, match="not open"):
        unopened.execute("SELECT 1")


async def test_writes_of_this_process_wait_their_turn(ledger: SqliteLedger, taken: list[Taken]) -> None:
    order: list[str] = []

    async def publish(name: str) -> None:
        await ledger.publish(many(1, queue=name))
        order.append(name)

    async with ledger.transaction(end(taken[0])) as open_transaction:
        waiting = asyncio.create_task(publish("other"))
        await asyncio.sleep(0.05)  # sleep: the publish must have had every chance to overtake
        open_transaction.execute("INSERT INTO effects VALUES ('first')")
        order.append("transaction")
    await waiting

    assert ["transaction", "other"] == order


async def test_many_transactions_and_commits_at_once_all_get_their_turn(
    ledger: SqliteLedger, path: Path, taken: list[Taken]
) -> None:
    await ledger.publish(many(60, start=5))
    more = await take(ledger)

    async def handle(each: Taken) -> None:
        async with ledger.transaction(end(each)) as open_transaction:
            open_transaction.execute("INSERT INTO effects VALUES (?)", (each.received.message.id,))
            await asyncio.sleep(0)

    await asyncio.gather(
        *(handle(each) for each in more),
        *(end_all(ledger, [each]) for each in taken),
        *(ledger.publish(many(1, queue="q")) for _ in range(50)),
    )

    assert sorted(each.received.message.id for each in more) == effects(path)
    assert [(0,)] == rows(path, "SELECT count(*) FROM redrive_leased")


async def test_a_handler_cancelled_while_it_waits_for_the_lock_does_not_keep_it(
    ledger: SqliteLedger, taken: list[Taken]
) -> None:
    first = ledger.transaction(end(taken[0]))
    await first.__aenter__()

    async def handle() -> None:
        async with ledger.transaction(end(taken[1])):
            raise AssertionError("it was cancelled before it began")

    waiting = asyncio.create_task(handle())
    await asyncio.sleep(0.05)  # sleep: it must be waiting for the lock
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await first.__aexit__(None, None, None)

    assert [True] * 4 == await end_all(ledger, taken[1:])


async def test_a_handler_cancelled_inside_rolls_back(ledger: SqliteLedger, path: Path, taken: list[Taken]) -> None:
    is_inside = asyncio.Event()

    async def handle() -> None:
        async with ledger.transaction(end(taken[0])) as open_transaction:
            open_transaction.execute("INSERT INTO effects VALUES ('half')")
            is_inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(handle())
    await is_inside.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert [] == effects(path)
    assert [True] * 5 == await end_all(ledger, taken)


async def test_one_that_stays_open_too_long_is_rolled_back_and_told(
    ledger: SqliteLedger, path: Path, taken: list[Taken], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "HOLD_MAX_MS", 100)
    is_inside, may_go = threading.Event(), threading.Event()

    def forgets() -> None:
        with ledger.transaction(end(taken[0])) as open_transaction:
            open_transaction.execute("INSERT INTO effects VALUES ('half')")
            is_inside.set()
            may_go.wait(2 * PATIENCE_S)

    forgetting = asyncio.create_task(asyncio.to_thread(forgets))
    assert await asyncio.to_thread(is_inside.wait, PATIENCE_S)
    assert [True] * 4 == await asyncio.wait_for(end_all(ledger, taken[1:]), PATIENCE_S)
    may_go.set()

    with pytest.raises(LeaseLostError, match="open for more than 100 ms"):
        await forgetting
    assert [] == effects(path)


async def test_publishing_past_it_from_inside_fails_instead_of_blocking_for_ever(path: Path) -> None:
    file = SqliteFile(path, clock=SystemClock(), lock_timeout_ms=100)
    await file.open()
    ledger = SqliteLedger(file)
    await ledger.publish(many(1))
    (held,) = await take(ledger)

    with pytest.raises(BrokerUnavailableError, match="publish only through tx"):
        async with ledger.transaction(end(held)):
            await ledger.publish(many(1, start=1))

    assert [True] == await end_all(ledger, [held])
    await file.close()
