"""The contract suites: what every adapter must do, as test classes to subclass.

An adapter's test is a class that says how to make one, and inherits the rest:

    class TestMyBroker(BrokerContract):
        @asynccontextmanager
        async def make(self, clock: Clock) -> AsyncIterator[Broker]:
            yield MyBroker(url, clock=clock)

The suites drive a `FakeClock` unless `make_clock` returns a real one; then `pass_time` waits, and `lease_ms` can be
made smaller. What an adapter cannot do is read off its `Features`, and the stated restriction is what gets tested.
They need pytest and pytest-asyncio.
"""

from __future__ import annotations

from redrive.testing.contracts.broker import BrokerContract
from redrive.testing.contracts.claims import ClaimStoreContract
from redrive.testing.contracts.fairness import FairnessContract
from redrive.testing.contracts.forward import ForwardContract
from redrive.testing.contracts.jobs import JobParts, JobStoreContract
from redrive.testing.contracts.ledger import LedgerContract, LedgerParts
from redrive.testing.contracts.letters import LetterStoreContract

__all__ = [
    "BrokerContract",
    "ClaimStoreContract",
    "FairnessContract",
    "ForwardContract",
    "JobParts",
    "JobStoreContract",
    "LedgerContract",
    "LedgerParts",
    "LetterStoreContract",
]
