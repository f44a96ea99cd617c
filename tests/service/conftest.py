"""A service on a fresh backend of each kind, and dead letters to work with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.selection import Selection
from redrive.runtime.app import Redrive
from redrive.service import Service
from redrive.testing.clock import FAKE_EPOCH, FakeClock
from redrive.testing.samples import QUEUE, letter, message

DIED_AT = FAKE_EPOCH - 60_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'shop.db'}"


@pytest_asyncio.fixture
async def app(url: str, clock: FakeClock) -> AsyncIterator[Redrive]:
    shop = Redrive("shop", url, clock=clock)

    @shop.consumer(QUEUE)
    async def charge(order: dict) -> None: ...

    async with shop:
        # A consumer asked once: the broker knows the queue.
        await shop.backend.broker.receive(QUEUE, limit=1, lease_ms=1_000, worker="w0", wait_ms=0)
        yield shop


@pytest.fixture
def service(app: Redrive) -> Service:
    return Service(app)


async def put_letters(app: Redrive, count: int, *, first: int = 1, **changes: object) -> list[str]:
    """So many letters of `orders`, each dead a millisecond after the one before; their ids, oldest first."""
    made = [letter(f"dl_{number:04}", died_at=DIED_AT + number, **changes) for number in range(first, first + count)]
    await app.backend.letters.put(made)
    return [found.id for found in made]


async def waiting(app: Redrive, queue: str = QUEUE) -> list[str]:
    """Ids of the messages that wait in a queue."""
    return sorted(found.id for found in await app.backend.broker.peek(queue, limit=1_000))


async def states(app: Redrive, selection: Selection | None = None) -> dict[str, ReviewState]:
    """Review state by letter id."""
    page = await app.backend.letters.find(Selection() if selection is None else selection, limit=1_000)
    return {found.id: found.state for found in page.letters}


def letter_with(name: str, **changes: object) -> Letter:
    """A letter whose message has these changes."""
    return letter(name, died_at=DIED_AT, message=message(f"m-{name}", **changes))
