"""The desk of a sorter, over queues that are lists: order within a tenant, nothing lost, nobody hidden by a backlog."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.policy.fair import Fair
from redrive.core.policy.sorting import AWAY_MS, Desk, Held
from redrive.core.topology.bundle import bundle_of, shared_aside_of

WINDOW = 8
SOURCES = ("mail", "mail.turns.00")
OWN = ("mail.aside.00", "mail.aside.01")
SHARED = ("mail.aside.02", "mail.aside.03")
Message = tuple[str, int]


class Queues:
    """A broker and a sorter that may die: what is held and not acknowledged goes back to where it lay."""

    def __init__(self, fair: Fair) -> None:
        self.fair = fair
        self.now = 1_000_000
        self.ready: dict[str, deque[Message]] = {name: deque() for name in (*SOURCES, *OWN, *SHARED)}
        self.out: list[Message] = []
        self._held: dict[str, list[Held[Message]]] = {}
        self.begin()

    def begin(self) -> None:
        """A new sorter."""
        for source, held in self._held.items():
            self.ready[source].extendleft(reversed([each.what for each in held]))
        self._held = {name: [] for name in self.ready}
        self.desk: Desk[Message] = Desk(
            dict.fromkeys(self.ready, WINDOW),
            own=OWN,
            shared=SHARED,
            shared_of=lambda group: shared_aside_of(group, SHARED),
            fair=lambda: self.fair,
            began_at=self.now,
        )
        for aside in (*OWN, *SHARED):
            self.desk.found(aside, len(self.ready[aside]))

    def read(self, source: str) -> bool:
        """One message is pushed, if there is one and the window lets it."""
        may = source not in SOURCES or self.desk.is_ready
        if not may or not self.ready[source] or len(self._held[source]) >= WINDOW:
            return False
        message = self.ready[source].popleft()
        held = Held(source, message[0], message)
        self._held[source].append(held)
        self.desk.arrived(held)
        return True

    def move(self, *, dies: bool = False) -> bool:
        """The first that has to go aside goes; where the sorter dies then, it is not acknowledged."""
        if not self.desk.moves:
            return False
        held, aside = self.desk.moves.popleft()
        self.ready[aside].append(held.what)
        if not dies:
            self._end(held)
        return True

    def start(self, limit: int, *, dies: bool = False) -> bool:
        taken = self.desk.take(limit, self.now)
        for held in taken:
            self.out.append(held.what)
            if not dies:
                self._end(held)
        return bool(taken)

    def _end(self, held: Held[Message]) -> None:
        self._held[held.source].remove(held)
        self.desk.ended(held)

    def settle(self) -> None:
        """Read and move until nothing changes."""
        while any([self.read(name) for name in self.ready] + [self.move()]):
            pass

    def drain(self, most: int = 100_000) -> None:
        """One start at a time, everything else in between."""
        for _ in range(most):
            self.settle()
            if not self.start(1):
                return


def firsts(out: Iterable[Message]) -> dict[str, list[int]]:
    """By tenant, its messages in the order in which they came out first."""
    found: dict[str, list[int]] = {}
    for tenant, number in dict.fromkeys(out):
        found.setdefault(tenant, []).append(number)
    return found


def numbered(tenants: Iterable[str]) -> list[Message]:
    counts: Counter[str] = Counter()
    messages = []
    for tenant in tenants:
        messages.append((tenant, counts[tenant]))
        counts[tenant] += 1
    return messages


LIMITED = Fair(rate={"c": "1 per 10 s"})


def run(queues: Queues, rng: random.Random, steps: int) -> list[Message]:
    """Publish, read, move, start and die in any order; what was published."""
    counts: Counter[str] = Counter()
    for _ in range(steps):
        match rng.choice(["publish", "read", "read", "read", "move", "move", "start", "die"]):
            case "publish":
                tenant = rng.choice("aaaaaabbbcdefghijkl")
                for _ in range(rng.choice([1, 1, 4, 30 if tenant in "ab" else 1])):
                    # Each tenant's messages come one way: between two of them there is no order.
                    queues.ready[SOURCES[ord(tenant) % 2]].append((tenant, counts[tenant]))
                    counts[tenant] += 1
            case "read":
                source = rng.choice(list(queues.ready))
                for _ in range(rng.randrange(1, WINDOW)):
                    queues.read(source)
            case "move":
                for _ in range(rng.randrange(6)):
                    queues.move()
            case "start":
                queues.start(rng.randrange(1, 4))
            case _ if rng.random() < 0.1:
                for _ in range(rng.randrange(4)):
                    queues.move(dies=True)
                queues.start(rng.randrange(3), dies=True)
                queues.begin()
    return [(tenant, number) for tenant, count in counts.items() for number in range(count)]


@pytest.mark.parametrize("fair", [Fair(), LIMITED, Fair(weights={"a": 4})])
@given(seed=st.integers(0, 10**9))
def test_within_a_tenant_the_order_stays_and_nothing_is_lost_whoever_dies(fair: Fair, seed: int) -> None:
    queues = Queues(fair)

    messages = run(queues, random.Random(seed), 300)
    for _ in range(len(messages)):
        queues.drain()
        if set(messages) == set(queues.out):
            break
        queues.now += 11_000

    assert set(messages) == set(queues.out)
    for numbers in firsts(queues.out).values():
        assert numbers == sorted(numbers)


def test_a_backlog_hides_nobody_behind_it() -> None:
    queues = Queues(Fair())
    queues.ready["mail"].extend(numbered(["noisy"] * 5_000 + ["quiet"]))

    queues.settle()
    queues.start(4)

    assert ("quiet", 0) in queues.out


def test_a_backlog_of_more_tenants_than_the_window_has_room_for_hides_nobody() -> None:
    queues = Queues(Fair())
    queues.ready["mail"].extend(numbered([f"noisy-{number % 20}" for number in range(2_000)] + ["quiet"]))

    queues.drain(60)

    assert ("quiet", 0) in queues.out


def test_a_tenant_at_its_rate_lets_the_others_pass_and_loses_no_turn() -> None:
    queues = Queues(Fair(rate="2 per 10 s"))
    queues.ready["mail"].extend(numbered([name for name in "abcdefghijklmnop" for _ in range(3)]))

    queues.drain()
    at_once = list(queues.out)
    queues.now += 11_000
    queues.drain()

    # A new sorter counts every rate as used up.
    assert [] == at_once
    assert {2} == set(Counter(tenant for tenant, _ in queues.out).values())
    assert 16 == len({tenant for tenant, _ in queues.out})


def test_tenants_with_a_backlog_have_equal_shares_though_they_lie_aside() -> None:
    queues = Queues(Fair())
    queues.ready["mail"].extend(numbered(["a"] * 300 + ["b"] * 300))

    queues.drain(200)

    assert {"a": 100, "b": 100} == pytest.approx(dict(Counter(tenant for tenant, _ in queues.out)), abs=2)


def sent_away() -> Queues:
    """All of `a` is on its way aside, a moment before its turn; `b` waits."""
    queues = Queues(Fair())
    queues.ready["mail"].extend(numbered(["a"] * 6))
    queues.ready["mail.turns.00"].extend(numbered(["b"] * 3))
    while queues.read("mail") or queues.read("mail.turns.00"):
        pass
    assert {"a"} == {held.group for held, _ in queues.desk.moves}
    return queues


def test_the_turn_of_a_tenant_that_is_being_put_aside_is_waited_for() -> None:
    queues = sent_away()

    early = (queues.start(4), queues.desk.can_start)
    queues.settle()
    queues.start(4)

    assert (False, False) == early
    assert [("a", 0), ("b", 0), ("a", 1), ("b", 1)] == queues.out


def test_who_comes_new_does_not_wait_for_a_tenant_that_is_away_and_had_its_start() -> None:
    queues = Queues(Fair())
    queues.ready["mail"].extend(numbered(["a"] * 7))
    queues.read("mail")
    queues.start(1)
    while queues.read("mail"):
        pass
    before = len(queues.desk.moves)
    queues.start(1)
    queues.ready["mail.turns.00"].append(("new", 0))
    queues.read("mail.turns.00")

    queues.start(9)

    assert 6 == before
    assert [("a", 0), ("new", 0)] == queues.out


def test_a_tenant_that_does_not_come_back_is_waited_for_only_so_long() -> None:
    queues = sent_away()
    queues.start(4)
    until = queues.desk.next_at()

    queues.now += AWAY_MS
    queues.start(4)

    assert until == queues.now
    assert [("b", 0), ("b", 1), ("b", 2)] == queues.out
    assert queues.desk.next_at() is None


def test_what_is_put_aside_is_read_back_and_the_aside_is_free_again() -> None:
    queues = Queues(Fair())
    queues.ready["mail"].extend(numbered(["a"] * 50))
    queues.drain()
    queues.ready["mail"].extend(numbered(["b"] * 50))
    queues.settle()

    assert 50 == len(queues.out)
    assert queues.ready[OWN[0]]
    assert not queues.ready[OWN[1]]


def test_a_group_has_one_shard_and_all_shards_have_groups() -> None:
    bundle = bundle_of("mail")

    assert set(bundle.shards) == {bundle.shard_of(f"tenant-{number}") for number in range(1_000)}
    assert "mail.turns.14" == bundle.shard_of("acme")
