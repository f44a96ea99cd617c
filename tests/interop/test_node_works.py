"""redrive adds jobs, Node's BullMQ works on them: with BullMQ 5 and 6, on Redis 7 and Valkey 8."""

from __future__ import annotations

import asyncio
import base64
import time
from pathlib import Path

import pytest

from redrive import Fixed, Retry
from tests.conftest import PATIENCE
from tests.interop.node import Node
from tests.interop.stage import QUEUE, stage, working
from tests.redis import Redis

ORDER = {"n": 1, "text": "naïve-Ω 😀", "list": [], "nested": {"a": [None, True]}}


async def test_a_plain_message_is_plain_data(redis: Redis, node: Node, tmp_path: Path) -> None:
    await node.call("work", queue=QUEUE)
    async with stage(redis.url, tmp_path, works=False) as here:
        await here.app.publish(QUEUE, ORDER, headers={"x-tenant": "t1"}, tenant="t1")
        run = await node.wait("run", queue=QUEUE)
        await node.wait("completed", queue=QUEUE)

        assert (ORDER, 0, QUEUE) == (run["data"], run["attemptsMade"], run["name"])
        assert (0, 0, 0) == await here.depth()
    counts = await node.call("counts", queue=QUEUE)
    assert 0 == sum(counts.values())


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        (b"hello", "hello"),
        (b"", ""),
        (b"{", "{"),
        (b"\xff\x00", {"$bytes": base64.b64encode(b"\xff\x00").decode()}),
        (b' { "a" : 1.0 }\n', {"a": 1}),
    ],
)
async def test_a_body_that_is_no_json_breaks_no_worker(
    redis: Redis, node: Node, tmp_path: Path, body: bytes, seen: object
) -> None:
    await node.call("work", queue=QUEUE)
    async with stage(redis.url, tmp_path, works=False) as here:
        await here.app.publish(QUEUE, body)

        assert seen == (await node.wait("run", queue=QUEUE))["data"]


async def test_a_delayed_message_is_not_early(redis: Redis, node: Node, tmp_path: Path) -> None:
    await node.call("work", queue=QUEUE)
    async with stage(redis.url, tmp_path, works=False) as here:
        before = time.time() * 1_000
        await here.app.publish(QUEUE, ORDER, delay="700ms")
        run = await node.wait("run", queue=QUEUE)

    assert run["at"] >= before + 700 - 1


async def test_prioritised_messages_come_in_their_order(redis: Redis, node: Node, tmp_path: Path) -> None:
    async with stage(redis.url, tmp_path, works=False) as here:
        for priority in (5, 1, None, 2):
            await here.app.publish(QUEUE, {"priority": priority}, priority=priority)
    await node.call("work", queue=QUEUE, opts={"concurrency": 1})

    runs = [await node.wait("run", queue=QUEUE) for _ in range(4)]

    assert [None, 1, 2, 5] == [run["data"]["priority"] for run in runs]


async def test_a_failing_message_is_retried_and_fails_by_the_apps_rule(
    redis: Redis, node: Node, tmp_path: Path
) -> None:
    await node.call("work", queue=QUEUE, failures=99)
    url = f"{redis.url}?keep_failed=true"
    async with stage(url, tmp_path, retry=Retry(max_attempts=3, backoff=Fixed("50ms")), works=False) as here:
        await here.app.publish(QUEUE, ORDER)
        runs = [await node.wait("run", queue=QUEUE) for _ in range(3)]
        for _ in range(3):
            await node.wait("failed", queue=QUEUE)
    counts = await node.call("counts", queue=QUEUE)

    assert [0, 1, 2] == [run["attemptsMade"] for run in runs]
    assert (1, 0, 0) == (counts["failed"], counts["waiting"], counts["delayed"])


async def test_a_dead_letter_and_a_redrive_of_it_are_jobs_for_node(redis: Redis, node: Node, tmp_path: Path) -> None:
    async with stage(redis.url, tmp_path, retry=Retry(max_attempts=1), works=False) as here:
        here.fails = lambda _: True
        await here.app.publish(QUEUE, ORDER)
        async with working(here.app):
            await here.event("delivery.dead_lettered")
        await node.call("work", queue=f"{QUEUE}.dead")
        dead = await node.wait("run", queue=f"{QUEUE}.dead")

        await node.call("work", queue=QUEUE)
        await here.redrive()
        again = await node.wait("run", queue=QUEUE)

    assert isinstance(dead["data"], dict)
    assert ORDER == again["data"]


async def test_node_and_redrive_share_one_queue_and_each_job_runs_once(
    redis: Redis, node: Node, tmp_path: Path
) -> None:
    await node.call("work", queue=QUEUE, opts={"concurrency": 5})
    async with stage(redis.url, tmp_path) as here:
        await here.app.publish_many(QUEUE, [{"n": number} for number in range(100)])
        await node.call(
            "addBulk", queue=QUEUE, jobs=[{"name": "n", "data": {"n": 100 + n}, "opts": {}} for n in range(100)]
        )
        seen: list[int] = []
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while len(seen) + len(here.runs) < 200:
                await node.call("counts", queue=QUEUE)
                seen += [run["data"]["n"] for run in node.take("run")]
        ours = [run.payload["n"] for run in here.runs]

    assert list(range(200)) == sorted(seen + ours)
