"""SystemClock: the host's wall and monotonic time. Tests hand in `redrive.testing.FakeClock` instead."""

from __future__ import annotations

import asyncio
import time

from redrive.core.units import UnixMs


class SystemClock:
    """Wall time for due times and leases, monotonic time for durations; both in milliseconds."""

    def now(self) -> UnixMs:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic_ns() / 1_000_000

    async def sleep(self, delay_ms: float) -> None:
        await asyncio.sleep(delay_ms / 1_000)
