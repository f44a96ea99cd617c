"""A fresh copy of an example under an environment, and what its tests wait for."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import ModuleType
from typing import Any

from redrive import Event, Redrive
from redrive.core.letters.letter import Letter
from redrive.core.letters.selection import Selection
from redrive.core.redrive import JobOptions
from redrive.service import Service

PREFIXES = (
    *("REDRIVE_", "BUS_", "LABELS_", "FREEFLOW_", "PIPELINE_"),
    *("MAIL_", "SMTP_", "SES_", "AWS_", "OUTBOX_", "DLQ_", "LIMITER_", "MAX_", "JITTER_", "BASE_DELAY_", "DEFAULT_TTL"),
)
PATIENCE_S = 60.0
"""Only a failing test ever waits this long."""


@contextmanager
def example(name: str, **environment: str) -> Iterator[ModuleType]:
    """`examples.<name>`, imported anew with exactly these of its variables set."""
    full = f"examples.{name}"
    test_run = "REDRIVE_TEST_"
    kept = {
        key: os.environ.pop(key)
        for key in list(os.environ)
        if key.startswith(PREFIXES) and not key.startswith(test_run)
    }
    os.environ.update(environment)
    _forget(full)
    try:
        yield importlib.import_module(full)
    finally:
        _forget(full)
        for key in environment:
            os.environ.pop(key, None)
        os.environ.update(kept)


def _forget(full: str) -> None:
    for found in [found for found in sys.modules if found == full or found.startswith(f"{full}.")]:
        del sys.modules[found]


class Running:
    """An app with its worker: what happened, and its letters."""

    def __init__(self, app: Redrive) -> None:
        self.app = app
        self.events: list[Event] = []
        self._changed = asyncio.Event()
        app.events.subscribe(self._hear)

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    def named(self, name: str, **fields: Any) -> list[dict[str, Any]]:
        """The events of this name with these fields."""
        found = [dict(event.fields) for event in self.events if event.name == name]
        return [each for each in found if fields.items() <= each.items()]

    def processed(self, queue: str) -> int:
        """Deliveries of a queue whose handler succeeded."""
        return sum(len(each["attempts"]) for each in self.named("deliveries.processed", queue=queue))

    async def until(self, condition: Callable[[], Any], *, patience_s: float = PATIENCE_S) -> None:
        """Until it is true; looked at after every event."""
        async with asyncio.timeout(patience_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def letters(self, **selection: Any) -> list[Letter]:
        """Whole letters, oldest first."""
        store = self.app.backend.letters
        page = await store.find(Selection(**selection), limit=1_000)
        found = [await store.get(summary.id) for summary in page.letters]
        return [each[0] for each in found if each is not None]

    async def redrive(self, queue: str, **options: Any) -> Any:
        """As `redrive dlq redrive QUEUE`: how many were sent."""
        view = await Service(self.app).redrive(Selection(queue=queue), JobOptions(**options), actor="tester")
        return view.job.counts.sent


@asynccontextmanager
async def running(app: Redrive, *queues: str) -> AsyncIterator[Running]:
    """Open the app and run a worker for these queues (none: all) as long as the block runs."""
    async with app:
        run = Running(app)
        worker = app.worker(queues or None)
        task = asyncio.create_task(worker.run())
        try:
            await run.until(lambda: run.named("worker.started") or task.done())
            yield run
        finally:
            worker.stop()
            await task


async def until(condition: Callable[[], Awaitable[Any]], *, patience_s: float = PATIENCE_S) -> Any:
    """What `condition` finds, as soon as it finds it."""
    async with asyncio.timeout(patience_s):
        while not (found := await condition()):
            await asyncio.sleep(0.02)  # sleep: until it is looked at again
    return found
