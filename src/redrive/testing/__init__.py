"""For tests of applications and of adapters: a clock to move, an app in memory, faults to inject, contracts to keep.

`redrive.testing.contracts` holds the suites every adapter passes; `redrive.testing.plugin` the pytest fixtures. A
name is loaded when it is first used: pytest loads the plugin, and with it this package, in every run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from redrive.brokers.memory import MemoryBroker
    from redrive.stores.memory import MemoryClaimStore, MemoryJobStore, MemoryLetterStore
    from redrive.testing.app_run import AppRun, in_memory
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
    "AppRun",
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
    "in_memory",
]

_WHERE: Final = {
    "AppRun": "redrive.testing.app_run",
    "FakeClock": "redrive.testing.clock",
    "Faults": "redrive.testing.faults",
    "FaultyBroker": "redrive.testing.faults",
    "FaultyClaimStore": "redrive.testing.faults",
    "FaultyJobStore": "redrive.testing.faults",
    "FaultyLetterStore": "redrive.testing.faults",
    "Killed": "redrive.testing.faults",
    "MemoryBroker": "redrive.brokers.memory",
    "MemoryClaimStore": "redrive.stores.memory",
    "MemoryJobStore": "redrive.stores.memory",
    "MemoryLetterStore": "redrive.stores.memory",
    "in_memory": "redrive.testing.app_run",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
