"""The index for texts needs an extension; where that cannot be made, the tables are made all the same."""

from __future__ import annotations

import asyncio

import psycopg

from redrive.postgres import Database
from redrive.stores.postgres import PostgresLetterStore
from redrive.testing.samples import letter
from redrive.testing.servers.postgres import ask

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
