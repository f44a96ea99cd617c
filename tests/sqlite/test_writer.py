"""Group commit: what waits together is committed together, and one bad operation fails alone."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from redrive.core.ports import Taken
from redrive.core.settlement import Requeue
from redrive.errors import InvalidMessageError
from redrive.sqlite import SqliteFile, SqliteLedger
from redrive.sqlite.turn import Turn
from redrive.sqlite.writer import Tx
from tests.sqlite.steps import PATIENCE_S, WHY, blocked, end_all, execute, many, rows, take

TURNS = 200


def add(number: int) -> Callable[[Tx], int]:
    def operation(tx: Tx) -> int:
        tx.execute("INSERT INTO numbers VALUES (?)", (number,))
        return number

    return operation


async def with_numbers(file: SqliteFile) -> None:
    await execute(file, "CREATE TABLE numbers (n INTEGER PRIMARY KEY)")


async def test_calls_that_wait_together_share_commits(path: Path, file: SqliteFile) -> None:
    await with_numbers(file)
    with closing(sqlite3.connect(path)) as other:
        before = other.execute("PRAGMA data_version").fetchone()[0]
        versions = []

        def look(number: int) -> Callable[[Tx], int]:
            # Runs inside the writer's transaction: another connection sees commits only between two groups.
            def operation(tx: Tx) -> int:
                versions.append(other_version())
                return add(number)(tx)

            return operation

        def other_version() -> int:
            with closing(sqlite3.connect(path)) as fresh:
                return int(fresh.execute("SELECT count(*) FROM numbers").fetchone()[0])

        # All of them wait before the first is carried out.
        blocking, may_go = await blocked(file)
        asked = [asyncio.create_task(file.write(look(number))) for number in range(500)]
        await asyncio.sleep(0)
        may_go.set()
        answers = await asyncio.gather(*asked)
        await blocking

        assert list(range(500)) == answers
        assert before != other.execute("PRAGMA data_version").fetchone()[0]
        assert len(set(versions)) <= 10


async def test_one_operation_that_fails_takes_nobody_with_it(path: Path, file: SqliteFile) -> None:
    await with_numbers(file)

    answers = await asyncio.gather(
        *(file.write(add(number)) for number in (1, 2, 2, 3, 2**70, 4)), return_exceptions=True
    )

    assert [1, 2, 3, 4] == [answer for answer in answers if isinstance(answer, int)]
    assert isinstance(answers[2], Exception)
    assert isinstance(answers[4], InvalidMessageError)
    assert [(1,), (2,), (3,), (4,)] == rows(path, "SELECT n FROM numbers ORDER BY n")


async def test_an_operation_that_raises_its_own_error_writes_nothing(path: Path, file: SqliteFile) -> None:
    await with_numbers(file)

    def fails(tx: Tx) -> None:
        add(1)(tx)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await file.write(fails)

    assert [] == rows(path, "SELECT n FROM numbers")


async def test_a_receiver_cancelled_while_it_is_served_leaves_nothing_leased_and_no_start_counted(
    ledger: SqliteLedger, file: SqliteFile
) -> None:
    await ledger.publish(many(20))
    blocking, may_go = await blocked(file)
    receiver = asyncio.create_task(take(ledger))
    await asyncio.sleep(0)

    receiver.cancel()
    may_go.set()
    await blocking

    assert {1} == {each.received.starts for each in await take_all(ledger, 20)}


async def test_a_receiver_cancelled_with_its_answer_in_hand_loses_no_message(
    ledger: SqliteLedger, file: SqliteFile
) -> None:
    await ledger.publish(many(20))
    blocking, may_go = await blocked(file)  # so that the next two calls share a group

    async def cancel_after_answer() -> None:
        await file.write(lambda _: None, is_synced=False)
        receiver.cancel()

    canceller = asyncio.create_task(cancel_after_answer())
    receiver = asyncio.create_task(take(ledger))
    await asyncio.sleep(0)
    may_go.set()
    await asyncio.gather(blocking, canceller, receiver, return_exceptions=True)

    assert receiver.cancelled()
    assert {1} == {each.received.starts for each in await take_all(ledger, 20)}


async def test_a_receiver_cancelled_at_any_moment_loses_no_message(ledger: SqliteLedger) -> None:
    await ledger.publish(many(20))

    for turns in range(100):
        receiver = asyncio.create_task(take(ledger))
        for _ in range(turns * 3):
            await asyncio.sleep(0)
        if receiver.cancel():
            await asyncio.gather(receiver, return_exceptions=True)
        if not receiver.cancelled():
            await end_all(ledger, receiver.result(), Requeue(due_at=0, reason=WHY))

    assert {1} == {each.received.starts for each in await take_all(ledger, 20)}


async def take_all(ledger: SqliteLedger, count: int) -> list[Taken]:
    """What is handed back by a receiver that is gone comes a moment later."""
    taken: list[Taken] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(taken) < count:
            taken += await take(ledger)
    return taken


async def test_calls_from_threads_and_loops_get_their_own_answers(file: SqliteFile) -> None:
    await with_numbers(file)
    answers: list[int] = []

    def in_thread(start: int) -> None:
        answers.extend(file.write_blocking(add(number)) for number in range(start, start + 50))

    def in_loop(start: int) -> None:
        async def many_calls() -> list[int]:
            return list(await asyncio.gather(*(file.write(add(number)) for number in range(start, start + 50))))

        answers.extend(asyncio.run(many_calls()))

    work = [(in_thread, 0), (in_thread, 50), (in_loop, 100), (in_loop, 150)]
    await asyncio.gather(*(asyncio.to_thread(step, start) for step, start in work))

    assert list(range(200)) == sorted(answers)


async def test_closing_carries_out_what_was_asked_before(path: Path, file: SqliteFile) -> None:
    await with_numbers(file)

    waiting = [asyncio.create_task(file.write(add(number))) for number in range(50)]
    await asyncio.sleep(0)
    await file.close()

    assert list(range(50)) == await asyncio.gather(*waiting)
    assert [(50,)] == rows(path, "SELECT count(*) FROM numbers")


def test_the_turn_goes_to_whoever_waits_longest() -> None:
    turn = Turn()
    order: list[int] = []
    assert turn.acquire(1)
    waiting = []

    def queue_up(number: int) -> None:
        assert turn.acquire(PATIENCE_S)
        order.append(number)
        turn.release()

    for number in range(5):
        thread = threading.Thread(target=queue_up, args=(number,))
        thread.start()
        while len(turn._waiting) <= number:
            pass
        waiting.append(thread)

    turn.release()
    for thread in waiting:
        thread.join()

    assert [0, 1, 2, 3, 4] == order


def test_giving_up_on_the_turn_leaves_it_to_the_others() -> None:
    turn = Turn()
    assert turn.acquire(1)

    assert not turn.acquire(0.01)
    turn.release()

    assert turn.acquire(0)


def test_the_turn_has_one_holder_at_a_time() -> None:
    turn = Turn()
    holders = 0
    most = 0

    def work() -> None:
        nonlocal holders, most
        for _ in range(TURNS):
            assert turn.acquire(PATIENCE_S)
            holders += 1
            most = max(most, holders)
            holders -= 1
            turn.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 1 == most
    assert turn.acquire(0)
