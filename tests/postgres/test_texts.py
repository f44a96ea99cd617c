"""Texts that no index helps with, in PostgreSQL: pages and counts look at a bounded number of letters, and say so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redrive.core.letters.filters import parse
from redrive.core.letters.selection import Selection
from redrive.postgres import Database, search
from redrive.stores.memory import MemoryLetterStore
from redrive.stores.postgres import PostgresLetterStore
from tests.sqlite.test_short_pages import AT, COUNT, FILTERS, made, walked

LOOK_AT = 40


@pytest.fixture(autouse=True)
def few_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "FEW", 4)
    monkeypatch.setattr(search, "LOOK_AT", LOOK_AT)


async def test_short_pages_leave_nothing_out_and_counts_say_where_they_end(postgres: str) -> None:
    letters, memory = PostgresLetterStore(Database(postgres)), MemoryLetterStore()
    await letters.open()
    for store in (letters, memory):
        await store.put(made())

    for line in FILTERS:
        selection = parse(line, now=AT)
        found, sizes = await walked(letters, line, limit=5)
        whole, early = await letters.stats(selection), await letters.stats(selection, up_to=5)

        assert (await walked(memory, line, limit=COUNT))[0] == found, line
        assert max(sizes) <= 5, line
        assert await memory.stats(selection) == whole, line
        expected = await memory.stats(selection, up_to=early.total)
        assert replace(expected, is_at_least=early.is_at_least) == early, line
        assert early.is_at_least or early == whole, line
    await letters.close()


async def test_a_count_with_a_text_that_no_index_helps_with_ends_early_and_says_so(postgres: str) -> None:
    letters = PostgresLetterStore(Database(postgres))
    await letters.open()
    await letters.put(made())

    counts = {
        text: await letters.stats(selection, up_to=10)
        for text, selection in {
            "nobody's": Selection(text="zz"),
            "nobody's, of few": Selection(text="zz", until=AT + 10),
            "two of the first": Selection(text="re"),
            "everybody's": Selection(text="m1"),
        }.items()
    }

    assert {
        "nobody's": (0, True),
        "nobody's, of few": (0, False),
        "two of the first": (2, True),
        "everybody's": (10, True),
    } == {name: (each.total, each.is_at_least) for name, each in counts.items()}
    await letters.close()
