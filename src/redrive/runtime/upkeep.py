"""Upkeep: one loop, small duties, beside the handlers of every worker.

- take over redrive jobs whose runner is gone, or that wait for one;
- send what handlers published inside transactions of workers that are gone since (where broker and store are two);
- go by what people have changed of queues (`controls.py`);
- send letters back by themselves where the app says so (`auto_redrive.py`);
- prune claims whose time is over, and expired letters a person has closed or redriven, in bounded batches.

Every worker does all of it; a duty is one short write or a lease that only one can hold, so the others find nothing
to do. A duty that fails (the store is away) is tried again at its next turn; the pipelines report the outage. What
nobody thought of is told, and stops no other duty.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from redrive.core.policy.auto_redrive import AutoRedrive
from redrive.core.ports import Clock
from redrive.core.units import Millis
from redrive.errors import RedriveError
from redrive.runtime.auto_redrive import AutoRedriver
from redrive.runtime.backend import Backend
from redrive.runtime.consumer import Consumer
from redrive.runtime.controls import LOOK_EVERY_MS, Controls
from redrive.runtime.events import Events
from redrive.runtime.redriver import NO_CONSUMERS, Redriver

JOBS_INTERVAL_MS: Final[Millis] = 2_000
"""Between two looks for a redrive job that nobody runs."""

PRUNE_BATCH: Final = 500
MAX_BATCHES: Final = 100
"""In one round; what is left waits for the next."""

JITTER: Final = 0.2
"""Workers started together do not stay in step."""

Prune = Callable[[int], Awaitable[int]]


class Upkeep:
    """The duties of one worker. `run` goes on until it is cancelled; cancelling loses nothing."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        events: Events,
        *,
        owner: str,
        interval_ms: Millis,
        controls: Controls | None = None,
        auto_redrive: Sequence[AutoRedrive] = (),
        consumers: Mapping[str, Consumer] = NO_CONSUMERS,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._events = events
        self._owner = owner
        self._interval_ms = interval_ms
        self._controls = controls
        self._redriver = Redriver(backend, clock, events, consumers=consumers)
        self._auto = AutoRedriver(backend, clock, events, policies=auto_redrive, consumers=consumers)

    async def run(self) -> None:
        """All loops, side by side: a long redrive does not keep records from being pruned."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat(self.resume_jobs, JOBS_INTERVAL_MS))
            group.create_task(self._repeat(self.send_leftovers, JOBS_INTERVAL_MS))
            group.create_task(self._follow_controls())
            group.create_task(self._repeat(self.prune, self._interval_ms))
            group.create_task(self._repeat(self._auto.look, self._interval_ms))

    async def resume_jobs(self) -> None:
        """Carry out every redrive job nobody holds, one after the other."""
        while await self._redriver.run(None, owner=self._owner) is not None:
            pass

    async def _follow_controls(self) -> None:
        """What was set before this worker started holds from its start."""
        if self._controls is not None:
            await self._controls.begin(self._clock)
            await self._repeat(self._controls.look, LOOK_EVERY_MS)

    async def send_leftovers(self) -> None:
        """Send what the transactions of dead workers left."""
        send = self._backend.send_leftovers
        if send is None:
            return
        count = 0
        for _ in range(MAX_BATCHES):
            sent = await send(PRUNE_BATCH)
            count += sent
            if sent < PRUNE_BATCH:
                break
        if count:
            self._events.emit("upkeep.leftovers_sent", count=count)

    async def prune(self) -> None:
        """One round over claims and letters."""
        await self._prune("claims", lambda limit: self._backend.claims.prune(limit=limit))
        await self._prune("letters", lambda limit: self._backend.letters.prune(now=self._clock.now(), limit=limit))

    async def _prune(self, what: str, prune: Prune) -> None:
        count = 0
        for _ in range(MAX_BATCHES):
            gone = await prune(PRUNE_BATCH)
            count += gone
            if gone < PRUNE_BATCH:
                break
        if count:
            self._events.emit("upkeep.pruned", what=what, count=count)

    async def _repeat(self, duty: Callable[[], Awaitable[None]], interval_ms: Millis) -> None:
        while True:
            await self._clock.sleep(interval_ms * random.uniform(1 - JITTER, 1 + JITTER))  # noqa: S311 - jitter
            try:
                with contextlib.suppress(RedriveError):
                    await duty()
            except Exception as error:  # noqa: BLE001 - the other duties go on, and this one at its next turn
                self._events.emit("upkeep.failed", duty=duty.__name__, error_text=repr(error)[:500])
