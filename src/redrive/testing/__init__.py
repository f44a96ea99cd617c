"""For tests of applications and of adapters: a clock to move, a broker in memory, faults to inject, contracts to keep.

`redrive.testing.contracts` holds the suites every adapter passes; `redrive.testing.plugin` the pytest fixtures.
"""

from redrive.brokers.memory import MemoryBroker
from redrive.stores.memory import MemoryClaimStore, MemoryJobStore, MemoryLetterStore
from redrive.testing.clock import FakeClock
from redrive.testing.faults import (
    Faults,
    FaultyBroker,
    FaultyClaimStore,
    FaultyJobStore,
    FaultyLetterStore,
    Killed,
)

__all__ = [
    "FakeClock",
    "Faults",
    "FaultyBroker",
    "FaultyClaimStore",
    "FaultyJobStore",
    "FaultyLetterStore",
    "Killed",
    "MemoryBroker",
    "MemoryClaimStore",
    "MemoryJobStore",
    "MemoryLetterStore",
]
