"""The kept counts of letters: right after a fold, after an upgrade of the tables, and after a recount."""

from __future__ import annotations

import psycopg

from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.ports import LetterStats, ReviewChange
from redrive.core.units import UnixMs
from redrive.postgres import Database
from redrive.postgres.letters import fold
from redrive.postgres.schema import migrate, migrations
from redrive.stores.postgres import PostgresGroupStore, PostgresLetterStore
from redrive.testing.samples import letter, message
from redrive.testing.servers.postgres import ask

NOW: UnixMs = 1_700_000_000_000
KEPT = (
    Selection(),
    Selection(states=OPEN_STATES),
    Selection(queue="orders"),
    Selection(queue="bills.dead", states=frozenset({ReviewState.CLOSED})),
)


async def kept(letters: PostgresLetterStore) -> list[LetterStats]:
    return [await letters.stats(selection) for selection in KEPT]


async def counted(letters: PostgresLetterStore) -> list[LetterStats]:
    """The same from the letters themselves: a condition that all of them meet is not kept."""
    return [await letters.stats(Selection(queue=each.queue, states=each.states, since=0)) for each in KEPT]


async def fill(letters: PostgresLetterStore) -> None:
    await letters.put(
        [
            letter(
                f"dl_{number}",
                queue="orders" if number % 3 else "bills",
                dead_letter_queue="orders.dead" if number % 3 else "bills.dead",
                message=message(tenant=None if number % 2 else "acme"),
                fingerprint=f"fp-{number % 5}",
            )
            for number in range(40)
        ]
    )
    close = [ReviewChange(letter_id=f"dl_{number}", to=ReviewState.CLOSED, actor="ada", at=NOW) for number in range(9)]
    await letters.review(close)


async def test_counts_stay_right_while_they_are_added_up(postgres: str) -> None:
    database = Database(postgres)
    letters = PostgresLetterStore(database)
    await letters.open()
    await fill(letters)
    before = await kept(letters)

    await database.write(fold)
    folded = await kept(letters)
    await letters.prune(now=NOW, limit=4, selection=Selection(queue="orders"))
    pruned = await kept(letters)
    await database.write(fold)
    await database.write(fold)

    assert before == folded
    assert await counted(letters) == pruned
    assert await kept(letters) == pruned
    assert [(0,)] == ask(postgres, "SELECT count(*) FROM redrive_tally_new")
    await letters.prune(now=NOW, limit=100, selection=Selection())
    assert [(0, {}), (0, {}), (0, {}), (0, {})] == [(each.total, each.by_group) for each in await kept(letters)]
    assert [(0,)] == ask(postgres, "SELECT count(*) FROM redrive_tally")
    await letters.close()


async def test_letters_of_older_tables_are_counted_once_they_are_brought_up_to_date(postgres: str) -> None:
    database = Database(postgres)
    with psycopg.connect(postgres, autocommit=True) as connection:
        migrate(connection, migrations()[:1], sql=database.sql, schema=None)
        for number in range(6):
            connection.execute(
                "INSERT INTO redrive_letter (id, queue, dead_letter_queue, message_id, reason_code, reason_text, "
                "attempt_count, fingerprint, group_title, state, first_failed_at, dead_lettered_at, redrive_count, "
                "body_bytes) VALUES (%s, 'orders', 'orders.dead', 'm', 'X', 'x', 1, 'fp', 't', %s, 1, 1, 0, 0)",
                (f"old_{number}", 3 * (number % 2)),
            )
    letters = PostgresLetterStore(database)
    await letters.open()

    old = await letters.stats(Selection())
    await fill(letters)

    assert (6, {"pending": 3, "closed": 3}) == (old.total, old.by_state)
    assert await counted(letters) == await kept(letters)
    await letters.close()


async def test_a_recount_mends_the_kept_counts(postgres: str) -> None:
    database = Database(postgres)
    letters = PostgresLetterStore(database)
    await letters.open()
    await fill(letters)
    right = await kept(letters)
    ask(postgres, "UPDATE redrive_tally_new SET count = count + 1")
    wrong = await kept(letters)

    await PostgresGroupStore(database).recount()

    assert wrong != right
    assert await kept(letters) == right
    await letters.close()
