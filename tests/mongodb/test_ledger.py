"""The stepwise ledger keeps its contract over these stores, and a redrive's forwarding too (cases RD-02, RD-03)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redrive.brokers.memory import MemoryBroker
from redrive.core.ports import Clock
from redrive.runtime.ledger import OrderedLedger
from redrive.stores.mongodb.claims import MongoClaimStore
from redrive.stores.mongodb.jobs import MongoJobStore
from redrive.stores.mongodb.letters import MongoLetterStore
from redrive.stores.mongodb.link import Link
from redrive.testing.contracts import ForwardContract, LedgerContract, LedgerParts
from tests.mongodb.server import database_url


@asynccontextmanager
async def parts_on_mongodb(clock: Clock) -> AsyncIterator[LedgerParts]:
    link, broker = Link(database_url()), MemoryBroker(clock)
    claims, letters = MongoClaimStore(link, clock=clock), MongoLetterStore(link, clock=clock)
    jobs = MongoJobStore(link, letters, clock=clock)
    ledger = OrderedLedger(broker=broker, claims=claims, letters=letters, jobs=jobs, clock=clock)
    await ledger.open()
    yield LedgerParts(ledger=ledger, broker=broker, claims=claims, letters=letters, jobs=jobs)
    await ledger.close()


class TestLedgerOverMongo(LedgerContract):
    make = staticmethod(parts_on_mongodb)


class TestForwardOverMongo(ForwardContract):
    make = staticmethod(parts_on_mongodb)
