"""Run an app in memory, on a clock that jumps: what a user's own tests need to see retries and dead letters at once.

    async with in_memory(app) as run:
        await run.publish("orders.created", {"id": 7})
        await run.until_idle()
        assert [letter.reason.code for letter in await run.letters()] == ["VALIDATION_FAILED"]

The app is the real one, with its consumers, policies and worker; only its broker and its clock are replaced, and put
back at the end. Backoffs of hours take milliseconds: while nothing runs, the clock jumps to the next due time. While
a handler runs, time stands still, so a handler that waits on a real clock is waited for.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Self

from redrive.brokers.memory import MemoryBroker
from redrive.core.letters.letter import Letter
from redrive.core.letters.selection import Selection
from redrive.core.ports import Depth, Published
from redrive.core.units import Millis, UnixMs
from redrive.testing.clock import FakeClock

if TYPE_CHECKING:
    from redrive.runtime.app import Redrive
    from redrive.runtime.events import Event

LETTERS_SHOWN: Final = 10_000
"""Most letters `letters` returns."""

POLL_S: Final = 0.001
"""How often the worker is looked at while a handler runs."""

PATIENCE_S: Final = 10.0
"""How long a handler, or a message nobody takes, is waited for in real time."""

UNTAKEN_LOOKS: Final = 20
"""A message ready for so many looks and not taken is held back by time (a rate, a breaker): the clock moves on."""

LIMIT_MS: Final[Millis] = 366 * 86_400_000
"""How far `until_idle` moves the clock at most."""


class AppRun:
    """An app running in memory. `clock` may be moved by hand; `events` is what happened so far, oldest first."""

    def __init__(self, app: Redrive, clock: FakeClock) -> None:
        self.app = app
        self.clock = clock
        self.events: list[Event] = []
        self._worker = app.worker()
        self._task: asyncio.Task[None] | None = None

    async def publish(self, queue: str, payload: Any, **arguments: Any) -> Published:
        """As `Redrive.publish`."""
        return await self.app.publish(queue, payload, **arguments)

    async def until_idle(self, *, limit_ms: Millis = LIMIT_MS) -> None:
        """Work until no consumer's queue holds a message, retries and all.

        Raises what the worker raised, and TimeoutError where a handler does not come back (10 s of real time) or
        messages still wait after `limit_ms`.
        """
        await self._drive(None, limit_ms=limit_ms)

    async def letters(self, selection: Selection | None = None) -> tuple[Letter, ...]:
        """The selected dead letters (None: all), whole, oldest first."""
        store = self.app.backend.letters
        page = await store.find(Selection() if selection is None else selection, limit=LETTERS_SHOWN)
        found = [await store.get(summary.id) for summary in page.letters]
        return tuple(kept[0] for kept in found if kept is not None)

    async def redrive(self, selection: Selection | None = None, **options: Any) -> None:
        """Send the selected open letters (None: all) back, and work until idle. Options as in `JobOptions`."""
        from redrive.core.redrive import JobOptions  # noqa: PLC0415 - most tests redrive nothing
        from redrive.service import Service  # noqa: PLC0415

        chosen = Selection() if selection is None else selection
        job = asyncio.create_task(Service(self.app).redrive(chosen, JobOptions(**options), actor="test"))
        # It may wait for its turn or its rate, and does so on the clock.
        await self._drive(job, limit_ms=LIMIT_MS)
        await job
        await self.until_idle()

    async def _drive(self, task: asyncio.Task[Any] | None, *, limit_ms: Millis) -> None:
        """Let the worker work and the clock jump until the task is done (None: until nothing waits)."""
        end = self.clock.now() + limit_ms
        looks, polls, before = 0, 0, (0, 0, 0)
        while True:
            self._check_worker()
            await self.clock.settle()
            in_hand, ready, scheduled = now = await self._waiting()
            if task.done() if task is not None else not in_hand + ready + scheduled:
                return
            if self.clock.now() > end:
                raise TimeoutError(f"{ready + scheduled} messages still wait after {limit_ms} ms")
            looks, before = looks + 1 if now == before else 0, now
            if not in_hand and (not ready or looks > UNTAKEN_LOOKS):
                await self._jump(None if ready or task is not None else end + 1)
                polls = 0
                continue
            polls += 1
            if polls * POLL_S > PATIENCE_S:
                raise TimeoutError(f"{in_hand} handlers have not come back, {ready} messages are not taken")
            await asyncio.sleep(POLL_S)

    async def _jump(self, leap_end: UnixMs | None) -> None:
        """Go to when something happens next: the next sleep ending; or, with `leap_end`, past all sleeps to the next
        message falling due, at most so far.
        """
        broker = self.app.backend.broker
        due_at = broker.next_event_at() if isinstance(broker, MemoryBroker) else None
        if leap_end is not None and due_at is not None:
            await self.clock.leap_to(min(due_at, leap_end))
        elif not await self.clock.advance_to_next():
            await asyncio.sleep(POLL_S)

    async def _waiting(self) -> tuple[int, int, int]:
        depths: list[Depth] = [
            found for found in await self.app.backend.broker.depths() if found.queue in self.app.consumers
        ]
        return (
            sum(found.leased for found in depths),
            sum(found.ready for found in depths),
            sum(found.scheduled for found in depths),
        )

    def _check_worker(self) -> None:
        if self._task is not None and self._task.done():
            self._task.result()
            raise RuntimeError("the worker has stopped")

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._worker.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the worker at once; what it has in hand is handed back. Its waits are on the clock, so that moves."""
        if self._task is not None:
            self._worker.stop(at_once=True)
            await self.clock.run_until(self._task.done)
            await self._task


@asynccontextmanager
async def in_memory(app: Redrive, *, clock: FakeClock | None = None) -> AsyncIterator[AppRun]:
    """The app, open and working, on a broker in memory and a fake clock (None: a new one)."""
    fake = FakeClock() if clock is None else clock
    settings, real = app.settings, app.clock
    app.settings, app.clock = dataclasses.replace(settings, broker="memory://"), fake
    try:
        async with app, AppRun(app, fake) as run:
            app.events.subscribe(run.events.append)
            yield run
    finally:
        app.settings, app.clock = settings, real
