"""For tests of applications and of adapters: a clock to move, a broker in memory, faults to inject, contracts to keep.

`redrive.testing.contracts` holds the suites every adapter passes; `redrive.testing.plugin` the pytest fixtures.
"""

from redrive.brokers.memory import MemoryBroker
from redrive.stores.memory import MemoryClaimStore, MemoryJobStore, MemoryLetterStore
from redrive.testing.clock import FakeClock

__all__ = ["FakeClock", "MemoryBroker", "MemoryClaimStore", "MemoryJobStore", "MemoryLetterStore"]
