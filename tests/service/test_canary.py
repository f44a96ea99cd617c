"""A redrive with a canary: a few letters first, with a real worker that shows what becomes of them; and pauses."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from redrive import DeadLetter, Redrive
from redrive.core.letters.canary import progress_from_json
from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.message import HEADER_REDRIVEN_BATCH
from redrive.core.redrive import ItemState, Job, JobOptions, JobState
from redrive.errors import TransitionError
from redrive.runtime.redriver import Redriver
from redrive.service import Service
from redrive.testing.samples import letter, message
from tests.service.test_with_worker import until, working

LETTERS = 200
CANARY = 20
WATCH_MS = 30_000


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'shop.db'}"


def shop(url: str, *, bad: str | None) -> Redrive:
    """An app whose handler refuses what is of the tenant `bad`; "all": everything."""
    app = Redrive("shop", url)

    @app.consumer("orders")
    async def charge(order: dict[str, str]) -> None:
        if bad in ("all", order["tenant"]):
            raise DeadLetter("still broken")

    return app


async def fill(app: Redrive, *, tenants: int = 10, keys: int = LETTERS) -> None:
    """Dead letters of so many tenants, in turn, and the queue they came from."""
    await app.backend.broker.receive("orders", limit=1, lease_ms=1_000, worker="w", wait_ms=0)
    now = app.clock.now()
    await app.backend.letters.put(
        [
            letter(
                f"dl_{number:03}",
                died_at=now - 60_000 + number,
                fingerprint=f"fp-{number % 3}",
                message=message(
                    f"m-{number:03}",
                    key=f"k-{number % keys}",
                    tenant=f"t{number % tenants}",
                    body=f'{{"tenant":"t{number % tenants}","id":"dl_{number:03}"}}'.encode(),
                ),
            )
            for number in range(LETTERS)
        ]
    )


async def states(service: Service) -> list[ReviewState]:
    page = await service.letters(Selection(ids=tuple(f"dl_{number:03}" for number in range(LETTERS))), limit=1_000)
    return [each.state for each in page.letters]


async def send(service: Service, **options: object) -> Job:
    given = {"canary": CANARY, "canary_watch_ms": WATCH_MS, **options}
    view = await service.redrive(Selection(queue="orders"), JobOptions(**given), actor="ann")  # type: ignore[arg-type]
    return view.job


async def test_a_canary_that_is_processed_lets_the_rest_go(url: str) -> None:
    app = shop(url, bad=None)
    async with working(app) as service:
        await fill(app)
        job = await send(service)

        assert (JobState.DONE, LETTERS, 0) == (job.state, job.counts.sent, job.counts.pending)
        progress = progress_from_json(job.progress)
        assert progress is not None
        assert (CANARY, LETTERS) == (len(progress.positions), sum(progress.sent.values()))
        assert {number % 10 for number in progress.positions} == set(range(10))


async def test_a_canary_that_fails_again_stops_the_job_by_itself(url: str) -> None:
    app = shop(url, bad="all")
    async with working(app) as service:
        await fill(app)
        job = await send(service)
        view = await service.job(job.id)

        assert job.state is JobState.ABORTED
        assert "stopped by its canary" in str(job.error)
        assert job.counts.sent <= CANARY
        assert view.outcomes.failed_again > 0
        assert (await states(service)).count(ReviewState.PENDING) == LETTERS - job.counts.sent


@pytest.mark.parametrize("is_late", [False, True], ids=["known", "late"])
async def test_a_job_that_its_canary_stopped_goes_on_with_another_one(url: str, *, is_late: bool) -> None:
    """`is_late`: the rest of the first canary fails while the second one is looked at."""
    app, bad = Redrive("shop", url), set[str]()
    goes_on = asyncio.Event()

    @app.consumer("orders", concurrency=LETTERS)
    async def charge(order: dict[str, str]) -> None:
        if not goes_on.is_set():
            bad.add(order["id"])
        if is_late and len(bad) > CANARY // 2 and order["id"] in bad:
            await goes_on.wait()
        if order["id"] in bad:
            raise DeadLetter("still broken")

    async with working(app) as service:
        await fill(app)
        stopped = await send(service)
        if not is_late:
            await until(lambda: len(bad) == stopped.counts.sent)
        goes_on.set()
        done = (await service.resume(stopped.id)).job

        first, second = progress_from_json(stopped.progress), progress_from_json(done.progress)
        assert first is not None
        assert second is not None
        assert (JobState.ABORTED, JobState.DONE) == (stopped.state, done.state)
        assert (True, False) == (first.is_stopped, second.is_stopped)
        assert (LETTERS, CANARY) == (done.counts.sent, len(second.positions))
        assert not set(first.positions[: stopped.counts.sent]) & set(second.positions)
        assert LETTERS - stopped.counts.sent == sum(second.sizes.values()) == sum(second.sent.values())


async def test_another_canary_that_fails_stops_the_job_again(url: str) -> None:
    app = shop(url, bad="all")
    async with working(app) as service:
        await fill(app)
        stopped = await send(service)
        again = (await service.resume(stopped.id)).job

        assert [JobState.ABORTED] * 2 == [stopped.state, again.state]
        assert stopped.counts.sent < again.counts.sent <= 2 * CANARY


async def test_one_bad_tenant_of_ten_is_enough_to_stop(url: str) -> None:
    app = shop(url, bad="t7")
    async with working(app) as service:
        await fill(app)
        job = await send(service)

        assert job.state is JobState.ABORTED
        assert job.counts.sent <= CANARY


async def test_a_job_whose_canary_nobody_processes_is_held_up_and_goes_on_when_told(url: str) -> None:
    app = shop(url, bad=None)
    async with app:
        service = Service(app)
        await fill(app)
        job = await send(service, canary_watch_ms=50)

        assert (JobState.PAUSED, CANARY) == (job.state, job.counts.sent)
        assert "Is the consumer running?" in str(job.error)
        assert await app.backend.jobs.acquire(None, owner="upkeep", lease_ms=1_000) is None

        worker = app.worker()
        running = asyncio.create_task(worker.run())
        try:
            done = (await service.resume(job.id)).job
        finally:
            worker.stop()
            await running
        assert (JobState.DONE, LETTERS) == (done.state, done.counts.sent)


async def test_the_next_runner_goes_on_with_the_same_canary(url: str) -> None:
    app = shop(url, bad=None)
    async with app:
        service = Service(app)
        await fill(app)
        options = JobOptions(canary=CANARY, canary_watch_ms=WATCH_MS, rate_per_s=20, limit=3 * CANARY)
        view = await service.redrive(Selection(queue="orders"), options, actor="ann", run=False)
        seen: list[Job] = []
        first = Redriver(app.backend, app.clock, app.events)
        runner = asyncio.create_task(first.run(view.job.id, owner="first", on_progress=seen.append))
        await until(lambda: seen and seen[-1].counts.sent)
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)
        stored = (await service.job(view.job.id)).job

        worker = app.worker()
        running = asyncio.create_task(worker.run())
        try:
            await service.abort(view.job.id, actor="ann")
            done = (await service.resume(view.job.id)).job
        finally:
            worker.stop()
            await running

        assert 0 < stored.counts.sent < CANARY
        before, after = progress_from_json(stored.progress), progress_from_json(done.progress)
        assert before is not None
        assert after is not None
        assert before.positions == after.positions
        assert (JobState.DONE, 3 * CANARY) == (done.state, done.counts.sent)


async def test_a_letter_that_goes_first_overtakes_none_of_its_key(url: str) -> None:
    app = shop(url, bad=None)
    async with working(app) as service:
        await fill(app, keys=50)
        job = await send(service)

        progress = progress_from_json(job.progress)
        assert progress is not None
        assert max(progress.positions) < 50


async def test_a_paused_job_keeps_its_letters_until_it_is_resumed(url: str) -> None:
    app = shop(url, bad=None)
    async with app:
        service = Service(app)
        await fill(app)
        view = await service.redrive(Selection(queue="orders"), JobOptions(rate_per_s=10), actor="ann", run=False)
        runner = asyncio.create_task(service.resume(view.job.id))
        async with asyncio.timeout(60):
            while (await service.job(view.job.id)).job.counts.sent == 0:
                await asyncio.sleep(0.01)  # sleep: the runner works in between

        paused = (await service.pause(view.job.id, actor="bob", note="the bank is down")).job
        ended = (await runner).job
        other = await service.redrive(Selection(queue="orders"), actor="eve")

        assert (JobState.PAUSED, "paused by bob: the bank is down") == (paused.state, paused.error)
        assert ended.state is JobState.PAUSED
        assert (0, paused.counts.pending) == (other.job.counts.sent, other.job.counts.skipped)
        assert view.job.id in other.skipped[0].why
        with pytest.raises(TransitionError):
            await service.pause(view.job.id, actor="bob")
        await service.abort(view.job.id, actor="bob")
        again = await service.redrive(Selection(queue="orders"), actor="eve")
        assert again.job.counts.sent == paused.counts.pending


async def test_what_was_skipped_says_nothing_of_the_rest(url: str) -> None:
    app = shop(url, bad=None)
    async with working(app) as service:
        await fill(app)
        job = await send(service, edit='[{"op": "test", "path": "/tenant", "value": "t1"}]')

        progress = progress_from_json(job.progress)
        assert progress is not None
        assert (JobState.DONE, 20, LETTERS - 20) == (job.state, job.counts.sent, job.counts.skipped)
        assert sum(progress.sent.values()) == job.counts.sent


async def test_a_canary_sees_its_letters_behind_more_others_than_a_look_reads(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.runtime.canary.PAGE", 10)
    monkeypatch.setattr("redrive.runtime.canary.MAX_PAGES", 2)
    app = shop(url, bad=None)
    async with app:
        service = Service(app)
        await fill(app)
        paused = await send(service, canary_watch_ms=1)
        sent = await app.backend.jobs.items(paused.id, state=ItemState.SENT, limit=LETTERS, after=-1)
        copy = message("copy", headers={HEADER_REDRIVEN_BATCH: paused.id})
        at = paused.created_at
        await app.backend.letters.put(
            [letter(f"other_{number:03}", queue="other", died_at=at + number) for number in range(300)]
            + [
                replace(letter(f"back_{item.position}", died_at=at + 300, message=copy), previous=item.letter_id)
                for item in sent
            ]
        )

        stopped = (await service.resume(paused.id)).job

        assert (JobState.PAUSED, CANARY) == (paused.state, len(sent))
        assert (JobState.ABORTED, CANARY) == (stopped.state, stopped.counts.sent)
        assert "stopped by its canary" in str(stopped.error)
