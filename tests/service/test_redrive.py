"""Redrive jobs through the service: exactly what was chosen goes out, once, whatever happens in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.message import HEADER_FIRST_FAILED_AT, HEADER_LETTER, HEADER_REDRIVEN_BATCH, HEADER_REDRIVEN_COUNT
from redrive.core.ports import Forward
from redrive.core.redrive import Job, JobOptions, JobState
from redrive.errors import BrokerUnavailableError, NotFoundError, QueueNotFoundError, TransitionError
from redrive.runtime.app import Redrive
from redrive.runtime.redriver import Redriver
from redrive.service import JobView, Service
from redrive.testing.clock import FakeClock
from redrive.testing.samples import QUEUE
from tests.service.conftest import letter_with, put_letters, states, waiting

ALL = Selection(queue=QUEUE)


class Stumbling:
    """A ledger whose `forward` breaks at one letter: `before` it is sent, or `after` it was, or by a refusal."""

    def __init__(self, real: Any, *, at: str, how: str) -> None:
        self._real = real
        self._at = at
        self._how = how
        self.is_broken = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def forward(self, job: Job, batch: Sequence[Forward]) -> list[str | None]:
        answers: list[str | None] = []
        for forward in batch:
            if self.is_broken and forward.item.letter_id == self._at:
                if self._how == "after":
                    await self._real.forward(job, [forward])
                raise KilledError
            answers += await self._real.forward(job, [forward])
        return answers


class KilledError(BaseException):
    """Stands for `kill -9`: nothing of the process runs any more."""


def stumble(app: Redrive, *, at: str, how: str) -> Stumbling:
    """The app's ledger now breaks there."""
    ledger = Stumbling(app.backend.ledger, at=at, how=how)
    app._backend = replace(app.backend, ledger=ledger)
    return ledger


async def start_slowly(service: Service, *, rate_per_s: float) -> asyncio.Task[JobView]:
    """A redrive that has sent its first letter and waits for the next one's turn."""
    first_sent = asyncio.Event()

    def watch(job: Job) -> None:
        if job.counts.sent:
            first_sent.set()

    options = JobOptions(rate_per_s=rate_per_s)
    running = asyncio.create_task(service.redrive(ALL, options, actor="ann", on_progress=watch))
    await first_sent.wait()
    return running


async def test_a_redrive_sends_every_open_letter_once_and_marks_it_replayed(app: Redrive, service: Service) -> None:
    ids = await put_letters(app, 7)

    view = await service.redrive(ALL, actor="ann", note="fixed")

    assert (JobState.DONE, 7, 0) == (view.job.state, view.job.counts.sent, view.job.counts.skipped)
    assert [f"m-{id_}" for id_ in ids] == await waiting(app)
    assert dict.fromkeys(ids, ReviewState.REPLAYED) == await states(app)


async def test_the_copy_says_where_it_comes_from(app: Redrive, service: Service) -> None:
    await put_letters(app, 1, redrive_count=1)

    view = await service.redrive(ALL, actor="ann")

    (copy,) = await app.backend.broker.peek(QUEUE, limit=5)
    assert ("dl_0001", 2, view.job.id) == (
        copy.headers[HEADER_LETTER],
        copy.headers[HEADER_REDRIVEN_COUNT],
        copy.headers[HEADER_REDRIVEN_BATCH],
    )
    assert (await service.letter("dl_0001")).letter.first_failed_at == copy.headers[HEADER_FIRST_FAILED_AT]


async def test_the_limit_takes_the_oldest(app: Redrive, service: Service) -> None:
    await put_letters(app, 5)

    view = await service.redrive(ALL, JobOptions(limit=2), actor="ann")

    assert 2 == view.job.counts.sent
    assert ["m-dl_0001", "m-dl_0002"] == await waiting(app)


async def test_a_double_click_sends_each_letter_once(app: Redrive, service: Service) -> None:
    """Case RD-01."""
    m1, m2, m3 = await put_letters(app, 3)
    both = Selection(ids=(m1, m2))

    first, second = await asyncio.gather(
        service.redrive(both, actor="ann", request_key="click-1"), service.redrive(both, actor="bob")
    )
    third = await service.redrive(Selection(ids=(m1, m1, m3)), actor="cid")
    again = await service.redrive(both, actor="ann", request_key="click-1")

    assert ["m-dl_0001", "m-dl_0002", "m-dl_0003"] == await waiting(app)
    assert 2 == first.job.counts.sent + second.job.counts.sent
    loser = first if second.job.counts.sent else second
    assert {m1, m2} == {skip.letter_id for skip in loser.skipped} or 1 == loser.job.counts.sent
    assert (1, [m1]) == (third.job.counts.sent, [skip.letter_id for skip in third.skipped])
    assert "replayed" in third.skipped[0].why or "in progress" in third.skipped[0].why
    assert first.job.id == again.job.id
    assert first.job.counts == again.job.counts


async def test_the_audit_says_who_sent_a_letter(app: Redrive, service: Service) -> None:
    """Case RD-01; a pending letter is recorded as reviewed by the same actor first."""
    (m1,) = await put_letters(app, 1)

    await service.redrive(Selection(ids=(m1,)), actor="ann")

    audit = (await service.letter(m1)).audit
    assert ["ann", "ann"] == [entry.actor for entry in audit]
    assert ["reviewed", "replayed"] == [entry.action for entry in audit]


@pytest.mark.parametrize("how", ["before", "after"])
async def test_a_kill_around_a_send_loses_nothing_and_sends_nothing_twice(
    app: Redrive, service: Service, clock: FakeClock, how: str
) -> None:
    """Case RD-02, F1 and F2: killed before the fourth is sent, and right after it was."""
    ids = await put_letters(app, 10)
    ledger = stumble(app, at=ids[3], how=how)
    with pytest.raises(KilledError):
        await Service(app).redrive(ALL, actor="ann")
    (job,) = await service.jobs()

    ledger.is_broken = False
    await clock.advance(60_000)
    view = await Service(app).resume(job.id)

    assert (JobState.DONE, 10) == (view.job.state, view.job.counts.sent)
    assert [f"m-{id_}" for id_ in ids] == await waiting(app)
    assert dict.fromkeys(ids, ReviewState.REPLAYED) == await states(app)
    assert [None] * 10 == [(await service.letter(id_)).letter.outstanding_job for id_ in ids]


async def test_any_worker_takes_over_a_killed_job(app: Redrive, service: Service, clock: FakeClock) -> None:
    ids = await put_letters(app, 5)
    ledger = stumble(app, at=ids[2], how="before")
    with pytest.raises(KilledError):
        await Service(app).redrive(ALL, actor="ann")
    ledger.is_broken = False
    redriver = Redriver(app.backend, clock, app.events)

    early = await redriver.run(None, owner="w2")
    await clock.advance(60_000)
    late = await redriver.run(None, owner="w2")

    assert early is None
    assert late is not None
    assert (JobState.DONE, 5) == (late.state, late.counts.sent)
    assert 5 == len(await waiting(app))


class Refusing(Stumbling):
    """A ledger that cannot send one letter: the target refuses it."""

    async def forward(self, job: Job, batch: Sequence[Forward]) -> list[str | None]:
        answers = []
        for forward in batch:
            if self.is_broken and forward.item.letter_id == self._at:
                item = replace(forward.item, state="skipped", why="the target refused it")
                await self._real_jobs.record(job, [item])
                answers.append("the target refused it")
            else:
                answers += await self._real.forward(job, [forward])
        return answers


async def test_a_refused_letter_stays_dead_and_the_others_go(app: Redrive, service: Service) -> None:
    """Case RD-02, F3."""
    ids = await put_letters(app, 10)
    ledger = Refusing(app.backend.ledger, at=ids[3], how="refuse")
    ledger._real_jobs = app.backend.jobs
    app._backend = replace(app.backend, ledger=ledger)

    view = await Service(app).redrive(ALL, actor="ann")
    ledger.is_broken = False
    again = await Service(app).redrive(ALL, actor="ann")

    assert (9, [(ids[3], "the target refused it")]) == (
        view.job.counts.sent,
        [(skip.letter_id, skip.why) for skip in view.skipped],
    )
    assert 1 == again.job.counts.sent
    assert [f"m-{id_}" for id_ in ids] == await waiting(app)


class Vanishing(Stumbling):
    """A ledger whose target is gone from one letter on."""

    async def forward(self, job: Job, batch: Sequence[Forward]) -> list[str | None]:
        answers: list[str | None] = []
        for forward in batch:
            if self.is_broken and forward.item.letter_id == self._at:
                raise QueueNotFoundError(f'Queue "{forward.outgoing.queue}" not found.')
            answers += await self._real.forward(job, [forward])
        return answers


async def test_a_job_whose_target_is_gone_fails_and_resumes_once_it_is_back(app: Redrive, service: Service) -> None:
    """Case RD-03: four moved, six dead, the job says why; after the resume all ten, none twice."""
    ids = await put_letters(app, 10)
    ledger = Vanishing(app.backend.ledger, at=ids[4], how="gone")
    app._backend = replace(app.backend, ledger=ledger)

    broken = await Service(app).redrive(ALL, actor="ann")
    moved = [id_ for id_, state in (await states(app)).items() if state is ReviewState.REPLAYED]
    ledger.is_broken = False
    resumed = await Service(app).resume(broken.job.id)

    assert (JobState.FAILED, ids[:4]) == (broken.job.state, moved)
    assert f'Queue "{QUEUE}" not found' in (broken.job.error or "")
    assert (JobState.DONE, 10) == (resumed.job.state, resumed.job.counts.sent)
    assert [f"m-{id_}" for id_ in ids] == await waiting(app)


class Flickering(Stumbling):
    """A ledger that is away for the first two calls."""

    away = 2

    async def forward(self, job: Job, batch: Sequence[Forward]) -> list[str | None]:
        if self.away:
            self.away -= 1
            raise BrokerUnavailableError("the file is locked")
        return await self._real.forward(job, batch)


async def test_a_short_outage_does_not_fail_the_job(app: Redrive, clock: FakeClock) -> None:
    await put_letters(app, 3)
    app._backend = replace(app.backend, ledger=Flickering(app.backend.ledger, at="", how=""))

    running = asyncio.create_task(Service(app).redrive(ALL, actor="ann"))
    await clock.run_until(running.done)

    assert (JobState.DONE, 3) == (running.result().job.state, running.result().job.counts.sent)


class Forgetful(Stumbling):
    """A ledger that carries one batch out, and then cannot say so."""

    async def forward(self, job: Job, batch: Sequence[Forward]) -> list[str | None]:
        answers = await self._real.forward(job, batch)
        if self.is_broken:
            self.is_broken = False
            raise BrokerUnavailableError("the answer was lost")
        return answers


async def test_an_answer_that_is_lost_sends_nothing_twice(app: Redrive, clock: FakeClock) -> None:
    """Case RD-02, F4: the process goes on after the delete failed."""
    ids = await put_letters(app, 10)
    app._backend = replace(app.backend, ledger=Forgetful(app.backend.ledger, at="", how=""))

    running = asyncio.create_task(Service(app).redrive(ALL, actor="ann"))
    await clock.run_until(running.done)

    assert (JobState.DONE, 10) == (running.result().job.state, running.result().job.counts.sent)
    assert [f"m-{id_}" for id_ in ids] == await waiting(app)


async def test_an_expiring_message_gets_a_new_life(app: Redrive, service: Service, clock: FakeClock) -> None:
    """Case RD-05: by default no old deadline; with keep_ttl as long again as it had; the rest is unchanged."""
    published = clock.now() - 120_000
    await app.backend.letters.put(
        [
            letter_with(name, published_at=published, expires_at=published + 60_000, priority=7)
            for name in ("dl_a", "dl_b")
        ]
    )

    await service.redrive(Selection(ids=("dl_a",)), actor="ann")
    await service.redrive(Selection(ids=("dl_b",)), JobOptions(keep_ttl=True), actor="ann")

    fresh, kept = sorted(await app.backend.broker.peek(QUEUE, limit=5), key=lambda copy: copy.id)
    assert (None, 7) == (fresh.expires_at, fresh.priority)
    assert (clock.now() + 60_000, 7) == (kept.expires_at, kept.priority)


async def test_only_open_letters_go_unless_they_are_named(app: Redrive, service: Service, clock: FakeClock) -> None:
    """Case RD-11: ten dead, four archived, one past its retention; a named one is refused until restored."""
    archived = await put_letters(app, 4)
    await put_letters(app, 5, first=5)
    (expired,) = await put_letters(app, 1, first=10, expires_at=clock.now() - 1)
    await service.review(Selection(ids=tuple(archived)), ReviewState.CLOSED, actor="ann")

    plan = await service.plan(Selection())
    everything = await service.redrive(Selection(), actor="ann")
    refused = await service.redrive(Selection(ids=(archived[0],)), actor="ann")
    await service.review(Selection(ids=(archived[0],)), ReviewState.PENDING, actor="ann")
    restored = await service.redrive(Selection(ids=(archived[0],)), actor="ann")

    assert (5, 5) == (plan.send, everything.job.counts.sent)
    assert [expired] == [skip.letter_id for skip in everything.skipped]
    assert (0, [(archived[0], "it is closed: restore it first")]) == (
        refused.job.counts.sent,
        [(skip.letter_id, skip.why) for skip in refused.skipped],
    )
    assert 1 == restored.job.counts.sent


async def test_pruning_takes_archived_letters_whose_time_is_over_and_no_open_one(
    app: Redrive, service: Service, clock: FakeClock
) -> None:
    """Case RD-11, the last step."""
    expired = clock.now() - 1
    archived = await put_letters(app, 4, expires_at=expired)
    still_open = await put_letters(app, 5, first=5, expires_at=expired)
    await service.review(Selection(ids=tuple(archived)), ReviewState.CLOSED, actor="ann")

    pruned = await app.backend.letters.prune(now=clock.now(), limit=100)

    assert 4 == pruned
    assert set(still_open) == set(await states(app))


async def test_a_dry_run_says_what_a_redrive_then_does(app: Redrive, service: Service) -> None:
    await put_letters(app, 3)
    await put_letters(app, 2, first=4, redrive_count=3)
    closed = await put_letters(app, 2, first=6)
    await service.review(Selection(ids=tuple(closed)), ReviewState.CLOSED, actor="ann")

    plan = await service.plan(ALL, JobOptions(rate_per_s=2.0))
    unchanged = (await waiting(app), await service.jobs())
    view = await service.redrive(ALL, actor="ann")

    assert ([], ()) == unchanged
    assert (3, 2, 1_500) == (plan.send, plan.skip, plan.takes_ms)
    assert [(QUEUE, QUEUE, 3, 2)] == [(found.queue, found.target, found.send, found.skip) for found in plan.queues]
    assert (plan.send, plan.skip) == (view.job.counts.sent, view.job.counts.skipped)
    assert plan.skipped == view.skipped


async def test_a_letter_redriven_often_needs_force(app: Redrive, service: Service) -> None:
    await put_letters(app, 1, redrive_count=3)

    refused = await service.redrive(ALL, actor="ann")
    forced = await service.redrive(ALL, JobOptions(force=True), actor="ann")

    assert (0, 1) == (refused.job.counts.sent, forced.job.counts.sent)
    assert "--force" in refused.skipped[0].why


async def test_another_target_gets_them_instead(app: Redrive, service: Service) -> None:
    await put_letters(app, 2)
    await app.publish("quarantine", {"n": 1}, message_id="first")

    await service.redrive(ALL, JobOptions(target_queue="quarantine"), actor="ann")

    assert [] == await waiting(app)
    assert ["first", "m-dl_0001", "m-dl_0002"] == await waiting(app, "quarantine")


async def test_a_rate_is_kept(app: Redrive, service: Service, clock: FakeClock) -> None:
    await put_letters(app, 10)
    started = clock.now()

    running = asyncio.create_task(service.redrive(ALL, JobOptions(rate_per_s=2.0), actor="ann"))
    await clock.run_until(running.done)

    assert 4_500 <= clock.now() - started <= 5_500


async def test_an_abort_holds_within_two_seconds_and_frees_the_rest(
    app: Redrive, service: Service, clock: FakeClock
) -> None:
    """Case BR-04: stop works within 2 s."""
    ids = await put_letters(app, 10)
    running = await start_slowly(service, rate_per_s=0.2)
    (job,) = await service.jobs()

    aborted = await service.abort(job.id, actor="bob", note="they fail again")
    stopped_at = clock.now()
    await clock.run_until(running.done)

    assert clock.now() - stopped_at <= 2_000
    assert (JobState.ABORTED, "aborted by bob: they fail again") == (aborted.job.state, aborted.job.error)
    assert JobState.ABORTED == running.result().job.state
    assert 1 == len(await waiting(app))
    assert [None] * 10 == [(await service.letter(id_)).letter.outstanding_job for id_ in ids]


async def test_who_watches_a_job_leaves_it_stopped(app: Redrive, service: Service, clock: FakeClock) -> None:
    await put_letters(app, 4)
    running = await start_slowly(service, rate_per_s=0.5)
    (job,) = await service.jobs()
    watching = asyncio.create_task(Service(app).resume(job.id))
    await clock.run_until(lambda: clock.sleepers == 2)

    await service.abort(job.id, actor="bob")
    await clock.run_until(lambda: running.done() and watching.done())

    assert [JobState.ABORTED] * 2 == [each.result().job.state for each in (running, watching)]
    assert 1 == len(await waiting(app))


async def test_an_aborted_job_goes_on_where_it_stopped(app: Redrive, service: Service, clock: FakeClock) -> None:
    ids = await put_letters(app, 4)
    running = await start_slowly(service, rate_per_s=0.5)
    (job,) = await service.jobs()
    await service.abort(job.id, actor="bob")
    await clock.run_until(running.done)

    resuming = asyncio.create_task(service.resume(job.id))
    await clock.run_until(resuming.done)

    assert (JobState.DONE, 4) == (resuming.result().job.state, resuming.result().job.counts.sent)
    assert [f"m-{id_}" for id_ in ids] == await waiting(app)


async def test_a_letter_closed_before_the_resume_is_not_sent(app: Redrive, service: Service, clock: FakeClock) -> None:
    ids = await put_letters(app, 3)
    running = await start_slowly(service, rate_per_s=0.5)
    (job,) = await service.jobs()
    await service.abort(job.id, actor="bob")
    await clock.run_until(running.done)
    await service.review(Selection(ids=(ids[2],)), ReviewState.CLOSED, actor="bob")

    resuming = asyncio.create_task(service.resume(job.id))
    await clock.run_until(resuming.done)

    assert ["m-dl_0001", "m-dl_0002"] == await waiting(app)
    assert [ids[2]] == [skip.letter_id for skip in resuming.result().skipped]


async def test_a_job_that_is_done_cannot_be_resumed_or_aborted(app: Redrive, service: Service) -> None:
    await put_letters(app, 1)
    view = await service.redrive(ALL, actor="ann")

    with pytest.raises(TransitionError):
        await service.resume(view.job.id)
    with pytest.raises(TransitionError):
        await service.abort(view.job.id, actor="ann")


async def test_unknown_ids_are_named_and_alone_they_are_an_error(app: Redrive, service: Service) -> None:
    (known,) = await put_letters(app, 1)

    view = await service.redrive(Selection(ids=(known, "dl_nobody")), actor="ann")

    assert (1, ("dl_nobody",)) == (view.job.counts.sent, view.missing)
    with pytest.raises(NotFoundError):
        await service.redrive(Selection(ids=("dl_nobody",)), actor="ann")


async def test_a_cancelled_runner_frees_its_job_at_once(app: Redrive, service: Service, clock: FakeClock) -> None:
    await put_letters(app, 3)
    running = await start_slowly(service, rate_per_s=0.5)

    running.cancel()
    await asyncio.wait({running})
    taking_over = asyncio.create_task(Redriver(app.backend, clock, app.events).run(None, owner="w2"))
    await clock.run_until(taking_over.done)

    job = taking_over.result()
    assert job is not None
    assert (JobState.DONE, 3) == (job.state, job.counts.sent)


async def test_a_stored_job_waits_for_a_worker(app: Redrive, service: Service, clock: FakeClock) -> None:
    await put_letters(app, 2)

    view = await service.redrive(ALL, actor="ann", run=False)
    before = await waiting(app)
    ended = await Redriver(app.backend, clock, app.events).run(None, owner="w1")

    assert (JobState.STAGED, []) == (view.job.state, before)
    assert ended is not None
    assert 2 == len(await waiting(app))


async def test_many_chunks_and_batches_lose_nothing(app: Redrive, service: Service) -> None:
    ids = await put_letters(app, 1_234)
    seen: list[int] = []

    view = await service.redrive(ALL, actor="ann", on_progress=lambda job: seen.append(job.counts.sent))

    assert (JobState.DONE, 1_234) == (view.job.state, view.job.counts.sent)
    assert 1_234 == len(ids)
    assert sorted(seen) == seen
    assert len(set(seen)) > 5
