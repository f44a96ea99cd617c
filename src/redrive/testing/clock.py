"""FakeClock: time that moves only when a test says so.

Everything in redrive that waits for a due time or a lease waits through `Clock.sleep`, so a test that holds a
FakeClock decides what happens when. Sleepers wake one by one in the order of their due times (first asked, first
woken among equals), and the loop comes to rest between two of them: a run repeats exactly.

Weak spot: a task that waits for a thread or a socket is at rest as far as the event loop can tell. Await its
result, or use `run_until`, which also waits in real time.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Final

from redrive.core.units import Millis, UnixMs

FAKE_EPOCH: Final[UnixMs] = 1_700_000_000_000
"""Where a FakeClock starts: 2023-11-14T22:13:20Z."""

MAX_TURNS: Final = 10_000
"""Turns of the event loop `settle` gives at most before it goes on."""

TURNS_WHERE_UNSEEN: Final = 200
"""Turns `settle` gives on an event loop whose ready queue cannot be seen."""

RUN_LIMIT_MS: Final[Millis] = 366 * 86_400_000
"""How far `run_until_idle` moves at most: a year, so that an endless loop of sleeps ends in an error."""

REAL_WAIT_S: Final = 0.001
"""How long `run_until` waits in real time when nothing sleeps and the condition does not hold yet."""

REAL_LIMIT_S: Final = 10.0
"""How long `run_until` waits in real time, in all, for threads and sockets."""


class FakeClock:
    """A `Clock` for tests. `now` and `monotonic_ms` may be read from any thread; the rest belongs to one loop.

    >>> clock = FakeClock()
    >>> clock.now()
    1700000000000
    """

    def __init__(self, now: UnixMs = FAKE_EPOCH) -> None:
        self._started_at = now
        self._now = now
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> UnixMs:
        """The instant, in whole milliseconds since 1970."""
        return self._now

    def monotonic_ms(self) -> float:
        """Milliseconds since this clock was made."""
        return float(self._now - self._started_at)

    async def sleep(self, delay_ms: float) -> None:
        """Return once the clock has been moved by `delay_ms`, never earlier. Zero and less give the loop a turn."""
        if delay_ms <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + delay_ms, next(self._order), woken))
        await woken

    @property
    def sleepers(self) -> int:
        """How many are asleep now."""
        self._drop_cancelled()
        return sum(not woken.done() for _, _, woken in self._sleepers)

    async def advance(self, ms: Millis) -> None:
        """Move forward by `ms`, waking every sleeper due by then in order, each at its own due time."""
        if ms < 0:
            raise ValueError(f"a clock moves forward only, got {ms} ms")
        await self.advance_to(self._now + ms)

    async def advance_to(self, instant: UnixMs) -> None:
        """Move forward to `instant`; nothing but a turn of the loop where it is past."""
        await self.settle()
        while (due := self._next_due()) is not None and due <= instant:
            await self._wake_next()
        self._now = max(self._now, instant)
        await self.settle()

    async def leap_to(self, instant: UnixMs) -> None:
        """Be at `instant` at once: whoever was due on the way wakes late, all at the same time. A week of short
        sleeps costs nothing.
        """
        await self.settle()
        self._now = max(self._now, instant)
        while (due := self._next_due()) is not None and due <= self._now:
            heapq.heappop(self._sleepers)[2].set_result(None)
        await self.settle()

    async def advance_to_next(self) -> bool:
        """Jump to the next due sleeper and wake it; False where nobody sleeps."""
        await self.settle()
        if self._next_due() is None:
            return False
        await self._wake_next()
        return True

    async def run_until_idle(self, *, limit_ms: Millis = RUN_LIMIT_MS) -> None:
        """Jump from due time to due time until nobody sleeps. Raises TimeoutError past `limit_ms` of fake time."""
        end = self._now + limit_ms
        while await self.advance_to_next():
            if self._now > end:
                raise TimeoutError(f"something still sleeps after {limit_ms} ms of fake time")

    async def run_until(self, condition: Callable[[], bool], *, limit_ms: Millis = RUN_LIMIT_MS) -> None:
        """Jump from due time to due time until `condition` holds. Where nobody sleeps it waits in real time for
        threads and sockets, 10 s in all. Raises TimeoutError past either limit.
        """
        end, real_s = self._now + limit_ms, 0.0
        while not condition():
            if self._now > end or real_s > REAL_LIMIT_S:
                raise TimeoutError(f"the condition does not hold {self._now - end + limit_ms} ms later")
            if not await self.advance_to_next():
                real_s += REAL_WAIT_S
                await asyncio.sleep(REAL_WAIT_S)

    async def settle(self) -> None:
        """Let the loop run until nothing is ready: tasks have gone as far as they can at this instant."""
        ready = getattr(asyncio.get_running_loop(), "_ready", None)
        for _ in range(TURNS_WHERE_UNSEEN if ready is None else MAX_TURNS):
            await asyncio.sleep(0)
            if ready is not None and not ready:
                return

    async def _wake_next(self) -> None:
        due, _, woken = heapq.heappop(self._sleepers)
        # Rounded up: an instant is a whole number of milliseconds, and nobody wakes early.
        self._now = max(self._now, -int(-due // 1))
        if not woken.done():
            woken.set_result(None)
        await self.settle()

    def _next_due(self) -> float | None:
        self._drop_cancelled()
        return self._sleepers[0][0] if self._sleepers else None

    def _drop_cancelled(self) -> None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
