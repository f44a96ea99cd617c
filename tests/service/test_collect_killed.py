"""Collectors that are killed at any moment, again and again: each message is one letter in the end."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from redrive import Redrive
from redrive.core.letters.selection import Selection
from redrive.service import Service
from tests.bullmq.test_collect_failed_set import put
from tests.rabbit import Rabbit
from tests.rabbitmq.by_hand import hands_on
from tests.redis import Redis

COUNT = 3_000
KILLS = 6
ROOT = Path(__file__).resolve().parents[2]


def collect_and_kill(url: str, store: str, queue: str, *, seed: int) -> int:
    """Again and again, each killed while it is at work; how many were."""
    rng = random.Random(seed)
    killed = 0
    for _ in range(KILLS):
        command = [sys.executable, "-m", "tests.service.collect_crew", url, store, queue]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            next(line for line in process.stdout if line == "letters.collected\n")
            time.sleep(rng.uniform(0.0, 0.05))  # sleep: killed at any moment
            killed += process.poll() is None
            process.kill()
    return killed


async def collected(url: str, store: str, queue: str) -> Counter[str]:
    """What is stored once somebody has taken the rest: bodies, and how many letters each has."""
    async with Redrive("found", broker=url, settings={"store": store}) as app:
        service = Service(app)
        await service.collect(queue)
        found: Counter[str] = Counter()
        page = await service.letters(Selection(), limit=500)
        while True:
            found.update([(await service.letter(each.id)).letter.message.body.decode() for each in page.letters])
            if page.cursor is None:
                return found
            page = await service.letters(Selection(), limit=500, cursor=page.cursor)


@pytest.mark.parametrize("seed", [1])
async def test_failed_jobs(redis: Redis, tmp_path: Path, seed: int) -> None:
    redis.ask("HSET", "bull:orders:meta", "version", "bullmq:5.0.0")
    for number in range(COUNT):
        put(redis, f"z-{number}", at=1_700_000_000_000 + number // 7, data=str(number))
    store = f"sqlite:///{tmp_path / 'store.db'}"

    killed = collect_and_kill(redis.url, store, "orders", seed=seed)
    found = await collected(redis.url, store, "orders")

    assert KILLS == killed
    assert {str(number): 1 for number in range(COUNT)} == dict(found)
    assert 0 == redis.ask("ZCARD", "bull:orders:failed")


@pytest.mark.parametrize("seed", [1])
async def test_messages_without_an_id(rabbit: Rabbit, tmp_path: Path, seed: int) -> None:
    with hands_on(rabbit) as hands:
        hands.queue("orders.dlq")
        for number in range(COUNT):
            hands.publish("orders.dlq", b"%d" % number)
        store = f"sqlite:///{tmp_path / 'store.db'}"

        killed = collect_and_kill(rabbit.url, store, "orders.dlq", seed=seed)
        found = await collected(rabbit.url, store, "orders.dlq")

        assert KILLS == killed
        assert {str(number): 1 for number in range(COUNT)} == dict(found)
        assert 0 == hands.ready("orders.dlq")
