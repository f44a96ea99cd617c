"""Places that are given once: the same shares and limits, for whoever serves the smallest number first."""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.policy.fair import Fair
from redrive.core.policy.places import (
    LIMIT,
    REBASE_AT,
    UNIT,
    Places,
    placed,
    rebase_by,
    rebased,
    rebased_place,
    started,
)

TENANTS = st.integers(0, 5).map(lambda number: f"t{number}")
ARRIVALS = st.lists(st.one_of(st.lists(TENANTS, min_size=1, max_size=8), st.integers(1, 6)), max_size=60)


class Broker:
    """Serves the smallest place first, equal ones by age, as BullMQ's `prioritized` set does."""

    def __init__(self, fair: Fair | None = None, *, now: int = 1) -> None:
        self.fair = Fair() if fair is None else fair
        self.places = Places(now=now)
        self.waiting: list[tuple[int, int, str]] = []
        self.count = 0
        self.order: list[tuple[str, int]] = []

    def publish(self, *tenants: str) -> None:
        self.places, found = placed(self.places, tenants, self.fair)
        for tenant, place in zip(tenants, found, strict=True):
            assert 1 <= place <= LIMIT
            self.count += 1
            heapq.heappush(self.waiting, (place, self.count, tenant))

    def work(self, starts: int = 1) -> None:
        for _ in range(min(starts, len(self.waiting))):
            place, number, tenant = heapq.heappop(self.waiting)
            self.places = started(self.places, place)
            self.order.append((tenant, number))
            if by := rebase_by(self.places):
                self.places = rebased(self.places, by)
                self.waiting = [(rebased_place(place, by), number, name) for place, number, name in self.waiting]
                heapq.heapify(self.waiting)

    def drain(self) -> list[str]:
        self.work(len(self.waiting))
        return [tenant for tenant, _ in self.order]


@given(ARRIVALS, st.dictionaries(TENANTS, st.sampled_from([0.5, 1.0, 2.0, 4.0])), st.integers(1, 2 * REBASE_AT))
def test_everything_is_served_in_order_within_its_tenant_also_over_a_rebase(
    arrivals: list[list[str] | int], weights: dict[str, float], now: int
) -> None:
    broker = Broker(Fair(weights=weights), now=now)
    for each in arrivals:
        if isinstance(each, int):
            broker.work(each)
        else:
            broker.publish(*each)
    broker.drain()

    by_tenant: dict[str, list[int]] = {}
    for tenant, number in broker.order:
        by_tenant.setdefault(tenant, []).append(number)
    assert broker.count == len(broker.order)
    assert all(a < b for numbers in by_tenant.values() for a, b in pairwise(numbers))


@given(ARRIVALS)
def test_equal_tenants_never_start_more_than_the_batch_in_a_row_while_another_waits(
    arrivals: list[list[str] | int],
) -> None:
    broker = Broker()
    beside = []

    def work(starts: int) -> None:
        for _ in range(starts):
            beside.append({tenant for *_, tenant in broker.waiting})
            broker.work()

    for each in arrivals:
        if isinstance(each, int):
            work(min(each, len(broker.waiting)))
        else:
            broker.publish(*each)
    work(len(broker.waiting))

    for place in range(3, len(broker.order)):
        row = {tenant for tenant, _ in broker.order[place - 3 : place + 1]}
        # The other one has to have waited for the whole run.
        others = set.intersection(*beside[place - 3 : place + 1]) - row
        assert len(row) > 1 or not others


@pytest.mark.parametrize("tenants", [["one", "two", "four"], ["one", "four"], ["two", "four"]])
def test_weights_give_their_shares_and_no_row_longer_than_the_batch(tenants: list[str]) -> None:
    weights = {"one": 1.0, "two": 2.0, "four": 4.0}
    broker = Broker(Fair(weights={name: weights[name] for name in tenants}))
    for _ in range(700):
        broker.publish(*tenants)
    order = broker.drain()[:700]

    shares = Counter(order)
    total = sum(min(weights[name], 3 * min(weights[other] for other in tenants)) for name in tenants)
    expected = {name: 700 * min(weights[name], 3 * min(weights[o] for o in tenants)) / total for name in tenants}
    if len(tenants) == 3:
        expected = {"one": 100, "two": 200, "four": 400}
    assert expected == pytest.approx(dict(shares), rel=0.1)
    assert all(len(set(order[place - 3 : place + 1])) > 1 for place in range(3, 700))


def test_a_backlog_stands_in_front_of_nobody() -> None:
    broker = Broker()
    broker.publish(*["noisy"] * 100_000)
    broker.work(500)
    broker.publish("quiet")
    broker.work(2)

    assert "quiet" in [tenant for tenant, _ in broker.order[-2:]]


def test_a_backlog_deeper_than_the_places_keeps_its_order_and_lets_others_in() -> None:
    broker = Broker()
    broker.publish(*["noisy"] * (LIMIT // UNIT + 5_000))
    broker.publish(*["quiet"] * 10)
    broker.work(21)
    assert 10 == sum(tenant == "quiet" for tenant, _ in broker.order)

    broker.publish("noisy")
    broker.drain()

    numbers = [number for tenant, number in broker.order if tenant == "noisy"]
    assert numbers == sorted(numbers)


def test_what_others_published_is_placed_as_it_lies_there() -> None:
    broker = Broker()
    broker.publish(*["noisy"] * 50)
    unplaced = ["a", "a", "b", "a", "b"]

    broker.publish(*unplaced)
    order = broker.drain()

    assert {"noisy", "a", "b"} == set(order[:3]) == set(order[3:6])


def test_only_who_is_ahead_is_remembered() -> None:
    broker = Broker()
    for number in range(1_000):
        broker.publish(f"t{number}")
        broker.work()
    broker.publish("x", "x", "x")
    broker.drain()

    assert set(broker.places.ends) <= {"x", *(f"t{number}" for number in range(1_000))}
    assert broker.places.ends.keys() == {name for name, end in broker.places.ends.items() if end > broker.places.now}
