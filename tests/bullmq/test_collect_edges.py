"""Failed jobs that change, are held or cannot be stored while they are collected."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from redrive import Redrive
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.ports import FailedJob, ReviewChange, Taking
from redrive.errors import InvalidMessageError
from redrive.runtime.collector import NOT_STORABLE
from redrive.runtime.failed_collector import HELD
from redrive.service import Service
from redrive.testing.samples import QUEUE
from tests.bullmq.test_collect_failed_set import AT, put
from tests.redis import Redis


@pytest_asyncio.fixture
async def app(redis: Redis, tmp_path: Path) -> AsyncIterator[Redrive]:
    redis.ask("HSET", f"bull:{QUEUE}:meta", "opts.maxLenEvents", 10_000)
    app = Redrive("shop", redis.url, settings={"store": f"sqlite:///{tmp_path / 'store.db'}"})
    async with app:
        yield app


async def states(app: Redrive) -> list[ReviewState]:
    return [each.state for each in (await app.backend.letters.find(Selection(), limit=9)).letters]


async def edited_as_it_is_taken(app: Redrive, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person edits the job, and edits it back."""
    put(redis, "z")
    assert app.backend.failed is not None
    take = app.backend.failed.take

    async def edited(queue: str, jobs: Sequence[FailedJob]) -> list[Taking]:
        redis.ask("HSET", f"bull:{QUEUE}:z", "data", '{"n":2}')
        return await take(queue, jobs)

    with monkeypatch.context() as patched:
        patched.setattr(app.backend.failed, "take", edited)
        await Service(app).collect(QUEUE)
    redis.ask("HSET", f"bull:{QUEUE}:z", "data", '{"n":1}')


async def test_a_job_edited_and_edited_back_has_an_open_letter_once_it_is_taken(
    app: Redrive, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await edited_as_it_is_taken(app, redis, monkeypatch)
    assert [ReviewState.CLOSED] == await states(app)

    done = await Service(app).collect(QUEUE)

    assert 1 == done.taken
    assert [ReviewState.PENDING] == await states(app)
    assert 0 == redis.ask("EXISTS", f"bull:{QUEUE}:z")


async def test_a_letter_that_a_person_closed_stays_closed(
    app: Redrive, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await edited_as_it_is_taken(app, redis, monkeypatch)
    (letter,) = (await app.backend.letters.find(Selection(), limit=9)).letters
    for to in (ReviewState.PENDING, ReviewState.CLOSED):
        await app.backend.letters.review([ReviewChange(letter_id=letter.id, to=to, actor="ann", at=AT)])

    await Service(app).collect(QUEUE)

    assert [ReviewState.CLOSED] == await states(app)


async def test_a_job_that_is_held_is_counted_as_left(app: Redrive, redis: Redis) -> None:
    put(redis, "z")
    redis.ask("SET", f"bull:{QUEUE}:z:lock", "x")

    done = await Service(app).collect(QUEUE)

    assert (0, {HELD: 1}) == (done.taken, dict(done.left))


async def test_a_job_the_store_cannot_hold_is_left_and_those_beside_it_are_taken(app: Redrive, redis: Redis) -> None:
    for number, name in enumerate(("z-1", "bad", "z-2")):
        put(redis, name, at=AT + number)
    store = app.backend.letters.put

    async def choosy(batch: Sequence[Letter]) -> None:
        if any(each.message.id == "bad" for each in batch):
            raise InvalidMessageError("a number is larger than 64 bits")
        await store(batch)

    app.backend.letters.put = choosy  # type: ignore[method-assign]
    done = await Service(app).collect(QUEUE)

    assert (2, 2, {NOT_STORABLE: 1}) == (done.taken, done.new, dict(done.left))
    assert 1 == redis.ask("ZCARD", f"bull:{QUEUE}:failed")
    assert 1 == redis.ask("EXISTS", f"bull:{QUEUE}:bad")
