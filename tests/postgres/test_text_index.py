"""The index for texts needs an extension; where that cannot be made, the tables are made all the same."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from redrive.core.letters.selection import Selection
from redrive.core.settlement import Reason
from redrive.postgres import Database, search
from redrive.postgres.schema import migrate, migrations
from redrive.stores.postgres import PostgresLetterStore
from redrive.testing.samples import letter
from redrive.testing.servers.postgres import ask

FILL = (
    "INSERT INTO redrive_letter (id, queue, dead_letter_queue, message_id, reason_code, reason_text, attempt_count, "
    "fingerprint, group_title, state, first_failed_at, dead_lettered_at, redrive_count, body_bytes) "
    "SELECT 'old_' || n, 'orders', 'orders.dead', 'm', 'X', 'x', 1, 'fp', 't', 0, 1, 1, 0, 0 "
    "FROM generate_series(1, 50001) n"
)
INDEX = (
    "CREATE INDEX CONCURRENTLY redrive_letter_text ON redrive_letter USING gin (lower(reason_text) gin_trgm_ops, "
    "lower(message_id) gin_trgm_ops, lower(coalesce(key, '')) gin_trgm_ops)"
)
WAITING = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def put_one(url: str) -> bool:
    """Whether a store with its tables in this place keeps a letter."""
    store = PostgresLetterStore(Database(url))
    await store.open()
    await store.put([letter("dl_1")])
    found = await store.get("dl_1")
    await store.close()
    return found is not None


async def test_a_database_without_a_schema_public_has_no_index_for_texts(postgres: str) -> None:
    ask(postgres, "DROP SCHEMA public CASCADE")
    ask(postgres, "CREATE SCHEMA shop")

    assert await put_one(f"{postgres}?schema=shop")
    assert [] == ask(postgres, "SELECT extname FROM pg_extension WHERE extname = 'pg_trgm'")


async def test_who_makes_the_extension_at_the_same_moment_is_no_trouble(postgres: str) -> None:
    with psycopg.connect(postgres) as other:
        other.execute("CREATE EXTENSION pg_trgm")
        opening = asyncio.create_task(put_one(postgres))
        while not opening.done() and not await asyncio.to_thread(ask, postgres, WAITING):
            pass
        assert not opening.done()
        other.commit()

        assert await opening

    assert [(True,)] == ask(postgres, "SELECT to_regclass('redrive_letter_text') IS NOT NULL")


async def test_of_many_letters_the_index_is_made_by_hand_and_used_once_it_is_whole(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(postgres)
    with psycopg.connect(postgres, autocommit=True) as connection:
        migrate(connection, migrations()[:2], sql=database.sql, schema=None)
        connection.execute(FILL)
    letters = PostgresLetterStore(database)
    monkeypatch.setattr(search, "LOOK_AT", 10)
    await letters.open()
    await letters.put([letter("dl_new", died_at=2, reason=Reason(code="X", text="unheard of"))])

    async def found() -> int:
        return (await letters.stats(Selection(text="unheard"), up_to=10)).total

    assert [(None,)] == ask(postgres, "SELECT to_regclass('redrive_letter_text')")
    assert 0 == await found()
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(INDEX)
        assert 1 == await found()
        connection.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'redrive_letter_text'::regclass")
    assert 0 == await found()
    await letters.close()
