"""Groups on one file: letters of an older file are counted when it is brought forward, and wrong counts are found."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from redrive.core.letters.letter import ReviewState
from redrive.core.letters.review import CLOSED_BY
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.ports import ReviewChange
from redrive.core.settlement import Reason
from redrive.runtime.clock import SystemClock
from redrive.sqlite import SqliteFile
from redrive.sqlite.schema import migrate, migrations
from redrive.sqlite.writer import Tx
from redrive.stores.sqlite import SqliteGroupStore, SqliteLetterStore
from redrive.testing.samples import letter, message

pytestmark = pytest.mark.asyncio

BEFORE_GROUPS = 5
AT = 1_700_000_000_000


async def test_letters_of_a_file_from_before_groups_are_counted(path: Path) -> None:
    old = sqlite3.connect(path, isolation_level=None)
    migrate(old, [step for step in migrations() if step.version <= BEFORE_GROUPS])
    rows = [("a", 3, "acme", None), ("b", 2, "acme", None), ("b2", 0, None, "b"), ("c", 1, None, None)]
    for seq, (name, state, tenant, previous) in enumerate(rows, 1):
        old.execute(
            "INSERT INTO redrive_letter (seq, id, queue, dead_letter_queue, message_id, tenant, reason_code, "
            "reason_text, attempt_count, fingerprint, group_title, state, first_failed_at, dead_lettered_at, "
            "redrive_count, previous, body_bytes, version) VALUES "
            "(?, ?, 'orders', 'orders.dead', 'm', ?, 'X', 'x', 1, 'fp-1', 'title', ?, 1, ?, 0, ?, 0, '1.0')",
            (seq, name, tenant, state, AT + seq, previous),
        )
    trail = [(1, "replayed", "ann"), (1, "closed", CLOSED_BY), (2, "replayed", "ann")]
    for seq, action, actor in trail:
        old.execute(
            "INSERT INTO redrive_audit (letter_seq, at, actor, action, note) VALUES (?, 1, ?, ?, '')",
            (seq, actor, action),
        )
    old.close()

    file = SqliteFile(path, clock=SystemClock())
    await file.open()
    found = await SqliteGroupStore(file).group("fp-1")
    wrong = await SqliteGroupStore(file).recount()
    stats = await SqliteLetterStore(file).stats(Selection())
    await file.close()

    assert found is not None
    group = found[0]
    assert (4, 2, 4) == (group.count, group.waiting, group.seen)
    assert (2, 1, 1) == (group.redriven, group.succeeded, group.returned)
    assert (("-", 2), ("acme", 2)) == group.top_tenants
    assert (("1.0", 4),) == group.versions
    assert (AT + 1, AT + 4) == (group.first_seen, group.last_seen)
    assert wrong == 0
    assert (4, {"-": 2, "acme": 2}) == (stats.total, stats.by_tenant)
    assert {"closed": 1, "pending": 1, "replayed": 1, "reviewed": 1} == stats.by_state


async def test_counts_that_went_wrong_are_made_anew(path: Path) -> None:
    file = SqliteFile(path, clock=SystemClock())
    await file.open()
    letters, groups = SqliteLetterStore(file), SqliteGroupStore(file)
    plain = letter("b", message=message("b", tenant="acme"))
    await letters.put([letter("a", version="1.0"), plain, letter("c", fingerprint="fp-2")])
    await letters.review([ReviewChange(letter_id="a", to=ReviewState.CLOSED, actor="ann", at=AT)])
    right, stats = await groups.groups(limit=10), await letters.stats(Selection())
    await file.write(_spoil)

    assert stats != await letters.stats(Selection())
    assert await groups.recount() == len(("fp-1", "fp-2", "fp-3"))
    assert right == await groups.groups(limit=10)
    assert stats == await letters.stats(Selection())
    assert await groups.recount() == 0
    await file.close()


def _spoil(tx: Tx) -> None:
    tx.execute("UPDATE redrive_group SET pending = 7 WHERE fingerprint = 'fp-1'")
    tx.execute("DELETE FROM redrive_group WHERE fingerprint = 'fp-2'")
    tx.execute("INSERT INTO redrive_group_tenant VALUES ('fp-3', 'nobody', 1)")
    tx.execute("DELETE FROM redrive_group_version")
    tx.execute("UPDATE redrive_letter_count SET count = 9")


async def test_sums_that_went_wrong_alone_are_found(path: Path) -> None:
    file = SqliteFile(path, clock=SystemClock())
    await file.open()
    await SqliteLetterStore(file).put([letter("a")])
    await file.write(lambda tx: tx.execute("DELETE FROM redrive_letter_count WHERE kind = 1"))
    groups = SqliteGroupStore(file)

    assert await groups.recount() == 1
    assert await groups.recount() == 0
    await file.close()


async def test_kept_sums_are_what_a_count_of_the_letters_says(path: Path) -> None:
    file, draw = SqliteFile(path, clock=SystemClock()), random.Random(4)
    await file.open()
    letters = SqliteLetterStore(file)
    for number in range(120):
        name = draw.choice("abc")
        await letters.put(
            [
                letter(
                    f"l{number}",
                    died_at=AT + number,
                    queue=f"q-{draw.choice('xy')}",
                    reason=Reason(code=f"R{name}", text="x"),
                    fingerprint=f"fp-{name}",
                    message=message(f"m{number}", tenant=draw.choice((None, "acme", "zeta"))),
                )
            ]
        )
        moved = ReviewChange(
            letter_id=f"l{draw.randint(0, number)}", to=draw.choice(list(ReviewState)), actor="a", at=1
        )
        await letters.review([moved])
        if number % 7 == 0:
            await letters.prune(now=AT, limit=1, selection=Selection(ids=(f"l{draw.randint(0, number)}",)))

    for states in (*(frozenset({state}) for state in ReviewState), OPEN_STATES, frozenset[ReviewState]()):
        # A time that every letter has passed restricts nothing, and takes the way that reads letters.
        expected = await letters.stats(Selection(states=states, since=1))
        assert expected == await letters.stats(Selection(states=states))
    await file.close()
