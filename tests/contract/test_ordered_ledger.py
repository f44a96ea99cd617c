"""The stepwise ledger over the in-memory broker and stores keeps the contract of every ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redrive.brokers.memory import MemoryBroker
from redrive.core.ports import Clock
from redrive.runtime.ledger import OrderedLedger
from redrive.stores.memory import MemoryClaimStore, MemoryJobStore, MemoryLetterStore
from redrive.testing.contracts import ForwardContract, LedgerContract, LedgerParts


@asynccontextmanager
async def memory_parts(clock: Clock) -> AsyncIterator[LedgerParts]:
    broker, claims, letters = MemoryBroker(clock), MemoryClaimStore(clock), MemoryLetterStore()
    jobs = MemoryJobStore(letters, clock)
    ledger = OrderedLedger(broker=broker, claims=claims, letters=letters, jobs=jobs, clock=clock)
    await ledger.open()
    yield LedgerParts(ledger=ledger, broker=broker, claims=claims, letters=letters, jobs=jobs)
    await ledger.close()


class TestOrderedLedger(LedgerContract):
    make = staticmethod(memory_parts)


class TestOrderedLedgerForward(ForwardContract):
    make = staticmethod(memory_parts)
