"""Whose turn it is: shares, the limit in a row, nobody starved, nothing idle; against any pattern of arrivals."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.policy.fairness import (
    LEAST_ADVANCE,
    MAX_COST,
    MAX_GROUP_BYTES,
    SCALE,
    Scheduler,
    TenantRecord,
    Turn,
    VirtualTime,
    charged,
    group_of,
    mean_after,
    plan,
    priority,
    record_of,
    starts_before,
    step_of,
)

TENANTS = st.integers(0, 6).map(lambda number: f"t{number}")
WEIGHTS = st.sampled_from([0.25, 0.5, 1.0, 1.0, 2.0, 4.0, 8.0])
ARRIVALS = st.lists(st.one_of(TENANTS, st.integers(1, 9)), max_size=200)
"""A tenant's name: one message of it comes. A number: so many starts are asked for."""


class Queue:
    """The messages of one queue, numbered as they come, and what was started."""

    def __init__(self, *, batch: int = 3, weights: dict[str, float] | None = None) -> None:
        self.weights = weights or {}
        self.scheduler = Scheduler(batch=batch, step_for=lambda name: step_of(self.weights.get(name, 1.0)))
        self.waiting: dict[str, deque[int]] = {}
        self.numbers = 0
        self.started: list[tuple[str, int]] = []
        self.beside: list[frozenset[str]] = []
        """Who waited at each start, the one that started included."""

    def publish(self, tenant: str, count: int = 1) -> None:
        for _ in range(count):
            self.numbers += 1
            self.waiting.setdefault(tenant, deque()).append(self.numbers)
            self.scheduler.wait(tenant)

    def take(self, limit: int) -> list[str]:
        before = sum(map(len, self.waiting.values()))
        starts = self.scheduler.take(limit, lambda name: len(self.waiting.get(name, ())))
        assert min(limit, before) == len(starts), "something waited and nothing was started"
        for tenant in starts:
            self.beside.append(frozenset(name for name, numbers in self.waiting.items() if numbers))
            self.started.append((tenant, self.waiting[tenant].popleft()))
        return starts

    def drain(self) -> None:
        while self.take(10):
            pass

    def longest_run_beside_another(self) -> int:
        longest = run = 0
        last = None
        for (tenant, _), waiting in zip(self.started, self.beside, strict=True):
            is_alone = waiting == {tenant}
            run = run + 1 if tenant == last else 1
            last = tenant
            if not is_alone:
                longest = max(longest, run)
        return longest


def play(queue: Queue, arrivals: Iterable[str | int]) -> Queue:
    for each in arrivals:
        if isinstance(each, str):
            queue.publish(each)
        else:
            queue.take(each)
    queue.drain()
    return queue


# ------------------------------------------------------------------------------------------------ any arrivals


@given(arrivals=ARRIVALS, batch=st.integers(1, 4), weights=st.dictionaries(TENANTS, WEIGHTS))
def test_nobody_starts_more_than_the_batch_in_a_row_while_another_waits(
    arrivals: list[str | int], batch: int, weights: dict[str, float]
) -> None:
    queue = play(Queue(batch=batch, weights=weights), arrivals)

    # A run that began while nobody else waited may have been longer already; its next start ends it.
    for (tenant, _), waiting, place in zip(queue.started, queue.beside, range(len(queue.started)), strict=True):
        before = [name for name, _ in queue.started[max(0, place - batch) : place]]
        assert len(before) < batch or waiting == {tenant} or set(before) != {tenant}


@given(arrivals=ARRIVALS, batch=st.integers(1, 4), weights=st.dictionaries(TENANTS, WEIGHTS))
def test_everything_starts_once_and_in_order_within_its_tenant(
    arrivals: list[str | int], batch: int, weights: dict[str, float]
) -> None:
    queue = play(Queue(batch=batch, weights=weights), arrivals)

    by_tenant: dict[str, list[int]] = {}
    for tenant, number in queue.started:
        by_tenant.setdefault(tenant, []).append(number)
    assert sum(isinstance(each, str) for each in arrivals) == len(queue.started)
    assert all(a < b for numbers in by_tenant.values() for a, b in pairwise(numbers))


@given(arrivals=ARRIVALS, batch=st.integers(1, 4), weights=st.dictionaries(TENANTS, WEIGHTS))
def test_nobody_waits_for_more_starts_than_the_bound_says(
    arrivals: list[str | int], batch: int, weights: dict[str, float]
) -> None:
    queue = play(Queue(batch=batch, weights=weights), arrivals)
    everybody = {f"t{number}" for number in range(7)}

    waits: Counter[str] = Counter()
    for (tenant, _), waiting in zip(queue.started, queue.beside, strict=True):
        for name in waiting:
            waits[name] += 1
        for name in set(waits) - waiting:
            del waits[name]
        del waits[tenant]
        for name, count in waits.items():
            others = [weights.get(other, 1.0) for other in everybody - {name}]
            assert count <= starts_before(weights.get(name, 1.0), others)


@given(st.integers(2, 12), st.integers(1, 5))
def test_equal_tenants_that_always_wait_take_turns_exactly(tenants: int, batch: int) -> None:
    queue = Queue(batch=batch)
    for number in range(tenants):
        queue.publish(f"t{number}", 30)
    queue.drain()

    for start in range(0, 30 * tenants, tenants):
        assert tenants == len({tenant for tenant, _ in queue.started[start : start + tenants]})


# ------------------------------------------------------------------------------------------------ shares


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_weights_one_two_four_give_such_shares(limit: int) -> None:
    queue = Queue(weights={"one": 1, "two": 2, "four": 4})
    for tenant in ("one", "two", "four"):
        queue.publish(tenant, 4_000)

    while len(queue.started) < 7_000:
        queue.take(limit)

    shares = Counter(tenant for tenant, _ in queue.started[:7_000])
    assert {"one": 1_000, "two": 2_000, "four": 4_000} == pytest.approx(dict(shares), rel=0.01)
    assert queue.longest_run_beside_another() <= 3


def test_the_limit_in_a_row_bounds_what_a_weight_can_buy() -> None:
    queue = Queue(weights={"rich": 100})
    queue.publish("rich", 1_000)
    queue.publish("poor", 1_000)

    queue.take(1_000)

    assert {"rich": 750, "poor": 250} == Counter(tenant for tenant, _ in queue.started)


def test_passed_over_turns_are_not_saved_up() -> None:
    queue = Queue(weights={"rich": 100, "also rich": 100})
    queue.publish("rich", 10_000)
    queue.publish("poor", 10_000)
    queue.take(2_000)
    queue.publish("also rich", 1_000)

    queue.take(600)

    runs = [len(list(run)) for is_poor, run in groupby(tenant == "poor" for tenant, _ in queue.started[2_000:])]
    assert max(runs[:-1]) <= starts_before(1, [100, 100])


def test_a_tenant_that_was_away_is_not_paid_for_it() -> None:
    queue = Queue()
    queue.publish("busy", 1_000)
    queue.publish("away", 1)
    queue.take(500)
    queue.publish("away", 100)

    queue.take(20)

    shares = Counter(tenant for tenant, _ in queue.started[-20:])
    assert {"busy": 10, "away": 10} == pytest.approx(dict(shares), abs=1)


# ------------------------------------------------------------------------------------------------ newcomers


def test_one_message_starts_next_whatever_lies_before_it() -> None:
    """Case FA-01: of a tenant that floods, at most what is in hand comes first."""
    queue = Queue()
    queue.publish("A", 1_000)
    queue.take(4)
    queue.publish("B")

    assert "B" in queue.take(2)


def test_newcomers_for_ever_do_not_starve_who_waits() -> None:
    """Virtual time moves on at every start, so newcomers come in behind whoever waits, at some time."""
    at, waits = VirtualTime(), SCALE // 64
    queue = [Turn(waits, 1, 1, SCALE)]

    for number in range(2, SCALE):
        planned = plan([*queue, Turn(at.now, number, 1, SCALE)], at, limit=1, batch=3)
        at = planned.at
        if planned.starts == [1]:
            break

    assert number <= waits // LEAST_ADVANCE + 3


def test_who_has_nothing_is_forgotten() -> None:
    queue = Queue()
    for number in range(5_000):
        queue.publish(f"t{number}", 2)
        queue.take(2)
    queue.publish("last", 100)
    queue.take(100)

    assert queue.scheduler.known < 500


# ------------------------------------------------------------------------------------------------ arithmetic


@given(
    turns=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5), st.sampled_from([1, 2, 5])), max_size=30),
    limit=st.integers(1, 10),
    batch=st.integers(1, 4),
)
def test_a_plan_needs_no_more_groups_than_it_starts_and_one(
    turns: list[tuple[int, int, int]], limit: int, batch: int
) -> None:
    everybody = sorted(
        Turn(place * 1_000, number, room, step_of(weight)) for number, (place, room, weight) in enumerate(turns, 1)
    )
    at = VirtualTime(25_000, 1, 2)

    assert plan(everybody, at, limit=limit, batch=batch) == plan(everybody[: limit + 1], at, limit=limit, batch=batch)


@given(st.integers(0, 2**40), WEIGHTS, st.floats(0, 1e9))
def test_a_cost_counts_within_bounds(place: int, weight: float, cost: float) -> None:
    step = step_of(weight)

    moved = charged(place, step, cost=cost) - place

    assert -step <= moved <= step * MAX_COST
    assert place == charged(place, step, cost=1.0)


def test_dear_messages_get_as_much_time_as_cheap_ones() -> None:
    queue, mean = Queue(batch=100), 0.0
    spent: Counter[str] = Counter()
    for tenant in ("dear", "cheap"):
        queue.publish(tenant, 5_000)

    for _ in range(4_000):
        (tenant,) = queue.take(1)
        cost = 40.0 if tenant == "dear" else 10.0
        mean = mean_after(mean, cost)
        queue.scheduler.charge(tenant, cost / mean)
        spent[tenant] += round(cost)

    assert spent["dear"] == pytest.approx(spent["cheap"], rel=0.1)


# ------------------------------------------------------------------------------------------------ groups, records


@pytest.mark.parametrize(
    ("tenant", "group"),
    [
        (None, "-"), ("", "-"), ("  ", "-"), ("\t\n", "-"), ("-", "-"), (42, "42"), ("42", "42"), ("Acme", "Acme"),
        ("acme", "acme"), (b"A", "A"), (b"\xff", "\ufffd"), ("a/b:c*", "a/b:c*"), (True, "True"),
        ("a\x00b", "a\ufffdb"),
    ],
)  # fmt: skip
def test_odd_tenants_have_a_group(tenant: object, group: str) -> None:
    """Case FA-02."""
    assert group == group_of(tenant)


@given(st.one_of(st.none(), st.text(), st.binary(), st.integers()))
def test_any_tenant_has_a_short_group_that_can_be_kept_and_is_stable(tenant: object) -> None:
    """Case FA-02."""
    group = group_of(tenant)

    assert 1 <= len(group.encode()) <= MAX_GROUP_BYTES
    assert group == group_of(group)


def test_a_long_tenant_is_cut() -> None:
    """Case FA-02."""
    assert group_of("x" * 10_240) == group_of("x" * 10_000)
    assert MAX_GROUP_BYTES - 1 <= len(group_of("é" * 10_240).encode()) <= MAX_GROUP_BYTES


def test_three_hundred_messages_without_a_tenant_share_one_turn() -> None:
    """Case FA-02."""
    queue = Queue()
    queue.publish(group_of(None), 300)
    others = {group_of(each) for each in ("", "  ", 42, "42", "Acme", "acme", b"A", "x" * 10_240, "a/b:c*")}
    for each in others - {"-"}:
        queue.publish(each)

    first = queue.take(12)

    assert others <= set(first)


def test_priorities_are_as_the_system_has_them() -> None:
    assert [5, 4, 3, 2, 1, 1, 1] == [priority(rounds) for rounds in range(7)]
    assert [9, 7, 5, 3, 3] == [priority(rounds, base=9, increment=2, top=3) for rounds in range(5)]


def test_a_record_tells_who_is_behind() -> None:
    at = VirtualTime(now=10 * SCALE, last=1, run=2)

    behind = record_of(7 * SCALE, 2, at, waits=True)
    served = record_of(11 * SCALE, 1, at, waits=True, served_at=99, total=4)
    idle = record_of(0, 3, at, waits=False)

    assert TenantRecord(rounds_without_processing=3, current_priority=2) == behind
    assert TenantRecord() == idle
    assert {
        "lastProcessedAt": 99,
        "roundsWithoutProcessing": 0,
        "currentPriority": 5,
        "totalProcessed": 4,
        "consecutiveBatchCount": 2,
    } == served.document()
    assert {"t": 1} == {name: record.consecutive_batch_count for name, record in one_start().records().items()}


def one_start() -> Scheduler:
    scheduler = Scheduler(batch=3, step_for=lambda _: SCALE)
    scheduler.wait("t")
    scheduler.take(1, lambda _: 2)
    return scheduler


def longest(starts: Sequence[str]) -> int:
    return max((len(list(run)) for _, run in groupby(starts)), default=0)


def test_with_room_for_one_only_others_go_on() -> None:
    """Case FA-05: who is held back by a limit is no reason to wait."""
    scheduler = Scheduler(batch=1, step_for=lambda _: SCALE)
    for name in ("limited", "free"):
        scheduler.wait(name)

    starts = scheduler.take(10, lambda name: 1 if name == "limited" else 100)

    assert 1 == starts.count("limited")
    assert 9 == longest(starts[-9:])
