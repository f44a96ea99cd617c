"""What redrives is killed (kill -9): a canary goes on and still stops the job, a pause holds, a policy makes one job.

On the embedded broker, and on RabbitMQ with the letters in a file beside it.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from redrive import DeadLetter, Redrive
from redrive.core.letters.canary import Progress, progress_from_json
from redrive.core.letters.letter import ReviewState
from redrive.core.letters.review import CLOSED_NOTE
from redrive.core.letters.selection import Selection
from redrive.core.policy.auto_redrive import SLOT_MS
from redrive.core.redrive import Item, Job, JobState
from redrive.runtime.auto_redrive import AutoRedriver
from redrive.service import Service
from redrive.testing.samples import letter, message
from tests import rabbit as rabbits
from tests.service.doomed_redrive import CANARY, POLICY, QUEUE, RATE_PER_S, open_app
from tests.service.test_with_worker import PATIENCE_S, working

ROOT = Path(__file__).resolve().parents[2]
LETTERS = 80
IDS = tuple(f"dl_{number:03}" for number in range(LETTERS))
ALL = Selection(ids=IDS)
ENDED = (JobState.DONE, JobState.ABORTED, JobState.FAILED, JobState.PAUSED)


class Place(NamedTuple):
    """Where the messages and the letters are."""

    broker: str
    store: str = ""


@pytest.fixture(params=["sqlite", "rabbitmq"])
def place(request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    file = f"sqlite:///{tmp_path / 'shop.db'}"
    if request.param == "sqlite":
        return Place(file)
    vhost = request.getfixturevalue("one_vhost")
    return Place(vhost, file)


@pytest.fixture
def one_vhost(tmp_path_factory: pytest.TempPathFactory) -> object:
    with rabbits.server_of(rabbits.NEW, tmp_path_factory).vhost() as vhost:
        yield vhost.url


def shop(place: Place, *, is_bad: bool) -> tuple[Redrive, Counter[str]]:
    """The app with its consumer, and how often each message came through."""
    app, runs = open_app(*place), Counter[str]()

    @app.consumer(QUEUE)
    async def charge(order: dict[str, str]) -> None:
        runs[order["id"]] += 1
        if is_bad:
            raise DeadLetter("still broken")

    return app, runs


async def fill(place: Place) -> None:
    """Dead letters of ten tenants, and the queue they came from."""
    app, _ = shop(place, is_bad=False)
    async with working(app) as service:
        async with asyncio.timeout(PATIENCE_S):
            while QUEUE not in {depth.queue for depth in await app.backend.broker.depths([QUEUE])}:
                await asyncio.sleep(0.01)  # sleep: the worker declares it
        now = app.clock.now()
        await app.backend.letters.put(
            [
                letter(
                    each,
                    died_at=now - 60_000 + number,
                    fingerprint=f"fp-{number % 3}",
                    message=message(f"m-{each}", tenant=f"t{number % 10}", body=b'{"id":"%s"}' % each.encode()),
                )
                for number, each in enumerate(IDS)
            ]
        )
        assert LETTERS == (await service.stats(Selection())).total


def doomed(moment: str, place: Place) -> subprocess.Popen[str]:
    """The process that dies at this moment."""
    command = [sys.executable, "-m", "tests.service.doomed_redrive", moment, *place, *([""] * (2 - len(place)))]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


async def killed(moment: str, place: Place) -> None:
    """Let it die."""
    process = doomed(moment, place)
    try:
        out, _ = await asyncio.to_thread(process.communicate, timeout=PATIENCE_S)
    finally:
        process.kill()
    assert -signal.SIGKILL == process.returncode, out


async def until_ended(service: Service, job_id: str) -> Job:
    async with asyncio.timeout(PATIENCE_S):
        while (found := (await service.job(job_id)).job).state not in ENDED:
            await asyncio.sleep(0.02)  # sleep: the worker's upkeep carries it out
    return found


async def until_handled(runs: Counter[str], count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(runs) < count:
            await asyncio.sleep(0.02)  # sleep: the worker works


async def items(app: Redrive, job: Job) -> list[Item]:
    return await app.backend.jobs.items(job.id, state=None, limit=LETTERS + 1)


async def audited(app: Redrive) -> set[str]:
    """The letters whose audit trail says that they went: sent once; or closed by their copy, which was processed before
    RabbitMQ's confirm had been written down.
    """
    found: set[str] = set()
    for each in IDS:
        kept = await app.backend.letters.get(each)
        assert kept is not None
        sends = sum(entry.action == ReviewState.REPLAYED for entry in kept[1])
        assert sends <= 1
        if sends or any(entry.note == CLOSED_NOTE for entry in kept[1]):
            found.add(each)
    return found


def kept_of(job: Job) -> Progress:
    progress = progress_from_json(job.progress)
    assert progress is not None
    return progress


# ----------------------------------------------------------------------------------------------------- canary


@pytest.mark.parametrize("moment", ["canary: while it watches", "canary: after a batch"])
@pytest.mark.parametrize("is_bad", [True, False], ids=["bad", "good"])
async def test_a_canary_whose_runner_was_killed_goes_on_and_decides(place: Place, moment: str, *, is_bad: bool) -> None:
    await fill(place)
    await killed(moment, place)
    app, runs = shop(place, is_bad=is_bad)
    async with working(app) as service:
        (left,) = await service.jobs()
        sent_before = {item.letter_id for item in await items(app, left) if item.state == "sent"}
        ended = await until_ended(service, left.id)
        await until_handled(runs, ended.counts.sent)
        view = await service.job(left.id)

        sent = {item.letter_id for item in await items(app, ended) if item.state == "sent"}
        assert left.state is JobState.RUNNING
        assert 0 < len(sent_before) <= CANARY
        assert CANARY == len(sent_before) or moment == "canary: after a batch"
        assert kept_of(left).positions == kept_of(ended).positions
        assert sent_before <= sent
        counts = ended.counts
        assert (LETTERS, LETTERS, len(sent), 0) == (
            counts.selected, counts.pending + counts.sent, counts.sent, counts.skipped,
        )  # fmt: skip
        # A letter is sent again where the kill came between the broker's confirm and its record: once by its effect.
        assert dict.fromkeys(sent, 1) == dict(runs)
        assert sent == await audited(app)
        if is_bad:
            assert (JobState.ABORTED, True) == (ended.state, len(sent) <= CANARY)
            assert "stopped by its canary" in str(ended.error)
            assert 0 < view.outcomes.failed_again
        else:
            assert (JobState.DONE, LETTERS) == (ended.state, len(sent))
            # What went between the kill and its note counts a little less, never more.
            assert LETTERS - RATE_PER_S / 2 <= sum(kept_of(ended).sent.values()) <= LETTERS


# ----------------------------------------------------------------------------------------------------- pause


async def test_a_pause_holds_though_both_who_ran_and_who_paused_are_killed(place: Place) -> None:
    await fill(place)
    runner = doomed("send slowly", place)
    assert runner.stdout is not None
    job_id = (await asyncio.to_thread(runner.stdout.readline)).strip()
    await killed("pause", place)
    runner.kill()
    await asyncio.to_thread(runner.communicate)

    app, runs = shop(place, is_bad=False)
    async with working(app) as service:
        paused = (await service.job(job_id)).job
        taken = await app.backend.jobs.acquire(None, owner="upkeep", lease_ms=1_000)
        other = await service.redrive(Selection(queue=QUEUE), actor="eve")
        done = (await service.resume(job_id)).job
        await until_handled(runs, LETTERS)

        assert (JobState.PAUSED, "paused by bob") == (paused.state, paused.error)
        assert 0 < paused.counts.sent < LETTERS
        assert taken is None
        assert (0, {"in-progress": paused.counts.pending}) == (other.job.counts.sent, other.refusals)
        assert (JobState.DONE, LETTERS) == (done.state, done.counts.sent)
        assert dict.fromkeys(IDS, 1) == dict(runs)
        assert set(IDS) == await audited(app)


# ----------------------------------------------------------------------------------------------------- policy


@pytest.mark.parametrize(
    ("moment", "count"), [("policy: before the job is stored", 0), ("policy: after the job is stored", 1)]
)
async def test_a_policy_that_was_killed_makes_one_job(place: Place, moment: str, count: int) -> None:
    await fill(place)
    slot = time.time_ns() // 1_000_000 // SLOT_MS
    await killed(moment, place)
    app, runs = shop(place, is_bad=False)
    async with app:
        left = await app.backend.jobs.list()
        await asyncio.gather(
            *(AutoRedriver(app.backend, app.clock, app.events, policies=[POLICY]).look() for _ in range(3))
        )
        made = await app.backend.jobs.list()
        is_same_slot = slot == app.clock.now() // SLOT_MS

    app, runs = shop(place, is_bad=False)
    async with working(app) as service:
        for each in made:
            await until_ended(service, each.id)
        await until_handled(runs, LETTERS)
        jobs = await service.jobs()

        assert count == len(left)
        assert 1 == len(jobs) or not is_same_slot
        assert LETTERS == sum(each.counts.sent for each in jobs)
        assert dict.fromkeys(IDS, 1) == dict(runs)
        assert set(IDS) == await audited(app)
