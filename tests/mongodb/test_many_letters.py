"""Very many letters in MongoDB (case BR-04). `REDRIVE_TEST_MONGODB_LETTERS` sets how many; a few in `make test`."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from redrive.core.letters.selection import Selection
from redrive.runtime.clock import SystemClock
from redrive.stores.mongodb.letters import MongoLetterStore
from redrive.stores.mongodb.link import Link
from redrive.testing.samples import letter, message
from redrive.views import page_document
from tests.mongodb.server import database_url

COUNT = int(os.environ.get("REDRIVE_TEST_MONGODB_LETTERS", "600"))
ASKED = 20 if COUNT <= 2_000 else 4
"""FerretDB reads every document for each page."""
DIED_AT = 1_700_000_000_000
PAGE_BYTES = 100_000


async def test_every_page_is_small_and_sees_each_letter_once_and_filters_count_exactly() -> None:
    store = MongoLetterStore(Link(f"{database_url()}?socketTimeoutMS=60000"), clock=SystemClock())
    await store.open()
    for first in range(0, COUNT, 500):
        await store.put(
            [
                letter(
                    f"dl_{number:08}", died_at=DIED_AT + number, message=message(f"m-{number}", body=b"x" * 1_000),
                    error_code="TIMEOUT" if number % 100 == 0 else "REFUSED",
                )
                for number in range(first, min(first + 500, COUNT))
            ]
        )  # fmt: skip
    deep = f"{DIED_AT + COUNT * 9 // 10}-0"
    timed: dict[str, float] = {}

    async def asked(name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        times, found = [], None
        for _ in range(ASKED):
            start = time.perf_counter()
            found = await call()
            times.append(time.perf_counter() - start)
        timed[name] = statistics.quantiles(times, n=20)[-1]
        return found

    first_page = await asked("first page", lambda: store.find(Selection(), limit=50))
    deep_page = await asked("deep page", lambda: store.find(Selection(), limit=50, cursor=deep))
    filtered = await asked("filter", lambda: store.find(Selection(error_code="TIMEOUT"), limit=50))
    text = await asked("text", lambda: store.find(Selection(text=f"m-{COUNT - 1}"), limit=50))
    stats = await store.stats(Selection(error_code="TIMEOUT"))
    seen, cursor = [], None
    while COUNT <= 2_000:
        page = await store.find(Selection(), limit=50, cursor=cursor)
        seen += [each.id for each in page.letters]
        assert len(json.dumps(page_document(page))) < PAGE_BYTES
        cursor = page.cursor
        if cursor is None:
            break

    print({name: f"{seconds * 1_000:.0f} ms" for name, seconds in timed.items()})  # noqa: T201 - for who asks
    assert 50 == len(first_page.letters) == len(deep_page.letters)
    assert min(50, COUNT // 100) == len(filtered.letters)
    assert COUNT // 100 == stats.total
    assert [f"dl_{COUNT - 1:08}"] == [each.id for each in text.letters]
    assert not seen or [f"dl_{number:08}" for number in range(COUNT)] == seen
    await store.close()
