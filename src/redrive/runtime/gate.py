"""Gate: lets a suspect run alone in its process.

A suspect is a message whose last start never ended: it may be what killed that worker. It runs with nothing else
started beside it, so that if it kills this worker too it takes nobody's attempt with it. Both waits are bounded: a
suspect does not wait for ever for its neighbours to end, and does not keep them waiting for ever.

A second suspect in hand while the gate is held would lose an attempt for nothing; pipelines hand it back instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from redrive.core.ports import Clock
from redrive.core.units import Millis

QUIET_WAIT_MS: Final[Millis] = 2_000
"""How long a suspect waits until what runs in its process has ended; then it starts all the same. With the seven
seconds in which a fleet finds its dead, what they had in hand runs again within ten.
"""

ALONE_MS: Final[Millis] = 10_000
"""How long a suspect is alone; what has not killed the process by then gets neighbours again."""


class Quietable(Protocol):
    """A pipeline as the gate sees it."""

    def is_quiet(self, *, besides: int) -> bool:
        """Whether nothing is taken, running or being committed, `besides` so many deliveries."""
        ...

    def schedule_pump(self) -> None:
        """Look again whether something can be taken."""
        ...


class Gate:
    """One per worker. `is_open` is asked before every take."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pipelines: list[Quietable] = []
        self._holder: Quietable | None = None
        self._changed = asyncio.Event()
        self._is_ending = False

    def add(self, pipeline: Quietable) -> None:
        """This pipeline starts handlers in this process."""
        self._pipelines.append(pipeline)

    @property
    def is_open(self) -> bool:
        """Whether anything may be taken."""
        return self._holder is None

    def hold(self, pipeline: Quietable) -> bool:
        """Close the gate for this pipeline's suspect; False: another suspect has it."""
        if self._holder is not None:
            return False
        self._holder = pipeline
        return True

    def release(self) -> None:
        """The suspect has ended, or was alone long enough."""
        self._holder = None
        for pipeline in self._pipelines:
            pipeline.schedule_pump()

    def let_go(self) -> None:
        """The worker stops: a suspect waits no longer, and is handed back."""
        self._is_ending = True
        self._changed.set()

    def notify(self) -> None:
        """Something has ended."""
        if self._holder is not None:
            self._changed.set()

    async def quiet(self) -> None:
        """Wait until only the suspect is in hand, or `QUIET_WAIT_MS` are over."""
        await self._until(QUIET_WAIT_MS, lambda: self._is_ending or self._is_quiet())

    async def ended(self, is_over: Callable[[], bool]) -> None:
        """Wait until the suspect has ended (`is_over`), whoever runs on beside it, or `ALONE_MS` are over."""
        await self._until(ALONE_MS, is_over)

    async def _until(self, limit_ms: Millis, is_it: Callable[[], bool]) -> None:
        over = asyncio.ensure_future(self._clock.sleep(limit_ms))
        try:
            while not (over.done() or is_it()):
                self._changed.clear()
                change = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait({over, change}, return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
        finally:
            over.cancel()

    def _is_quiet(self) -> bool:
        return all(p.is_quiet(besides=int(p is self._holder)) for p in self._pipelines)
