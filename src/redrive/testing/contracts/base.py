"""What the contract suites share: the clock they drive and how time passes."""

from __future__ import annotations

from typing import ClassVar

import pytest

from redrive.core.ports import Clock
from redrive.core.units import Millis
from redrive.testing.clock import FakeClock


class Contract:
    """Base of the suites. Override `make_clock` and the two durations where the adapter lives in real time."""

    pytestmark: ClassVar = [pytest.mark.asyncio]

    lease_ms: ClassVar[Millis] = 10_000
    """Leases the suite takes; the suite waits as long for one to end."""

    arrival_ms: ClassVar[Millis] = 0
    """How long a published message may take until it can be received."""

    def make_clock(self) -> Clock:
        """The clock the adapter is made with."""
        return FakeClock()

    @pytest.fixture
    def clock(self) -> Clock:
        return self.make_clock()

    async def pass_time(self, clock: Clock, ms: Millis) -> None:
        """Let `ms` pass: moved on a fake clock, waited on a real one."""
        if isinstance(clock, FakeClock):
            await clock.advance(ms)
        else:
            await clock.sleep(ms)
