"""An app of redrive beside Node: its consumers in this process, what they saw as a list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redrive import Delivery, Redrive, Retry, Settings
from redrive.core.letters.selection import Selection
from redrive.runtime.worker import Worker
from redrive.service import Service
from tests.conftest import PATIENCE

QUEUE = "orders"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One start of the handler."""

    payload: Any
    attempt: int
    id: str
    name: str | None
    at: int
    body: bytes


@dataclass(slots=True)
class Stage:
    """The app, and what its handler saw. `fails`: whether this run is to fail."""

    app: Redrive
    runs: list[Run] = field(default_factory=list)
    fails: Callable[[Run], bool] = lambda _: False
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until(self, is_it: Callable[[list[Run]], bool]) -> list[Run]:
        """What the handler has seen, once that is enough."""
        async with asyncio.timeout(PATIENCE.total_seconds()), self.changed:
            await self.changed.wait_for(lambda: is_it(self.runs))
        return self.runs

    async def event(self, name: str) -> Mapping[str, Any]:
        """The next event of the app with this name."""
        found: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()

        def note(event: Any) -> None:
            if event.name == name and not found.done():
                found.set_result(event.fields)

        self.app.events.subscribe(note)
        return await asyncio.wait_for(found, PATIENCE.total_seconds())

    async def redrive(self) -> None:
        """Send every letter back."""
        await Service(self.app).redrive(Selection(queue=QUEUE), actor="test")

    async def depth(self, queue: str = QUEUE) -> tuple[int, int, int]:
        """Ready, scheduled, leased."""
        for found in await self.app.backend.broker.depths([queue]):
            if found.queue == queue:
                return found.ready, found.scheduled, found.leased
        return 0, 0, 0


@asynccontextmanager
async def stage(
    url: str, folder: Path, *, retry: Retry | None = None, works: bool = True, concurrency: int = 10
) -> AsyncIterator[Stage]:
    """The app, opened; with `works`, its worker running."""
    app = Redrive("shop", settings=Settings(broker=url, store=f"sqlite:///{folder / 'letters.db'}"))
    made = Stage(app)

    @app.consumer(QUEUE, retry=retry, concurrency=concurrency)
    async def handle(payload: Any, delivery: Delivery) -> None:
        run = Run(
            payload=payload,
            attempt=delivery.attempt,
            id=delivery.message.id,
            name=delivery.message.properties.type,
            at=app.clock.now(),
            body=delivery.message.body,
        )
        async with made.changed:
            made.runs.append(run)
            made.changed.notify_all()
        if made.fails(run):
            raise TimeoutError("the other side did not answer")

    async with app:
        if not works:
            yield made
            return
        async with working(app):
            yield made


@asynccontextmanager
async def working(app: Redrive) -> AsyncIterator[Worker]:
    """The app's worker, until the block ends."""
    worker = app.worker()
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await running
