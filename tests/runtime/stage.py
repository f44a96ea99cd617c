"""What the tests of the runtime stand on: an app with its worker in this process, and all it told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from redrive import Redrive, Worker
from redrive.core.letters.letter import Letter
from redrive.core.letters.selection import Selection
from redrive.core.redrive import JobOptions
from redrive.runtime.events import Event
from redrive.service import JobView, Service

PATIENCE_S = 60.0
"""Only a failing test ever waits this long."""


class Told:
    """Every event of an app, in order; can be waited for."""

    def __init__(self, app: Redrive) -> None:
        self.events: list[Event] = []
        self._changed = asyncio.Event()
        app.events.subscribe(self._hear)

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    def named(self, name: str) -> list[dict[str, Any]]:
        """The fields of every event of this name."""
        return [dict(event.fields) for event in self.events if event.name == name]

    def count(self, name: str) -> int:
        """How often; processed deliveries are counted one by one."""
        if name == "deliveries.processed":
            return sum(len(fields["attempts"]) for fields in self.named(name))
        return len(self.named(name))

    async def until(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until it was told so often."""
        await self.until_true(lambda: self.count(name) >= count, what=f"{count} x {name}")
        return self.named(name)

    async def until_true(self, condition: Callable[[], bool], *, what: str = "the condition") -> None:
        """Wait until it holds; looked at after every event."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            heard = "\n".join(f"{event.name} {str(dict(event.fields))[:300]}" for event in self.events[-20:])
            raise AssertionError(f"never: {what}; told:\n{heard}") from None

    async def until_holds(self, condition: Callable[[], Awaitable[bool]], *, what: str) -> None:
        """Wait for something only the store knows; looked at after every event, and every few milliseconds."""
        async with asyncio.timeout(PATIENCE_S):
            while not await condition():
                self._changed.clear()
                try:
                    async with asyncio.timeout(0.02):
                        await self._changed.wait()
                except TimeoutError:
                    continue


class AtOnce(ThreadPoolExecutor):
    """Runs what `asyncio.to_thread` hands over before it answers. A FakeClock does not see threads: it would let hours
    go by while one of them waits for the processor.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


def run_threads_at_once() -> None:
    """For tests on a FakeClock: nothing happens beside the event loop."""
    asyncio.get_running_loop().set_default_executor(AtOnce())


@asynccontextmanager
async def working(app: Redrive, **arguments: Any) -> AsyncIterator[Worker]:
    """The app open and its worker running; drained and closed at the end."""
    async with app:
        worker = app.worker(**arguments)
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop()
            await asyncio.wait_for(running, PATIENCE_S)


async def depth(app: Redrive, queue: str) -> int:
    """Messages of a queue, wherever they stand."""
    found = [d for d in await app.backend.broker.depths() if d.queue == queue]
    return sum(d.ready + d.scheduled + d.leased for d in found)


async def quiet(app: Redrive, told: Told, queue: str) -> None:
    """Wait until nothing of this queue is waiting or in hand."""

    async def is_quiet() -> bool:
        return await depth(app, queue) == 0

    await told.until_holds(is_quiet, what=f"{queue} is empty")


async def letters(app: Redrive, queue: str = "orders") -> list[Letter]:
    """All letters of a queue, oldest first."""
    page = await app.backend.letters.find(Selection(queue=queue), limit=500)
    found = [await app.backend.letters.get(summary.id) for summary in page.letters]
    return [each[0] for each in found if each is not None]


async def redrive_all(app: Redrive, queue: str = "orders", **options: Any) -> JobView:
    """Send every open letter of a queue back."""
    return await Service(app).redrive(Selection(queue=queue), JobOptions(**options), actor="test")
