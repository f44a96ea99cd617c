"""Turns in the tables of one file, against any pattern of publishing, taking, failing and handing back."""

from __future__ import annotations

import sqlite3
from collections import Counter, deque
from contextlib import closing
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from redrive.core import settlement
from redrive.core.policy.fair import Fair
from redrive.core.policy.fairness import starts_before
from redrive.core.ports import Received, Settle
from redrive.core.settlement import Reason
from redrive.sqlite import queue as messages
from redrive.sqlite.schema import migrate, migrations
from redrive.sqlite.writer import Tx
from redrive.testing.samples import QUEUE, outgoing

WHY = Reason(code="TEST", text="the test wants it")
LEASE_MS = 1_000
TENANTS = [f"t{number}" for number in range(5)]
WEIGHTS = st.dictionaries(st.sampled_from(TENANTS), st.sampled_from([0.5, 1.0, 2.0, 4.0]))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.lists(st.sampled_from(TENANTS), min_size=1, max_size=9)),
        st.tuples(st.just("take"), st.integers(1, 8)),
        st.tuples(st.just("end"), st.sampled_from(["ack", "retry", "requeue", "later"])),
        st.tuples(st.just("wait"), st.integers(1, LEASE_MS * 2)),
        st.tuples(st.just("discard"), st.sampled_from(TENANTS)),
    ),
    max_size=60,
)


class File:
    """The tables in memory, and the statements that a process runs on them."""

    def __init__(self, connection: sqlite3.Connection, fair: Fair) -> None:
        self.connection = connection
        self.fair = fair
        self.now = 1_700_000_000_000
        self.numbers = 0
        self.in_hand: deque[Received] = deque()
        self.order: list[tuple[str, frozenset[str]]] = []
        migrate(connection, migrations())

    def tx(self) -> Tx:
        return Tx(self.connection, self.now, fair={QUEUE: self.fair})

    def waiting(self) -> Counter[str]:
        """What can be handed out, by tenant; read from the plain table, not from the turns."""
        rows = self.connection.execute(
            "SELECT m.tenant, count(*) FROM redrive_message m WHERE m.seq IN (SELECT seq FROM redrive_ready UNION ALL "
            "SELECT seq FROM redrive_scheduled WHERE due_at <= :now UNION ALL "
            "SELECT seq FROM redrive_leased WHERE lease_until <= :now) GROUP BY 1",
            {"now": self.now},
        )
        return Counter(dict(rows))

    def publish(self, tenants: list[str]) -> None:
        self.numbers += len(tenants)
        first = self.numbers - len(tenants)
        messages.publish(self.tx(), [outgoing(f"m-{first + n}", tenant=name) for n, name in enumerate(tenants)])

    def take(self, limit: int) -> None:
        before = self.waiting()
        tx = self.tx()
        leased = messages.lease(
            tx, messages.look(tx, QUEUE, limit=limit, with_claims=True), lease_ms=LEASE_MS, worker="w"
        )
        received = [] if leased is None else leased.received()
        assert min(limit, before.total()) == len(received), "something waited and was not handed out"
        left = before.copy()
        for each in received:
            tenant = str(each.message.tenant)
            self.order.append((tenant, frozenset(name for name, count in left.items() if count)))
            left[tenant] -= 1
        self.in_hand += received

    def end(self, how: str) -> None:
        if not self.in_hand:
            return
        each = self.in_hand.popleft()
        ends: dict[str, Any] = {
            "ack": settlement.ACK,
            "retry": settlement.Retry(due_at=self.now, reason=WHY),
            "later": settlement.Retry(due_at=self.now + 500, reason=WHY),
            "requeue": settlement.Requeue(due_at=self.now, reason=WHY),
        }
        messages.settle(self.tx(), [Settle(lease=each.lease, settlement=ends[how])])

    def wait(self, ms: int) -> None:
        self.now += ms

    def discard(self, tenant: str) -> None:
        messages.discard(self.tx(), QUEUE, lambda message: message.tenant == tenant, limit=3)

    def check_tables(self) -> None:
        """The turns tell what the plain table tells."""
        ready = dict(
            self.connection.execute(
                "SELECT m.tenant, count(*) FROM redrive_ready r JOIN redrive_message m ON m.seq = r.seq GROUP BY 1"
            )
        )
        rows = self.connection.execute("SELECT name, waiting, state FROM redrive_turn").fetchall()
        assert ready == {name: waiting for name, waiting, _ in rows if waiting}
        assert all((waiting > 0) == (state > 0) for _, waiting, state in rows)
        assert sum(ready.values()) == self.connection.execute("SELECT count(*) FROM redrive_turn_ready").fetchone()[0]


def play(connection: sqlite3.Connection, fair: Fair, steps: list[tuple[str, Any]]) -> File:
    file = File(connection, fair)
    file.take(1)
    for name, given_ in steps:
        getattr(file, name)(given_)
        file.check_tables()
    for _ in range(200):
        file.take(5)
        if not file.in_hand:
            break
        while file.in_hand:
            file.end("ack")
        file.wait(2 * LEASE_MS)
    file.check_tables()
    return file


@given(STEPS, WEIGHTS, st.integers(1, 4))
def test_turns_hold_whatever_happens_to_the_messages(
    steps: list[tuple[str, Any]], weights: dict[str, float], batch: int
) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        file = play(connection, Fair(batch=batch, weights=weights), steps)

        assert {} == dict(file.waiting())
        waits: Counter[str] = Counter()
        for place, (tenant, waiting) in enumerate(file.order):
            row = {name for name, _ in file.order[max(0, place - batch) : place + 1]}
            assert place < batch or len(row) > 1 or waiting == {tenant}, "too many in a row while another waits"
            waits = Counter({name: waits[name] + 1 for name in waiting if name != tenant})
            for name, count in waits.items():
                others = [weights.get(other, 1.0) for other in TENANTS if other != name]
                assert count <= starts_before(weights.get(name, 1.0), others)
