"""What a worker of BullMQ's own Python package gave up."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from bullmq import Queue, Worker

from redrive import Redrive
from redrive.core.letters.selection import Selection
from redrive.service import Service
from tests.redis import Redis
from tests.runtime.stage import PATIENCE_S


async def test_it_is_a_letter_like_any_other(redis: Redis, tmp_path: Path) -> None:
    connection = {"connection": redis.url}
    has_failed = asyncio.Event()

    async def charge(_job: Any, _token: str) -> None:
        raise ConnectionError("no answer from the bank")

    queue, worker = Queue("orders", connection), Worker("orders", charge, connection)
    worker.on("failed", lambda *_: has_failed.set())
    job = await queue.add("charge", {"n": 1}, {"attempts": 1})
    await asyncio.wait_for(has_failed.wait(), PATIENCE_S)
    await worker.close()
    await queue.close()
    app = Redrive("found", broker=redis.url, settings={"store": f"sqlite:///{tmp_path / 'store.db'}"})

    async with app:
        service = Service(app)
        done = await service.collect("orders")
        (summary,) = (await service.letters(Selection())).letters
        letter = (await service.letter(summary.id)).letter
        view = await service.redrive(Selection(), actor="ann")

    assert (1, job.id, "charge", b'{"n":1}') == (
        done.new, letter.message.id, summary.message_type, letter.message.body,
    )  # fmt: skip
    assert ("ConnectionError", "CONNECTION_ERROR", 1) == (
        letter.error_type, letter.reason.code, letter.attempt_count,
    )  # fmt: skip
    assert "no answer from the bank" == letter.reason.text
    assert 1 == view.job.counts.sent
    assert [job.id.encode()] == redis.ask("LRANGE", "bull:orders:wait", 0, -1)
