"""A page that would have to look through too many letters ends early, and its cursor goes on: nothing is left out."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from redrive.core.letters.filters import parse
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.ports import LetterStore
from redrive.core.settlement import Reason
from redrive.runtime.clock import SystemClock
from redrive.sqlite import SqliteFile, search
from redrive.stores.memory import MemoryLetterStore
from redrive.stores.sqlite import SqliteLetterStore
from redrive.testing.samples import letter, message

pytestmark = pytest.mark.asyncio

AT = 1_700_000_000_000
COUNT = 150
FILTERS = (
    "",
    "state:pending state:closed",
    "queue:orders",
    "queue:none",
    "queue:shared",
    "error:A tenant:acme",
    "error:A tenant:acme state:closed queue:orders since:1970-01-01T00:00:00Z",
    "rare",
    "Äpfel",
    "nothing",
    "state:pending rare",
    "tenant:acme header:x-n=3",
    "header:x-n=3 header:x-even=false",
    "header:x-n=nowhere",
    "id:l3 id:l149 id:l80 rare",
    "until:2023-11-14T22:13:20.077Z since:2023-11-14T22:13:20.020Z rare",
)


def made() -> list[Letter]:
    draw = random.Random(9)
    return [
        letter(
            f"l{number}",
            died_at=AT + number // 3,
            queue=draw.choice(("orders", "billing", "shared")),
            dead_letter_queue=draw.choice(("orders.dead", "shared")),
            error_code=draw.choice("AB"),
            state=draw.choice(list(ReviewState)),
            reason=Reason(code="X", text="rare Äpfel" if number % 31 == 0 else "plain"),
            message=message(
                f"m{number}",
                tenant=draw.choice((None, "acme", "zeta")),
                headers={"x-n": number % 5, "x-even": number % 2 == 0},
            ),
        )
        for number in range(COUNT)
    ]


async def walked(store: LetterStore, line: str, *, limit: int) -> tuple[list[str], list[int]]:
    """Ids in order, and how many each page had."""
    ids, sizes, cursor = list[str](), list[int](), None
    while True:
        page = await store.find(parse(line, now=AT), limit=limit, cursor=cursor)
        ids += [found.id for found in page.letters]
        sizes.append(len(page.letters))
        cursor = page.cursor
        if cursor is None:
            return ids, sizes


@pytest.mark.parametrize("limit", [1, 3, 200])
@pytest.mark.parametrize("line", FILTERS)
async def test_short_pages_leave_nothing_out(
    path: Path, monkeypatch: pytest.MonkeyPatch, line: str, limit: int
) -> None:
    for name, bound in (("FEW", 4), ("LOOKED_THROUGH", 7), ("LOOKED_THROUGH_SLOWLY", 5)):
        monkeypatch.setattr(search, name, bound)
    whole = MemoryLetterStore()
    file = SqliteFile(path, clock=SystemClock())
    await file.open()
    letters = SqliteLetterStore(file)
    for store in (whole, letters):
        await store.put(made())

    found, sizes = await walked(letters, line, limit=limit)
    expected, _ = await walked(whole, line, limit=limit)
    await file.close()

    assert expected == found
    assert max(sizes) <= limit


async def test_a_page_ends_early_where_nothing_is_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "FEW", 4)
    monkeypatch.setattr(search, "LOOKED_THROUGH", 7)
    file = SqliteFile(path, clock=SystemClock())
    await file.open()
    letters = SqliteLetterStore(file)
    await letters.put(made())

    _, sizes = await walked(letters, "nothing", limit=50)
    await file.close()

    assert [0] * (COUNT // 11 + 1) == sizes
