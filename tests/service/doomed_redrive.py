"""A process that redrives and kills itself at one moment: python -m tests.service.doomed_redrive MOMENT BROKER STORE.

It prints a line once there is a job. The moments are in `DOOM`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from redrive import AutoRedrive, Redrive
from redrive.core.letters.selection import Selection
from redrive.core.ports import Clock
from redrive.core.redrive import Job, JobOptions
from redrive.runtime import canary, redriver
from redrive.runtime.auto_redrive import AutoRedriver
from redrive.service import Service
from redrive.service import redriving as stopping

QUEUE = "orders"
LEASE_MS = 1_000
"""Of the runner that dies, so that the next one need not wait long."""
CANARY = 20
RATE_PER_S = 20.0
WATCH_MS = 60_000
BATCHES_BEFORE = 1
POLICY = AutoRedrive(queue=QUEUE, after="1s", canary=5, rate=None)


def open_app(broker: str, store: str) -> Redrive:
    """The app of these tests, without a consumer."""
    return Redrive("shop", broker, settings={"store": store, "log_level": "error"} if store else {"log_level": "error"})


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DoomedClock:
    """A clock of somebody who never gets up again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    async def sleep(self, _ms: float) -> None:
        die()


def die_while_it_watches() -> None:
    """All of the canary is sent, and has been looked at once."""
    real = redriver._Run._watch

    async def watch(run: redriver._Run, job: Job, watched: canary.Canary) -> None:
        run._clock = DoomedClock(run._clock)  # type: ignore[assignment]
        await real(run, job, watched)

    redriver._Run._watch = watch  # type: ignore[method-assign]


def die_after_a_batch() -> None:
    """A batch of the canary is sent, and that it went is not written yet."""
    real, left = canary.Canary.went, iter(range(BATCHES_BEFORE))

    async def went(watched: canary.Canary, items: Any) -> str:
        if next(left, None) is None:
            die()
        return await real(watched, items)

    canary.Canary.went = went  # type: ignore[method-assign]


async def send(app: Redrive, options: JobOptions) -> None:
    redriver.LEASE_MS = LEASE_MS  # type: ignore[misc]
    seen: list[str] = []

    def tell(job: Job) -> None:
        if job.counts.sent and not seen:
            seen.append(job.id)
            print(job.id, flush=True)  # noqa: T201 - how a child speaks to the test

    await Service(app).redrive(Selection(queue=QUEUE), options, actor="ann", on_progress=tell)


async def send_with_canary(app: Redrive, doom: Callable[[], None]) -> None:
    doom()
    await send(app, JobOptions(canary=CANARY, canary_watch_ms=WATCH_MS, rate_per_s=RATE_PER_S))


async def send_slowly(app: Redrive) -> None:
    """Nothing kills it but the test."""
    await send(app, JobOptions(rate_per_s=RATE_PER_S))


async def pause(app: Redrive) -> None:
    """The pause is stored, and nobody has been told."""
    stopping.tell_job = die
    (job,) = await app.backend.jobs.list()
    await Service(app).pause(job.id, actor="bob")


async def look(app: Redrive, *, is_stored: bool) -> None:
    """The letters are chosen; the job is stored, or it is not."""
    real = app.backend.jobs.create

    async def create(job: Job) -> Job:
        if is_stored:
            await real(job)
        die()
        return job

    app.backend.jobs.create = create  # type: ignore[method-assign]
    await AutoRedriver(app.backend, app.clock, app.events, policies=[POLICY]).look()


DOOM: dict[str, Callable[[Redrive], Awaitable[None]]] = {
    "canary: while it watches": lambda app: send_with_canary(app, die_while_it_watches),
    "canary: after a batch": lambda app: send_with_canary(app, die_after_a_batch),
    "send slowly": send_slowly,
    "pause": pause,
    "policy: before the job is stored": lambda app: look(app, is_stored=False),
    "policy: after the job is stored": lambda app: look(app, is_stored=True),
}


async def main(moment: str, broker: str, store: str) -> None:
    async with open_app(broker, store) as app:
        await DOOM[moment](app)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
