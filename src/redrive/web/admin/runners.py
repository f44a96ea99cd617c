"""Runners: what this process carries out beside its requests: redrive jobs, and passes over dead-letter queues.

At most `MAX_RUNNING` at once, and a job at most once. A job that was made is found by whichever runner of this process
asks the store next, oldest first; one runner that waits for a place is enough, for each calls the next. A job that is
to be resumed is named: it waits until this process is done with it, then for a place, and is left alone where it was
taken, stopped or ended since. So two clicks are one, and a click soon after a pause is not lost.

Killed, the process leaves its jobs to any worker's upkeep, or to a resume: they are in the store, with all they sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

from redrive.core.redrive import Job, JobState
from redrive.errors import RedriveError
from redrive.runtime.app import Redrive
from redrive.runtime.redriver import Redriver
from redrive.service import Service, runner_name

MAX_RUNNING: Final = 4
"""Redrive jobs this process carries out at once; what comes on top waits for a worker, or for the next place."""

WAITING: Final = frozenset({JobState.STAGED, JobState.RUNNING})
"""States in which nobody has to say that a job is to go on."""


Run: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Runners:
    """The runners of one process. Each outlives its request."""

    def __init__(self, app: Redrive) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self._app = app
        self._places = asyncio.Semaphore(MAX_RUNNING)
        self._running: dict[str, asyncio.Event] = {}
        """Jobs that this process carries out now, each with what is set once it is done with it."""
        self._asked: set[str] = set()
        """Jobs whose resume waits."""
        self._is_next_waiting = False

    def start(self, operation: str, run: Run) -> None:
        """Do this once there is a place."""
        self._begin(self._in_place(operation, run))

    def run_waiting(self) -> None:
        """Carry out the jobs that wait for a runner, oldest first."""
        if not self._is_next_waiting:
            self._is_next_waiting = True
            self._begin(self._in_place("create_job", self._run_next))

    def resume(self, job: Job) -> None:
        """Go on with this job, as it stands now. It may be running here, or about to: then nothing is to be done."""
        is_running = job.id in self._running and job.state in WAITING
        if job.id not in self._asked and not is_running:
            self._asked.add(job.id)
            self._begin(self._resume(job))

    async def stop(self) -> None:
        """Let go of what runs; each is cut off between two batches, and its job is free for the next runner."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def _begin(self, running: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(running)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _in_place(self, operation: str, run: Run) -> None:
        """An error of the store ends it: the job says there how it stands, and the next runner goes on."""
        try:
            async with self._places:
                await run()
        except RedriveError:
            return
        except Exception as error:  # noqa: BLE001 - told as an event; the next one runs
            self._app.events.emit("api.failed", operation=operation, error_type=type(error).__name__)

    async def _run_next(self) -> None:
        """Carry out the oldest. Not a certain job by its id: that would resume one that a person has aborted meanwhile.

        Once it is taken the next runner begins: it takes the next one at once where there is a place, else later, and
        ends where there is none.
        """
        self._is_next_waiting = False
        app, taken = self._app, set[str]()

        def seen(job: Job) -> None:
            if not taken:
                taken.add(job.id)
                self._running.setdefault(job.id, asyncio.Event())
                self.run_waiting()

        try:
            redriver = Redriver(app.backend, app.clock, app.events, consumers=app.consumers)
            await redriver.run(None, owner=runner_name(), on_progress=seen)
        finally:
            for job_id in taken:
                self._done(job_id)

    def _done(self, job_id: str) -> None:
        if job_id in self._running:
            self._running.pop(job_id).set()

    async def _resume(self, job: Job) -> None:
        try:
            while (running := self._running.get(job.id)) is not None:
                await running.wait()
            await self._in_place("resume_job", lambda: self._go_on(job))
        finally:
            self._asked.discard(job.id)

    async def _go_on(self, job: Job) -> None:
        stored = await self._app.backend.jobs.get(job.id)
        if stored is None or (stored.token, stored.state) != (job.token, job.state) or job.id in self._running:
            return
        self._running[job.id] = asyncio.Event()
        self._asked.discard(job.id)
        try:
            await Service(self._app).resume(job.id)
        finally:
            self._done(job.id)
