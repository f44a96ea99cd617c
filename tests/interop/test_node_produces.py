"""Node's BullMQ adds jobs, redrive works on them: with BullMQ 5 and 6, on Redis 7 and Valkey 8."""

from __future__ import annotations

import time
from pathlib import Path

from redrive import Exponential, Fixed, Retry
from tests.interop.node import Node
from tests.interop.stage import QUEUE, stage
from tests.redis import Redis

DATA = {"n": 1, "text": "naïve-Ω 😀", "list": [], "big": 1.5e300, "nested": {"a": [None, True]}}


async def test_a_plain_job(redis: Redis, node: Node, tmp_path: Path) -> None:
    await node.call("listen", queue=QUEUE)
    async with stage(redis.url, tmp_path) as here:
        name = await node.call("add", queue=QUEUE, name="order.created", data=DATA, opts={})
        (run,) = await here.until(lambda runs: len(runs) == 1)
        await node.wait("queue:completed", id=name)

    assert (DATA, 1, name, "order.created") == (run.payload, run.attempt, run.id, run.name)
    job = await node.call("job", queue=QUEUE, id=name)
    assert ("completed", 1, 1) == (job["state"], job["attemptsMade"], job["attemptsStarted"])
    assert job["processedBy"].startswith("redrive:")
    assert 1 == (await node.call("counts", queue=QUEUE))["completed"]


async def test_a_job_that_is_to_be_removed_is_removed(redis: Redis, node: Node, tmp_path: Path) -> None:
    await node.call("listen", queue=QUEUE)
    async with stage(redis.url, tmp_path):
        name = await node.call("add", queue=QUEUE, data={}, opts={"removeOnComplete": True})
        await node.wait("queue:completed", id=name)

    assert await node.call("job", queue=QUEUE, id=name) is None


async def test_a_delayed_job_is_not_early(redis: Redis, node: Node, tmp_path: Path) -> None:
    async with stage(redis.url, tmp_path) as here:
        before = time.time() * 1_000
        await node.call("add", queue=QUEUE, data={"n": 1}, opts={"delay": 700})
        (run,) = await here.until(lambda runs: len(runs) == 1)

    assert run.at >= before + 700 - 1


async def test_prioritised_jobs_come_in_their_order(redis: Redis, node: Node, tmp_path: Path) -> None:
    for name, opts in {"p5": {"priority": 5}, "p1": {"priority": 1}, "none": {}, "lifo": {"lifo": True}}.items():
        await node.call("add", queue=QUEUE, data={"name": name}, opts=opts)

    async with stage(redis.url, tmp_path, concurrency=1) as here:
        runs = await here.until(lambda runs: len(runs) == 4)

    assert ["lifo", "none", "p1", "p5"] == [run.payload["name"] for run in runs]


async def test_a_failing_job_is_retried_by_its_own_options(redis: Redis, node: Node, tmp_path: Path) -> None:
    await node.call("listen", queue=QUEUE)
    async with stage(redis.url, tmp_path) as here:
        here.fails = lambda run: run.attempt < 3
        opts = {"attempts": 3, "backoff": {"type": "exponential", "delay": 100}}
        name = await node.call("add", queue=QUEUE, data={}, opts=opts)
        runs = await here.until(lambda runs: len(runs) == 3)
        await node.wait("queue:completed", id=name)

    assert [1, 2, 3] == [run.attempt for run in runs]
    assert runs[1].at - runs[0].at >= 100
    assert runs[2].at - runs[1].at >= 200
    job = await node.call("job", queue=QUEUE, id=name)
    assert ("completed", 3) == (job["state"], job["attemptsMade"])
    assert "the other side did not answer" in job["failedReason"]
    assert "TimeoutError" in job["stacktrace"][-1]


async def test_a_consumers_own_retry_wins(redis: Redis, node: Node, tmp_path: Path) -> None:
    async with stage(redis.url, tmp_path, retry=Retry(max_attempts=2, backoff=Fixed("10ms"))) as here:
        here.fails = lambda _: True
        await node.call("listen", queue=QUEUE)
        name = await node.call("add", queue=QUEUE, data={}, opts={"attempts": 9, "backoff": 60_000})
        await node.wait("queue:failed", id=name)
        runs = list(here.runs)

    assert [1, 2] == [run.attempt for run in runs]


async def test_a_job_that_fails_for_good_is_failed_there_and_a_letter_here(
    redis: Redis, node: Node, tmp_path: Path
) -> None:
    await node.call("listen", queue=QUEUE)
    async with stage(redis.url, tmp_path) as here:
        here.fails = lambda _: True
        name = await node.call("add", queue=QUEUE, name="order.created", data=DATA, opts={"attempts": 1})
        await node.wait("queue:failed", id=name)
        counts = await node.call("counts", queue=QUEUE)
        job = await node.call("job", queue=QUEUE, id=name)
        dead = await node.call("jobs", queue=f"{QUEUE}.dead", state="wait")

        here.fails = lambda _: False
        await here.redrive()
        runs = await here.until(lambda runs: len(runs) == 2)

    assert (1, 0, 0) == (counts["failed"], counts["active"], counts["waiting"])
    assert "the other side did not answer" in job["failedReason"]
    assert node.seen("queue:retries-exhausted")
    assert 1 == len(dead)
    assert (DATA, DATA) == (runs[0].payload, runs[1].payload)
    assert [1, 1] == [run.attempt for run in runs]


async def test_a_failed_job_that_node_retries_runs_again(redis: Redis, node: Node, tmp_path: Path) -> None:
    await node.call("listen", queue=QUEUE)
    async with stage(redis.url, tmp_path) as here:
        here.fails = lambda _: len(here.runs) < 2
        name = await node.call("add", queue=QUEUE, data={"n": 1}, opts={"attempts": 1})
        await node.wait("queue:failed", id=name)
        await node.call("retry", queue=QUEUE, id=name)
        runs = await here.until(lambda runs: len(runs) == 2)
        await node.wait("queue:completed", id=name)

    assert [name, name] == [run.id for run in runs]


async def test_an_unknown_backoff_fails_the_job_with_a_reason(redis: Redis, node: Node, tmp_path: Path) -> None:
    await node.call("listen", queue=QUEUE)
    async with stage(redis.url, tmp_path) as here:
        here.fails = lambda run: run.payload["n"] == 1
        opts = {"attempts": 5, "backoff": {"type": "foo", "delay": 10}}
        name = await node.call("add", queue=QUEUE, data={"n": 1}, opts=opts)
        await node.wait("queue:failed", id=name)
        await node.call("add", queue=QUEUE, data={"n": 2}, opts={})
        runs = await here.until(lambda runs: len(runs) == 2)

    assert '"foo"' in (await node.call("job", queue=QUEUE, id=name))["failedReason"]
    assert [1, 2] == [run.payload["n"] for run in runs]


async def test_a_paused_queue_hands_nothing_out_and_loses_nothing(redis: Redis, node: Node, tmp_path: Path) -> None:
    await node.call("add", queue=QUEUE, data={"name": "before"}, opts={})
    await node.call("pause", queue=QUEUE)
    await node.call("add", queue=QUEUE, data={"name": "while"}, opts={})
    async with stage(redis.url, tmp_path, works=False) as here:
        await here.app.publish(QUEUE, {"name": "ours"})
        await here.app.publish(QUEUE, {"name": "late"}, delay="50ms")
        taken = await here.app.backend.broker.receive(QUEUE, limit=10, lease_ms=1_000, worker="w", wait_ms=200)
        depth = await here.depth()
    await node.call("resume", queue=QUEUE)

    async with stage(redis.url, tmp_path, concurrency=1) as here:
        runs = await here.until(lambda runs: len(runs) == 4)

    assert [] == taken
    assert (4, 0, 0) == depth
    assert {"before", "while", "ours", "late"} == {run.payload["name"] for run in runs}


async def test_a_global_rate_limit_and_concurrency_hold(redis: Redis, node: Node, tmp_path: Path) -> None:
    await node.call("rateLimit", queue=QUEUE, max=2, duration=500)
    for number in range(5):
        await node.call("add", queue=QUEUE, data={"n": number}, opts={})

    async with stage(redis.url, tmp_path) as here:
        runs = await here.until(lambda runs: len(runs) == 5)

    assert runs[4].at - runs[0].at >= 900


async def test_exponential_waits_and_runs_match_nodes(redis: Redis, node: Node, tmp_path: Path) -> None:
    retry = Retry(max_attempts=3, backoff=Exponential("100ms"))
    async with stage(redis.url, tmp_path, retry=retry, works=False) as here:
        await here.app.publish(QUEUE, {"n": 1})
    await node.call("work", queue=QUEUE, failures=2)

    runs = [await node.wait("run", queue=QUEUE) for _ in range(3)]

    assert [0, 1, 2] == [run["attemptsMade"] for run in runs]
    assert runs[1]["at"] - runs[0]["at"] >= 100
    assert runs[2]["at"] - runs[1]["at"] >= 200


async def test_a_deduplicated_job_is_there_once_until_it_is_done(redis: Redis, node: Node, tmp_path: Path) -> None:
    await node.call("listen", queue=QUEUE)
    opts = {"deduplication": {"id": "order-1"}}
    first, same = [await node.call("add", queue=QUEUE, data={"n": n}, opts=opts) for n in (1, 2)]

    async with stage(redis.url, tmp_path) as here:
        await node.wait("queue:completed", id=first)
        again = await node.call("add", queue=QUEUE, data={"n": 3}, opts=opts)
        runs = await here.until(lambda runs: len(runs) == 2)

    assert first == same != again
    assert [1, 3] == [run.payload["n"] for run in runs]


async def test_children_that_redrive_has_done_let_their_parent_go_on(redis: Redis, node: Node, tmp_path: Path) -> None:
    await node.call("work", queue="invoices")
    children = [{"name": "child", "queueName": QUEUE, "data": {"n": number}} for number in range(3)]
    await node.call("flow", flow={"name": "parent", "queueName": "invoices", "data": {}, "children": children})

    async with stage(redis.url, tmp_path) as here:
        await here.until(lambda runs: len(runs) == 3)
        run = await node.wait("run", queue="invoices")

    assert "parent" == run["name"]
