"""Operations on redrive jobs: plan, make, follow, stop them."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import replace
from typing import Final, TypeAlias

from redrive.core.json_patch import parse_patch
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.redrive import JOB_TRANSITIONS, Item, ItemState, Job, JobEvent, JobOptions, JobState
from redrive.core.refusals import RefusalCode, added, by_code
from redrive.core.units import Millis
from redrive.errors import NotFoundError, TransitionError
from redrive.runtime.app import Redrive
from redrive.runtime.redriver import OnProgress, Redriver, came_back, tell_job
from redrive.service.operations import SEE_LETTERS, SHOWN, Counted, Operations
from redrive.service.planning import Planning
from redrive.service.values import JobView, Plan, Skip

FOLLOW_MS: Final[Millis] = 200
ABORT_TRIES: Final = 5
COUNT_PAGE: Final = 2_000
MAX_COUNTED: Final = 100_000
"""Skipped letters whose reasons are counted whenever somebody looks at a job."""
UNKNOWN_AFTER_MS: Final[Millis] = 3_600_000
"""After the last change of a job; what has no outcome by then counts as unknown."""


class RedriveOperations(Operations):
    """On redrive jobs."""

    def __init__(self, app: Redrive) -> None:
        super().__init__(app)
        self._redriver = Redriver(app.backend, app.clock, app.events, consumers=app.consumers)
        self._skips_seen: tuple[str, int, _Skips] | None = None

    async def plan(
        self, selection: Selection, options: JobOptions | None = None, *, on_count: Counted | None = None
    ) -> Plan:
        """Exactly what `redrive` would do with these letters now: what it sends where, what it skips and why.
        Raises `NotFoundError` for a queue that is not there.
        """
        await self._refuse_unknown_queue(selection.queue)
        options = JobOptions() if options is None else options
        planning = Planning(self._app, options, now=self._app.clock.now())
        async for page in self._selected_pages(redrivable(selection), limit=options.limit, on_count=on_count):
            await planning.add(page)
        return await planning.done(await self._missing(selection.ids))

    async def redrive(
        self,
        selection: Selection,
        options: JobOptions | None = None,
        *,
        actor: str,
        note: str = "",
        request_key: str | None = None,
        run: bool = True,
        on_progress: OnProgress | None = None,
    ) -> JobView:
        """Send these letters back. The job is stored first; `run` False leaves it to any worker and returns at once.

        The same `request_key` gets the job it made the first time, whatever has become of it; nothing is sent twice.
        Raises `NotFoundError` when ids are given and none is known, or a queue that is not.
        """
        missing = await self._missing(selection.ids)
        if selection.ids and len(missing) == len(set(selection.ids)):
            raise NotFoundError(f'No dead letter has the id "{missing[0]}". Nothing was sent.', hint=SEE_LETTERS)
        await self._refuse_unknown_queue(selection.queue)
        if options is not None and options.edit is not None:
            parse_patch(options.edit)
        now = self._app.clock.now()
        made = Job(
            id=f"rd_{now:012x}{secrets.token_hex(4)}",
            selection=redrivable(selection),
            options=JobOptions() if options is None else options,
            actor=actor,
            note=note,
            request_key=request_key,
            created_at=now,
            updated_at=now,
        )
        job = await self._app.backend.jobs.create(made)
        if job.id == made.id:
            tell_job(self._app.events, job, actor=actor)
        if on_progress is not None:
            on_progress(job)
        ended = await self._follow(job, on_progress) if run and job.state in _RUNNABLE else job
        return replace(await self._job_view(ended), missing=missing)

    async def resume(self, job_id: str, *, on_progress: OnProgress | None = None) -> JobView:
        """Go on with a job that was aborted, failed, or whose runner died. Nothing already sent is sent again."""
        job = await self._job(job_id)
        if JobEvent.START not in JOB_TRANSITIONS[job.state]:
            raise TransitionError(f"Job {job.id} is {job.state}: there is nothing to resume.")
        return await self._job_view(await self._follow(job, on_progress))

    async def abort(self, job_id: str, *, actor: str, note: str = "") -> JobView:
        """Stop a job. What it sent stays sent; the others are free again. Its runner stops within two seconds."""
        return await self._stop(job_id, JobEvent.ABORT, actor=actor, note=note)

    async def pause(self, job_id: str, *, actor: str, note: str = "") -> JobView:
        """Hold a job up until somebody resumes it. It keeps its letters: no other job can send them meanwhile. Its
        runner stops within two seconds.
        """
        return await self._stop(job_id, JobEvent.PAUSE, actor=actor, note=note)

    async def _stop(self, job_id: str, event: JobEvent, *, actor: str, note: str) -> JobView:
        for _ in range(ABORT_TRIES):
            job = await self._job(job_id)
            state = JOB_TRANSITIONS[job.state].get(event)
            if state is None:
                raise TransitionError(f"Job {job.id} is {job.state} already: there is nothing to stop.")
            text = f"{state} by {actor}" + (f": {note}" if note else "")
            ended = replace(job, state=state, error=text, updated_at=self._app.clock.now())
            if await self._app.backend.jobs.save(ended, lease_ms=0):
                stored = await self._job(job_id)
                tell_job(self._app.events, stored, actor=actor)
                return await self._job_view(stored)
        raise TransitionError(f"Job {job_id} passed from runner to runner and could not be stopped. Try again.")

    async def jobs(self, *, limit: int = 50) -> tuple[Job, ...]:
        """Redrive jobs, newest first."""
        return tuple(await self._app.backend.jobs.list(limit=limit))

    async def job(self, job_id: str) -> JobView:
        """One job, with what it skipped and how many of its letters came back. Raises `NotFoundError`."""
        return await self._job_view(await self._job(job_id))

    async def _refuse_unknown_queue(self, queue: str | None) -> None:
        """Known is what this app consumes, what dead letters came from, and what the broker has."""
        if queue is None or queue in {*self._app.consumers, *self._dead_letter_names()}:
            return
        backend = self._app.backend
        if (await backend.letters.stats(Selection(queue=queue), top=1)).total:
            return
        if queue not in {depth.queue for depth in await backend.broker.depths([queue])}:
            raise NotFoundError(
                f'There is no queue "{queue}", and no dead letter of one. Nothing was sent.',
                hint="See: redrive queues list",
            )

    async def _follow(self, job: Job, on_progress: OnProgress | None) -> Job:
        """Run the job, or watch whoever runs it, until it has ended. Whoever only watches takes over from a runner that
        is gone, but never what a person has stopped meanwhile: by its id it would be resumed.
        """
        owner = runner_name()
        ended = await self._redriver.run(job.id, owner=owner, on_progress=on_progress)
        while True:
            if ended is None:
                ended = await self._job(job.id)
            if on_progress is not None:
                on_progress(ended)
            if ended.state not in _RUNNABLE:
                return ended
            await self._app.clock.sleep(FOLLOW_MS)
            ended = await self._job(job.id)
            if ended.state in _RUNNABLE:
                ended = await self._redriver.run(job.id, owner=owner, on_progress=on_progress)

    async def _job(self, job_id: str) -> Job:
        job = await self._app.backend.jobs.get(job_id)
        if job is None:
            raise NotFoundError(f'No redrive job has the id "{job_id}".', hint="See: redrive dlq jobs")
        return job

    async def _job_view(self, job: Job) -> JobView:
        skipped, refusals = await self._skips(job)
        returned = None
        if job.counts.sent:
            returned = await came_back(self._app.backend, job, now=self._app.clock.now())
        outcomes = await self._app.backend.jobs.outcomes(job.id)
        known = outcomes.succeeded + outcomes.failed_again
        is_late = self._app.clock.now() - job.updated_at >= UNKNOWN_AFTER_MS
        return JobView(
            job=job,
            skipped=skipped,
            returned=returned,
            outcomes=outcomes,
            waiting=0 if is_late else outcomes.sent - known,
            unknown=outcomes.sent - known if is_late else 0,
            refusals=refusals,
        )

    async def _skips(self, job: Job) -> _Skips:
        """Of more than `MAX_COUNTED` the rest count as other. Counted again only where more were skipped since: who
        follows a job looks often.
        """
        seen = self._skips_seen
        if seen is None or seen[:2] != (job.id, job.counts.skipped):
            self._skips_seen = seen = job.id, job.counts.skipped, await self._count_skips(job)
        return seen[2]

    async def _count_skips(self, job: Job) -> _Skips:
        items: list[Item] = []
        counted, after = 0, -1
        refusals: dict[str, int] = {}
        while counted < min(job.counts.skipped, MAX_COUNTED):
            page = await self._app.backend.jobs.items(job.id, state=ItemState.SKIPPED, limit=COUNT_PAGE, after=after)
            if not page:
                break
            items += page[: SHOWN - len(items)]
            refusals = added(refusals, by_code(item.why or "" for item in page))
            counted, after = counted + len(page), page[-1].position
        if counted < job.counts.skipped:
            refusals = added(refusals, {str(RefusalCode.OTHER): job.counts.skipped - counted})
        return tuple(Skip(letter_id=item.letter_id, why=item.why or "") for item in items), refusals


_Skips: TypeAlias = tuple[tuple[Skip, ...], dict[str, int]]
"""(the first that were skipped, how many for each code)."""

_RUNNABLE: Final = frozenset({JobState.STAGED, JobState.RUNNING})


def redrivable(selection: Selection) -> Selection:
    """What a redrive of this selection means: letters named by id as they are (a closed one is then skipped with the
    reason), else only those a person still has to decide about.
    """
    return selection if selection.ids or selection.states else replace(selection, states=OPEN_STATES)


def runner_name() -> str:
    """Who holds a job, as a person can find the process: host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"
