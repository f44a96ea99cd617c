"""A fleet of Node's and redrive's workers: each side takes up what the other has lost (case BQ-05)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from redrive.brokers.bullmq import fleet
from redrive.brokers.bullmq.broker import BullBroker
from redrive.runtime.clock import SystemClock
from redrive.testing.samples import outgoing
from tests.interop.node import Node
from tests.interop.stage import QUEUE, stage
from tests.redis import Redis

QUICK = {"lockDuration": 1_000, "stalledInterval": 500, "concurrency": 1}
"""Options of a Node worker that notices a loss soon."""


async def test_bq05_a_job_of_a_killed_node_worker_is_run_by_redrive(
    redis: Redis, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "SWEEP_MS", 500)
    await node.call("work", queue=QUEUE, hang=True, opts=QUICK)
    await node.call("add", queue=QUEUE, data={"n": 1}, opts={"attempts": 3})
    await node.wait("run", queue=QUEUE)
    await asyncio.to_thread(node.kill)

    async with stage(redis.url, tmp_path) as here:
        (run,) = await here.until(lambda runs: len(runs) == 1)

    assert ({"n": 1}, 2) == (run.payload, run.attempt)


async def test_bq05_a_node_worker_that_lives_keeps_its_job(
    redis: Redis, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "SWEEP_MS", 200)
    await node.call("work", queue=QUEUE, hang=True, opts=QUICK)
    await node.call("add", queue=QUEUE, data={"n": 1}, opts={})
    await node.wait("run", queue=QUEUE)

    async with stage(redis.url, tmp_path) as here:
        await here.app.publish("orders", {"n": 2})
        await here.until(lambda runs: len(runs) == 1)
        await asyncio.sleep(3)  # sleep: three times the lock
        seen = [run.payload["n"] for run in here.runs]

    assert [2] == seen


async def test_bq05_a_job_of_a_killed_redrive_worker_is_run_by_node(
    redis: Redis, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever sweeps keeps all others from it for this long.
    monkeypatch.setattr(fleet, "SWEEP_MS", 500)
    broker = BullBroker(redis.url, clock=SystemClock())
    await broker.open()
    await broker.publish([outgoing("m-1")])
    await broker.receive(QUEUE, limit=1, lease_ms=1_000, worker="w1", wait_ms=0)
    await broker.close()

    await node.call("work", queue=QUEUE, opts=QUICK)
    run = await node.wait("run", queue=QUEUE)
    await node.wait("completed", queue=QUEUE)

    assert ("m-1", {"n": 1}, 0, 2) == (run["id"], run["data"], run["attemptsMade"], run["attemptsStarted"])


async def test_bq05_a_job_that_stalled_too_often_beside_node_fails_with_its_reason(
    redis: Redis, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than the fleet takes to find its dead, whose start it counts itself.
    monkeypatch.setattr(fleet, "SWEEP_MS", 8_000)
    await node.call("listen", queue=QUEUE)
    job = await node.call("add", queue=QUEUE, data={"n": 1}, opts={"attempts": 5})
    for number in range(2):
        broker = BullBroker(redis.url, clock=SystemClock())
        await broker.open()
        (received,) = await broker.receive(QUEUE, limit=1, lease_ms=500, worker=f"w{number}", wait_ms=20_000)
        assert number + 1 == received.starts
        await broker.close()
        if not number:
            # The second loss is for Node's sweep to count.
            await node.call("work", queue=QUEUE, hang=True, opts={**QUICK, "concurrency": 1, "autorun": False})
            await node.call("rest", queue=QUEUE)
    await node.call("work", queue=QUEUE, opts=QUICK)
    told = await node.wait("queue:failed", id=job)

    assert "stalled more than allowable limit" in told["failedReason"]

    await node.call("retry", queue=QUEUE, id=job)
    await node.wait("queue:completed", id=job)
