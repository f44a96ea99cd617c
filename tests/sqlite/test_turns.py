"""Turns and rates that several processes on one file share, and what a backlog costs."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest

from redrive.brokers.sqlite import SqliteBroker
from redrive.core import settlement
from redrive.core.policy.fair import Fair
from redrive.core.policy.flow import Rate
from redrive.core.ports import Outgoing, Settle
from redrive.core.settlement import Reason
from redrive.sqlite import SqliteFile
from redrive.testing.clock import FakeClock
from redrive.testing.samples import QUEUE, outgoing

FAIR = {QUEUE: Fair()}


@asynccontextmanager
async def opened(
    path: Path, clock: FakeClock, *, fair: Mapping[str, Fair] = FAIR, rates: Mapping[str, Rate] | None = None
) -> AsyncIterator[SqliteBroker]:
    """As a process of its own sees the file."""
    broker = SqliteBroker(SqliteFile(path, clock=clock, durability="normal", fair=fair, rates=rates))
    await broker.open()
    yield broker
    await broker.close()


def of(tenant: str, count: int, *, first: int = 0) -> list[Outgoing]:
    return [outgoing(f"{tenant}-{number}", tenant=tenant) for number in range(first, first + count)]


async def take(broker: SqliteBroker, limit: int) -> list[str | None]:
    taken = await broker.receive(QUEUE, limit=limit, lease_ms=60_000, worker="w", wait_ms=0)
    await broker.settle([Settle(lease=each.lease, settlement=settlement.ACK) for each in taken])
    return [each.message.tenant for each in taken]


async def test_the_order_is_one_for_all_processes(tmp_path: Path) -> None:
    clock, order = FakeClock(), []
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(opened(tmp_path / "one.db", clock)) for _ in range(4)]
        await brokers[0].publish([*of("a", 60), *of("b", 60), *of("c", 60)])
        for turn in range(200):
            order += await take(brokers[turn % 4], 1 + turn % 3)

    assert 180 == len(order)
    for start in range(0, 180, 3):
        assert {"a", "b", "c"} == set(order[start : start + 3])


@pytest.mark.parametrize("fair", [Fair(), Fair(batch=2, weights={"a": 8, "c": 0.5})])
async def test_takes_of_one_come_in_the_order_of_larger_ones(tmp_path: Path, fair: Fair) -> None:
    clock, chance = FakeClock(), random.Random(4)
    tenants = [chance.choice("aaaaabbcd") for _ in range(150)]
    orders = []
    for limit in (1, 7, 150):
        async with opened(tmp_path / f"{limit}.db", clock, fair={QUEUE: fair}) as broker:
            await broker.publish([outgoing(f"{place}", tenant=tenant) for place, tenant in enumerate(tenants)])
            taken = [await take(broker, limit) for _ in range(0, 150 + limit, limit)]
            orders.append([tenant for each in taken for tenant in each])
            assert not any(each.waiting for each in await broker.standings(QUEUE, limit=9))

    assert 150 == len(orders[0])
    assert orders[0] == orders[1] == orders[2]


async def test_a_rate_holds_for_all_processes_together(tmp_path: Path) -> None:
    clock, starts = FakeClock(), []
    rates = {QUEUE: Rate(count=100, per_ms=60_000)}
    async with AsyncExitStack() as stack:
        brokers = [
            await stack.enter_async_context(opened(tmp_path / "one.db", clock, fair={}, rates=rates)) for _ in range(4)
        ]
        await brokers[0].publish(of("a", 1_000))
        for _ in range(5 * 60):
            for broker in brokers:
                starts += [clock.now()] * len(await take(broker, 10))
            await clock.advance(1_000)

    assert max(sum(at <= other < at + 60_000 for other in starts) for at in set(starts)) == 100
    assert len(starts) >= 0.95 * 500


async def test_a_backlog_is_never_read_to_find_whose_turn_it_is(tmp_path: Path) -> None:
    path = tmp_path / "one.db"
    async with opened(path, FakeClock()) as broker:
        await take(broker, 1)
        for first in range(0, 20_000, 1_000):
            await broker.publish(of("noisy", 1_000, first=first))
        for number in range(99):
            await broker.publish(of(f"quiet-{number}", 1))

        first = await take(broker, 100)

    assert 100 == len(set(first))
    looks = (
        "SELECT seq FROM redrive_turn_ready WHERE turn_id = 1 ORDER BY priority, due_at, seq LIMIT 5",
        "SELECT id FROM redrive_turn WHERE queue_id = 1 AND state = 1 ORDER BY place, id LIMIT 5",
    )
    with closing(sqlite3.connect(path)) as connection:
        for look in looks:
            plan = " ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {look}"))
            assert "SCAN" not in plan
            assert "TEMP B-TREE" not in plan


async def test_a_queue_becomes_fair_with_what_lies_in_it(tmp_path: Path) -> None:
    path, clock = tmp_path / "one.db", FakeClock()
    async with opened(path, clock, fair={}) as plain:
        await plain.publish([*of("noisy", 50), *of("quiet", 5)])
    async with opened(path, clock) as fair:
        assert 5 == (await take(fair, 10)).count("quiet")


async def test_a_process_that_takes_no_turns_may_work_beside_one_that_does(tmp_path: Path) -> None:
    path, clock = tmp_path / "one.db", FakeClock()
    async with opened(path, clock) as fair, opened(path, clock, fair={}) as plain:
        await fair.publish([*of("a", 30), *of("b", 30)])
        await take(fair, 4)
        old = await take(plain, 10)
        await plain.publish(of("c", 5))
        rest = [tenant for _ in range(10) for tenant in await take(fair, 10)]

    assert ["a"] * 10 == old
    assert Counter(rest) == {"a": 18, "b": 28, "c": 5}
    assert 5 == rest[:16].count("c")


async def test_groups_without_messages_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "one.db"
    async with opened(path, FakeClock()) as broker:
        for number in range(100):
            await broker.publish(of(f"t{number}", 1))
            await take(broker, 1)
        await broker.publish(of("last", 60))
        for _ in range(60):
            await take(broker, 1)

    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM redrive_turn").fetchone()[0] < 30
        assert connection.execute("SELECT count(*) FROM redrive_turn_ready").fetchone()[0] == 0


async def test_counts_are_right_whatever_happens_to_the_messages(tmp_path: Path) -> None:
    path, clock = tmp_path / "one.db", FakeClock()
    async with opened(path, clock) as broker:
        await broker.publish([*of("a", 10), *of("b", 10)])
        taken = await broker.receive(QUEUE, limit=6, lease_ms=1_000, worker="w", wait_ms=0)
        why = Reason(code="TEST", text="the test wants it")
        ends = [
            settlement.Retry(due_at=clock.now() + 10, reason=why),
            settlement.Requeue(due_at=clock.now(), reason=why),
        ]
        await broker.settle([Settle(lease=each.lease, settlement=end) for each, end in zip(taken, ends, strict=False)])
        await clock.advance(2_000)
        await take(broker, 3)
        await broker.discard(QUEUE, lambda message: message.id == "a-9", limit=100)

        with closing(sqlite3.connect(path)) as connection:
            waiting = dict(connection.execute("SELECT name, waiting FROM redrive_turn"))
            ready = dict(
                connection.execute(
                    "SELECT m.tenant, count(*) FROM redrive_ready r JOIN redrive_message m ON m.seq = r.seq GROUP BY 1"
                )
            )
    assert ready == waiting
    assert sum(ready.values()) in (15, 16)


@pytest.mark.parametrize("cost", [None, "measured"])
async def test_measured_cost_shares_time_instead_of_starts(tmp_path: Path, cost: str | None) -> None:
    clock, spent = FakeClock(), Counter[str]()
    fair = {QUEUE: Fair(batch=100, cost=cost)}  # type: ignore[arg-type]
    async with opened(tmp_path / "one.db", clock, fair=fair) as broker:
        await broker.publish([*of("slow", 400), *of("quick", 400)])
        for _ in range(300):
            (taken,) = await broker.receive(QUEUE, limit=1, lease_ms=60_000, worker="w", wait_ms=0)
            took_ms = 40 if taken.message.tenant == "slow" else 10
            await clock.advance(took_ms)
            await broker.settle([Settle(lease=taken.lease, settlement=settlement.ACK)])
            spent[str(taken.message.tenant)] += took_ms

    assert spent["slow"] == pytest.approx((4 if cost is None else 1) * spent["quick"], rel=0.1)
