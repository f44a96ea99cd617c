"""Very many letters in PostgreSQL (case BR-04): pages, filters and counts walk one index and never all letters.

`REDRIVE_TEST_LETTERS` sets how many: 1 000 000 in a campaign, 20 000 otherwise. `-s` shows how long each took.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.postgres import Database
from redrive.postgres.database import Tx
from redrive.postgres.search import LOOK_AT, looked_at, where
from redrive.stores.postgres import PostgresGroupStore, PostgresLetterStore
from redrive.testing.samples import letter
from redrive.testing.servers.postgres import PostgresNode, ask

COUNT = int(os.environ.get("REDRIVE_TEST_LETTERS", "20000"))
DIED_AT = 1_700_000_000_000
ROUNDS = 20
FILL_STEP = 50_000

_FILL = """
WITH fresh AS (
    INSERT INTO redrive_letter (id, queue, dead_letter_queue, message_id, key, tenant, message_type, reason_code,
        reason_text, error_type, error_code, attempt_count, fingerprint, group_title, state, first_failed_at,
        dead_lettered_at, redrive_count, body_bytes)
    SELECT 'dl_' || n, 'queue-' || mod(n, 10), 'queue-' || mod(n, 10) || '.dead', 'm-' || n, 'k-' || n,
        'tenant-' || mod(n, 500), 'type-' || mod(n, 20), 'REASON_' || mod(n, 7),
        'no answer from host ' || mod(n, 100), 'Error' || mod(n, 30), 'CODE_' || mod(n, 50),
        5, 'fp-' || mod(n, 300), 'a problem', CASE WHEN mod(n, 10) = 0 THEN 3 WHEN mod(n, 1000) = 1 THEN 1 ELSE 0 END,
        1700000000000 + n, 1700000000000 + n, 0, 400
    FROM generate_series(%s::int, %s::int) n RETURNING seq
) INSERT INTO redrive_letter_content (seq, system, published_at, body)
SELECT seq, 'shop', 0, convert_to(repeat('x', 400), 'UTF8') FROM fresh
"""

FILTERS = {
    "first page": Selection(),
    "state": Selection(states=frozenset({ReviewState.CLOSED})),
    "rare state": Selection(states=frozenset({ReviewState.REVIEWED})),
    "queue": Selection(queue="queue-3"),
    "dead-letter queue": Selection(queue="queue-3.dead"),
    "type": Selection(message_type="type-7"),
    "error type": Selection(error_type="Error11"),
    "error code": Selection(error_code="CODE_13"),
    "tenant": Selection(tenant="tenant-77"),
    "group": Selection(fingerprint="fp-9"),
    "key": Selection(key="k-77"),
    "message id": Selection(message_id="m-78"),
    "time": Selection(since=DIED_AT + COUNT // 2, until=DIED_AT + COUNT // 2 + 500),
    "queue and state": Selection(queue="queue-3", states=frozenset({ReviewState.PENDING})),
    "tenant, queue, time": Selection(tenant="tenant-73", queue="queue-3", since=DIED_AT + COUNT // 2),
    "open letters of a queue": Selection(
        queue="queue-1", states=frozenset({ReviewState.PENDING, ReviewState.REVIEWED})
    ),
    "nobody's": Selection(tenant="nobody", queue="queue-3"),
    "common text": Selection(text="HOST 7"),
    "text of a tenant": Selection(tenant="tenant-77", text="host 77"),
}
MATCHING_NO_INDEX = {"no such text": Selection(text="never said")}
"""A walk over all summaries, said so in the docs."""


async def timed(call: Callable[[], Awaitable[object]], rounds: int = ROUNDS) -> tuple[float, float]:
    """The median and the 95th percentile, in ms."""
    took = []
    for _ in range(rounds):
        started = time.perf_counter()
        await call()
        took.append((time.perf_counter() - started) * 1_000)
    return statistics.median(took), statistics.quantiles(took, n=20)[-1]


def told(name: str, ms: tuple[float, float]) -> None:
    sys.stdout.write(f"{COUNT} letters, {name}: p50 {ms[0]:.1f} ms, p95 {ms[1]:.1f} ms\n")


async def test_pages_filters_and_counts_never_walk_all_letters(postgres_alone: PostgresNode) -> None:
    with postgres_alone.database() as url:
        database = Database(url)
        letters, groups = PostgresLetterStore(database), PostgresGroupStore(database)
        await letters.open()
        for first in range(1, COUNT + 1, FILL_STEP):
            ask(url, _FILL, (first, min(COUNT, first + FILL_STEP - 1)))
        ask(url, "VACUUM ANALYZE")

        assert COUNT == (await letters.stats(Selection())).total
        told("counts of all", await timed(lambda: letters.stats(Selection())))
        for name, selection in FILTERS.items():
            told(name, await timed(lambda chosen=selection: letters.find(chosen, limit=50)))
        deep = f"{DIED_AT + COUNT - 500}-{COUNT - 500}"
        told("deep page", await timed(lambda: letters.find(Selection(), limit=50, cursor=deep)))
        for name, selection in MATCHING_NO_INDEX.items():
            told(name, await timed(lambda chosen=selection: letters.find(chosen, limit=50), rounds=3))
        for name, counted in {
            "open letters": Selection(states=OPEN_STATES),
            "a queue": Selection(queue="queue-3"),
            "a tenant": Selection(tenant="tenant-77"),
            "a reason, up to 10 000": Selection(reason_code="REASON_3"),
            "a time, up to 10 000": Selection(since=DIED_AT + COUNT // 2),
        }.items():
            told(f"counts of {name}", await timed(lambda chosen=counted: letters.stats(chosen, up_to=10_000)))
        told("groups", await timed(lambda: groups.groups(limit=50)))
        fresh = iter(range(10 * ROUNDS))
        told(
            "put", await timed(lambda: letters.put([letter(f"new-{next(fresh)}", died_at=DIED_AT)]), rounds=10 * ROUNDS)
        )

        # How long it takes says something of the machine; what is read says it of the plan.
        for name, selection in FILTERS.items():
            if selection.text is None:
                read = await database.read(lambda tx, chosen=selection: rows_read(tx, chosen))
                assert read <= max(2_000, COUNT // 20), f"{name} reads {read} rows for a page of 50"
        # Two letters have no index; where many have them, a page is full at once.
        read = await database.read(lambda tx: rows_looked_at(tx, Selection(text="st")))
        assert read <= 1_000, f"a page reads {read} rows, all of which have the text"
        await letters.close()


def rows_read(tx: Tx, selection: Selection) -> int:
    """Rows that a page of this selection touches, by the server's own account."""
    found = where(tx, selection)
    ((plan,),) = tx.execute(
        f"EXPLAIN (ANALYZE, FORMAT JSON, TIMING OFF) SELECT * FROM @letter l WHERE {found.text} "
        f"ORDER BY {found.order} LIMIT 51",
        found.values,
    ).fetchall()
    return _touched(plan[0]["Plan"])


def rows_looked_at(tx: Tx, selection: Selection) -> int:
    """The same of a page whose letters are looked through."""
    found = where(tx, selection)
    ((plan,),) = tx.execute(
        f"EXPLAIN (ANALYZE, FORMAT JSON, TIMING OFF) SELECT * FROM {looked_at(found)} LIMIT 51",
        [*found.fast_values, LOOK_AT, *found.slow_values],
    ).fetchall()
    return _touched(plan[0]["Plan"])


def _touched(node: dict[str, object]) -> int:
    own = sum(int(str(node.get(name, 0))) for name in ("Actual Rows", "Rows Removed by Filter"))
    inner = node.get("Plans", [])
    assert isinstance(inner, list)
    return max([own, *(_touched(each) for each in inner)])
