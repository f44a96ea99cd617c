"""Calls that do the same step together share a batch, and nothing else: each caller has its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from redrive.core.ports import End, Outgoing, Published
from redrive.core.settlement import ACK
from redrive.runtime.clock import SystemClock
from redrive.sqlite import SqliteFile, SqliteLedger
from redrive.testing.samples import message, outgoing


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[SqliteLedger]:
    ledger = SqliteLedger(SqliteFile(tmp_path / "orders.db", clock=SystemClock()))
    await ledger.open()
    yield ledger
    await ledger.close()


def numbered(number: int, *, once: bool = False) -> Outgoing:
    return Outgoing(queue="orders", message=message(f"m-{number}", key=f"key-{number % 50}"), once=once)


async def test_many_callers_at_once_each_get_their_own_answer(ledger: SqliteLedger) -> None:
    first = await asyncio.gather(*(ledger.publish([numbered(number, once=True)]) for number in range(50)))

    both = await asyncio.gather(*(ledger.publish([numbered(number, once=True)]) for number in range(50, 150)))

    assert [[Published()]] * 50 == first
    assert [[Published(duplicate=True)]] * 100 == both


async def test_a_message_that_cannot_be_stored_does_not_take_its_neighbours_along(ledger: SqliteLedger) -> None:
    bad = Outgoing(queue="orders", message=message("bad", priority=2**70))

    answers = await asyncio.gather(
        *(ledger.publish([each]) for each in (numbered(1), bad, numbered(2))), return_exceptions=True
    )

    assert [Published()] == answers[0] == answers[2]
    assert isinstance(answers[1], Exception)
    taken = await ledger.take("orders", limit=10, lease_ms=1_000, worker="w", wait_ms=0, claims=False)
    assert ["m-1", "m-2"] == [each.received.message.id for each in taken]


async def test_a_caller_that_is_cancelled_does_not_disturb_the_others(ledger: SqliteLedger) -> None:
    gone, staying = (asyncio.ensure_future(ledger.publish([numbered(number)])) for number in (1, 2))
    # sleep: one turn of the loop, so that both are on their way
    await asyncio.sleep(0)

    gone.cancel()

    assert [Published()] == await staying


async def test_more_than_one_batch_can_hold_is_all_published(ledger: SqliteLedger) -> None:
    batches = [[outgoing(f"m-{start}-{n}") for n in range(400)] for start in range(5)]

    answers = await asyncio.gather(*map(ledger.publish, batches))

    assert [[Published()] * 400] * 5 == answers


async def test_ends_committed_at_once_each_get_their_own_answer(ledger: SqliteLedger) -> None:
    await ledger.publish([numbered(number) for number in range(40)])
    taken = await ledger.take("orders", limit=40, lease_ms=60_000, worker="w", wait_ms=0, claims=True)
    ends = [End(taken=each, settlement=ACK) for each in taken]

    answers = await asyncio.gather(*(ledger.commit([end]) for end in [*ends, *ends[:10]]))

    assert [[True]] * 40 + [[False]] * 10 == answers
