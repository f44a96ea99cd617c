"""What Node's workers gave up becomes letters, and goes back as the jobs they were: with BullMQ 5 and 6."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from redrive import Redrive
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.ports import FailedJob, Taking
from redrive.runtime.failed_collector import FailedCollector
from redrive.service import Service
from tests.interop.node import Node
from tests.interop.stage import QUEUE, stage
from tests.redis import Redis
from tests.runtime.stage import Told, working

ORDER = {"n": 1, "text": "naïve-Ω"}
OPTIONS = {"attempts": 3, "backoff": {"type": "fixed", "delay": 10}, "priority": 4}

COLLECT = """
import asyncio, os, signal, sys
from redrive import Redrive
from redrive.runtime import collecting
from redrive.service import Service

collecting.LEASE_MS = 500

async def main():
    app = Redrive("found", broker=sys.argv[1], settings={"store": sys.argv[2], "log_level": "error"})
    async with app:
        backend = app.backend
        async def die(*given): os.kill(os.getpid(), signal.SIGKILL)
        if sys.argv[3] == "before the store":
            backend.letters.put = die
        else:
            backend.failed.take = die
        await Service(app).collect("orders")

asyncio.run(main())
"""


@pytest_asyncio.fixture
async def service(redis: Redis, tmp_path: Path) -> AsyncIterator[Service]:
    app = Redrive("found", broker=redis.url, settings={"store": f"sqlite:///{tmp_path / 'store.db'}"})
    async with app:
        yield Service(app)


async def fail(node: Node, count: int = 1, **opts: Any) -> list[str]:
    """So many jobs that Node's worker has given up; their ids."""
    ids = [await node.call("add", queue=QUEUE, name="charge", data={**ORDER, "n": n}, opts=opts) for n in range(count)]
    await node.call("work", queue=QUEUE, failures=99)
    while (await node.call("counts", queue=QUEUE))["failed"] < count:
        await node.wait("failed", queue=QUEUE)
    await node.call("rest", queue=QUEUE)
    return ids


async def letters(service: Service) -> list[Letter]:
    found = (await service.letters(Selection(), limit=500)).letters
    return [(await service.letter(each.id)).letter for each in found]


async def failed(node: Node) -> int:
    return int((await node.call("counts", queue=QUEUE))["failed"])


async def test_a_failed_job_becomes_a_letter_and_leaves_the_failed_set(service: Service, node: Node) -> None:
    (job_id,) = await fail(node, **OPTIONS)
    job = await node.call("job", queue=QUEUE, id=job_id)

    done = await service.collect(QUEUE)

    (letter,) = await letters(service)
    assert (1, 1, {QUEUE: 1}) == (done.taken, done.new, dict(done.by_queue))
    assert (QUEUE, job_id, "charge") == (letter.queue, letter.message.id, letter.message.properties.type)
    assert (b'{"n":0,"text":"na\xc3\xafve-\xce\xa9"}', 3) == (letter.message.body, letter.attempt_count)
    assert ("run 3 failed", "Error") == (letter.reason.text, letter.error_type)
    assert (job["timestamp"], job["finishedOn"]) == (letter.message.published_at, letter.dead_lettered_at)
    (last,) = letter.history
    assert (job["finishedOn"] - job["processedOn"], job["stacktrace"][-1]) == (last.duration_ms, last.traceback)
    assert job["stacktrace"][:-1] == json.loads(str(letter.message.headers["x-bullmq-stacktraces"]))
    assert await node.call("job", queue=QUEUE, id=job_id) is None
    assert 0 == await failed(node)


async def test_a_letter_goes_back_as_the_job_it_was(service: Service, node: Node) -> None:
    (job_id,) = await fail(node, **OPTIONS)
    await service.collect(QUEUE)

    view = await service.redrive(Selection(), actor="ann")

    assert 1 == view.job.counts.sent
    again = await node.call("job", queue=QUEUE, id=job_id)
    assert {"n": 0, "text": "naïve-Ω"} == again["data"]
    assert ("charge", "prioritized", 0) == (again["name"], again["state"], again["attemptsMade"])
    assert OPTIONS == {name: again["opts"].get(name) for name in OPTIONS}
    assert not {"removeOnFail", "removeOnComplete"} & set(again["opts"])
    # It is Node's once more: it fails, is collected, and is linked to the letter it came from.
    await fail_on(node)
    await service.collect(QUEUE)
    first, second = sorted(await letters(service), key=lambda each: each.redrive_count)
    assert (first.id, 1, ReviewState.REPLAYED) == (second.previous, second.redrive_count, first.state)
    assert "x-bullmq-stacktraces" not in again


async def fail_on(node: Node) -> None:
    """The worker gives up what waits."""
    before = await failed(node)
    await node.call("work", queue=QUEUE, failures=99)
    while await failed(node) == before:
        await node.wait("failed", queue=QUEUE)
    await node.call("rest", queue=QUEUE)


async def test_an_id_that_is_taken_by_now_is_not_overwritten(service: Service, node: Node) -> None:
    await fail(node, 5)
    await service.collect(QUEUE)
    await node.call("obliterate", queue=QUEUE)
    await node.call("add", queue=QUEUE, name="new", data={})

    for job_id in ("5", "1"):
        assert 1 == (await service.redrive(Selection(message_id=job_id), actor="ann")).job.counts.sent
    fresh = [await node.call("add", queue=QUEUE, name="new", data={}) for _ in range(2)]

    # The queue counts from 1 again, and comes to 5 with the next but one: that number is left to it.
    assert ["4", "5"] == fresh
    waiting = {each["id"] for each in await node.call("jobs", queue=QUEUE, state="wait")}
    assert {"1", "1~2", "5~2", "4", "5"} == waiting


async def test_another_job_that_failed_under_its_id_stays(service: Service, node: Node) -> None:
    await fail(node)
    await service.collect(QUEUE)
    await node.call("obliterate", queue=QUEUE)
    await fail(node)

    view = await service.redrive(Selection(), actor="ann")

    assert (1, 1) == (view.job.counts.sent, await failed(node))
    assert ["1~2"] == [each["id"] for each in await node.call("jobs", queue=QUEUE, state="wait")]


@pytest.mark.parametrize("moment", ["before the store", "before it is taken out"])
async def test_killed_in_between_it_is_one_letter(
    service: Service, node: Node, redis: Redis, tmp_path: Path, *, moment: str
) -> None:
    await fail(node, 30)
    store = f"sqlite:///{tmp_path / 'store.db'}"

    ran = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", COLLECT, redis.url, store, moment], check=False, timeout=120
    )
    stored = len(await letters(service))
    left = await failed(node)
    done = await service.collect(QUEUE)

    assert (-9, 30) == (ran.returncode, left)
    assert stored == (30 if moment == "before it is taken out" else 0)
    assert (30, 30 - stored) == (done.taken, done.new)
    assert 30 == len(await letters(service))
    assert 0 == await failed(node)


@pytest.mark.parametrize("meanwhile", ["retry", "edit", "remove"])
async def test_what_a_person_does_at_the_same_moment_stands(service: Service, node: Node, meanwhile: str) -> None:
    first, second = await fail(node, 2)
    await change_before_it_is_taken(service, node, redis_edit(first) if meanwhile == "edit" else (meanwhile, first))

    done = await service.collect(QUEUE)

    assert (1, 0) == (done.taken, await failed(node) - (meanwhile == "edit"))
    by_id = {each.message.id: each.state for each in await letters(service)}
    # What lives on needs no letter; of what is gone, there is one.
    closed = ReviewState.PENDING if meanwhile == "remove" else ReviewState.CLOSED
    assert {first: closed, second: ReviewState.PENDING} == by_id
    if meanwhile == "retry":
        assert "waiting" == (await node.call("job", queue=QUEUE, id=first))["state"]
    if meanwhile == "edit":
        again = await service.collect(QUEUE)
        assert 1 == again.new
        bodies = {each.message.body for each in await letters(service) if each.state is ReviewState.PENDING}
        assert b'{"n":"edited"}' in bodies


def redis_edit(job_id: str) -> tuple[str, str]:
    return "update", job_id


async def change_before_it_is_taken(service: Service, node: Node, change: tuple[str, str]) -> None:
    """The person's step falls between the look and the removal."""
    seen = service._app.backend.failed
    assert seen is not None
    take = seen.take
    what, job_id = change

    async def late(queue: str, batch: list[FailedJob]) -> list[Taking]:
        if job_id in {each.message.id for each in batch}:
            more = {"data": {"n": "edited"}} if what == "update" else {}
            await node.call(what, queue=QUEUE, id=job_id, **more)
        seen.take = take  # type: ignore[method-assign]
        return await take(queue, batch)

    seen.take = late  # type: ignore[assignment,method-assign]


async def test_a_part_of_a_flow_is_left_alone(service: Service, node: Node) -> None:
    child = {"name": "child", "queueName": QUEUE, "data": {}, "opts": {"failParentOnFailure": True}}
    await node.call("flow", flow={"name": "parent", "queueName": "parents", "data": {}, "children": [child]})
    await fail(node, 1)
    await node.call("work", queue=QUEUE, failures=99)
    await fail_parent(node)

    done = await service.collect(QUEUE)
    dry, left = await service.collectable("parents")

    assert (1, {"part of a flow: it has a parent": 1}) == (done.taken, dict(done.left))
    assert ((), {"part of a flow: it has children": 1}) == (dry, dict(left))
    assert 1 == await failed(node)


async def fail_parent(node: Node) -> None:
    await node.call("work", queue="parents")
    await node.wait("failed", queue="parents")
    await node.call("rest", queue="parents")


async def test_what_redrives_own_worker_gave_up_is_no_second_letter(redis: Redis, node: Node, tmp_path: Path) -> None:
    job_id = await node.call("add", queue=QUEUE, name="charge", data=ORDER)
    async with stage(redis.url, tmp_path) as here:
        here.fails = lambda _: True
        dead = asyncio.create_task(here.event("delivery.dead_lettered"))
        await dead
        in_failed_set = await failed(node)
        own = await Service(here.app).collect(QUEUE)
        here.fails = lambda _: False

    assert (1, 0, {"redrive's own, stored already": 1}) == (in_failed_set, own.taken, dict(own.left))
    # A person retries it, and Node's worker fails it: it is nobody's letter yet.
    async with stage(redis.url, tmp_path, works=False) as here:
        await node.call("retry", queue=QUEUE, id=job_id)
        await fail_on(node)
        done = await Service(here.app).collect(QUEUE)
    assert (1, 1) == (done.taken, done.new)


async def test_more_than_one_look_shows_is_all_taken(service: Service, node: Node) -> None:
    await fail(node, 230)

    first = await service.collect(QUEUE, limit=130)
    rest = await service.collect(QUEUE)

    assert (130, 100, 0) == (first.taken, rest.taken, await failed(node))
    assert 230 == len(await letters(service))


async def test_without_turns_several_take_each_job_once(service: Service, node: Node) -> None:
    await fail(node, 120)
    app = service._app
    assert app.backend.failed is not None
    made = [
        FailedCollector(app.backend, app.backend.failed, app.clock, events=app.events, system="found") for _ in range(3)
    ]

    done = await asyncio.gather(*(each.run(QUEUE, once=True) for each in made))

    assert (120, 0) == (sum(each.taken for each in done), await failed(node))
    assert 120 == len(await letters(service))
    assert {ReviewState.PENDING} == {each.state for each in await letters(service)}


async def test_a_worker_collects_what_others_fail_and_tells_what_it_leaves(
    redis: Redis, node: Node, tmp_path: Path
) -> None:
    app = Redrive(
        "shop", broker=redis.url, settings={"store": f"sqlite:///{tmp_path / 'store.db'}"}, collect=["charges"]
    )

    @app.consumer(QUEUE)
    async def handle(_order: dict[str, Any]) -> None: ...

    told = Told(app)
    async with working(app):
        child = {"name": "child", "queueName": "charges", "data": {}, "opts": {}}
        await node.call("flow", flow={"name": "parent", "queueName": "parents", "data": {}, "children": [child]})
        await node.call("add", queue="charges", name="charge", data=ORDER)
        await node.call("work", queue="charges", failures=99)
        await told.until("letters.collected")
        (left, *_) = await told.until("collector.left")

        (letter,) = await letters(Service(app))
    assert ("charges", "charge") == (letter.queue, letter.message.properties.type)
    assert ("charges", "part of a flow: it has a parent", 1) == (left["queue"], left["reason"], left["count"])
