"""A dead-letter queue with very many letters (case BR-04). `REDRIVE_TEST_LETTERS` sets how many: 1 000 000 in
`make campaign`, fewer in `make test`.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from redrive.core.letters.letter import Letter
from redrive.core.letters.selection import Selection
from redrive.core.redrive import Job, JobOptions, JobState
from redrive.runtime.app import Redrive
from redrive.service import Service
from redrive.testing.samples import QUEUE, letter, message
from redrive.views import page_document

COUNT = int(os.environ.get("REDRIVE_TEST_LETTERS", "10000"))
LARGE = 20 if COUNT >= 1_000_000 else 2
LARGE_BYTES = 10_000_000
PAGE = 50
PAGE_SECONDS = 1.0
"""Of the processor's time: what a busy machine adds to it says nothing."""
PAGE_BYTES = 100_000
MEMORY_BYTES = 100_000_000
DIED_AT = time.time_ns() // 1_000_000 - 86_400_000
"""Not so long ago that their keys were forgotten."""


def made(first: int, count: int, *, died_at: int, size: int = 1_000) -> list[Letter]:
    """Letters of `size` bytes; one in a hundred of them is a timeout."""
    return [
        letter(
            f"dl_{number:08}",
            died_at=died_at + number,
            message=message(f"m-{number:08}", body=b"x" * size),
            error_code="TIMEOUT" if number % 100 == 0 else "REFUSED",
        )
        for number in range(first, first + count)
    ]


async def fill(file: Path) -> None:
    async with Redrive("shop", f"sqlite:///{file}", settings={"durability": "normal"}) as shop:
        await shop.backend.broker.receive(QUEUE, limit=1, lease_ms=1_000, worker="w0", wait_ms=0)
        for first in range(0, COUNT, 1_000):
            await shop.backend.letters.put(made(first, min(1_000, COUNT - first), died_at=DIED_AT))
        for number in range(LARGE):
            await shop.backend.letters.put(made(COUNT + number, 1, died_at=DIED_AT, size=LARGE_BYTES))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with all the letters in it, closed."""
    file = tmp_path_factory.mktemp("many") / "shop.db"
    asyncio.run(fill(file))
    return file


@pytest_asyncio.fixture
async def app(filled: Path, tmp_path: Path) -> AsyncIterator[Redrive]:
    shutil.copy(filled, tmp_path / "shop.db")
    async with Redrive("shop", f"sqlite:///{tmp_path / 'shop.db'}", settings={"durability": "normal"}) as shop:
        yield shop


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024


async def test_every_page_is_quick_and_small_and_sees_each_letter_once(app: Redrive) -> None:
    service, cursor = Service(app), None
    expected = COUNT + LARGE
    seen = bytearray(expected + 100)  # how often each letter came, in little memory: that is measured here
    before = peak_bytes()
    slowest = largest = 0.0
    arrived = 0

    while True:
        started = time.process_time()
        page = await service.letters(Selection(), limit=PAGE, cursor=cursor)
        slowest = max(slowest, time.process_time() - started)
        largest = max(largest, len(json.dumps(page_document(page))))
        for found in page.letters:
            seen[int(found.id.removeprefix("dl_"))] += 1
        cursor = page.cursor
        if cursor is None:
            break
        if arrived < 100 and seen[expected // 2]:
            await app.backend.letters.put(made(expected + arrived, 1, died_at=DIED_AT))
            arrived += 1

    assert {1} == set(seen[:expected])
    assert slowest < PAGE_SECONDS
    assert largest < PAGE_BYTES
    assert peak_bytes() - before < MEMORY_BYTES


async def test_a_filter_counts_exactly_and_quickly(app: Redrive) -> None:
    service = Service(app)

    started = time.process_time()
    stats = await service.stats(Selection(error_code="TIMEOUT"))
    first = await service.letters(Selection(error_code="TIMEOUT"), limit=PAGE)

    assert COUNT // 100 + (1 if COUNT % 100 == 0 else 0) == stats.total
    assert PAGE == len(first.letters)
    assert time.process_time() - started < 2 * PAGE_SECONDS * max(1, COUNT / 100_000)


async def test_a_redrive_of_everything_starts_at_once_moves_and_stops(app: Redrive) -> None:
    service, progress = Service(app), []
    is_moving = asyncio.Event()

    def watch(job: Job) -> None:
        progress.append(job.counts.sent)
        if job.counts.sent >= 300:
            is_moving.set()

    started = time.process_time()
    view = await service.redrive(Selection(queue=QUEUE), JobOptions(rate_per_s=1_000.0), actor="ann", run=False)
    answered_s = time.process_time() - started
    running = asyncio.create_task(service.resume(view.job.id, on_progress=watch))
    await asyncio.wait_for(is_moving.wait(), 60)
    await service.abort(view.job.id, actor="ann")
    ended = await asyncio.wait_for(running, 60)

    assert answered_s < PAGE_SECONDS
    assert JobState.ABORTED == ended.job.state
    assert len(set(progress)) >= 3
    assert 300 <= ended.job.counts.sent < COUNT
