"""Call: one request that has passed every check, as an operation sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from redrive.core.units import UnixMs
from redrive.errors import RedriveError
from redrive.runtime.app import Redrive
from redrive.service import Service
from redrive.web.admin.auth import Principal
from redrive.web.admin.passes import Passes
from redrive.web.admin.problems import refuse
from redrive.web.admin.streams import Streams

MAX_RUNNING: Final = 4
"""Redrive jobs this process carries out at once; what comes on top waits for a worker, or for the next place."""


@dataclass(slots=True)
class Runners:
    """Redrive jobs that this process carries out. Killed, it leaves a job to any worker's upkeep, or to a resume."""

    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_RUNNING))

    def start(self, running: Coroutine[Any, Any, Any]) -> None:
        """Go on with this beside the requests."""
        task = asyncio.create_task(self._run(running))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _run(self, running: Coroutine[Any, Any, Any]) -> None:
        try:
            async with self.places:
                await running
        except RedriveError:
            return  # the job says in the store how it stands; a runner that is gone is followed by the next
        finally:
            running.close()

    async def stop(self) -> None:
        """Let go of what runs; each is cut off between two batches, and its job is free for the next runner."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Who asks for what. `query` and `body` are the structs of the operation's row; `lines`: a body that is read bit by
    bit. `request_key`: of the Idempotency-Key, for what the store keeps. `management`: where a RabbitMQ's management
    API is, None for the usual.
    """

    app: Redrive
    principal: Principal
    path: dict[str, str]
    query: Any
    body: Any
    root: str
    runners: Runners
    streams: Streams
    passes: Passes
    lines: AsyncIterator[bytes]
    request_key: str | None = None
    last_event_id: str | None = None
    management: str | None = None

    @property
    def service(self) -> Service:
        """Every operation there is. Raises `Refused` (503) while the app is not open."""
        if not self.app.is_open:
            raise refuse("starting")
        return Service(self.app)

    @property
    def now(self) -> UnixMs:
        """When this is."""
        return self.app.clock.now()

    @property
    def actor(self) -> str:
        """Who, for audit trails."""
        return self.principal.name
