"""The in-memory broker and stores keep every contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redrive.brokers.memory import MemoryBroker
from redrive.core.ports import Broker, ClaimStore, Clock, LetterStore
from redrive.stores.memory import MemoryClaimStore, MemoryJobStore, MemoryLetterStore
from redrive.testing.contracts.broker import BrokerContract
from redrive.testing.contracts.claims import ClaimStoreContract
from redrive.testing.contracts.groups import GroupParts, GroupStoreContract
from redrive.testing.contracts.jobs import JobParts, JobStoreContract
from redrive.testing.contracts.letters import LetterStoreContract


class TestMemoryBroker(BrokerContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[Broker]:
        yield MemoryBroker(clock)


class TestMemoryClaimStore(ClaimStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[ClaimStore]:
        yield MemoryClaimStore(clock)


class TestMemoryLetterStore(LetterStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[LetterStore]:
        yield MemoryLetterStore()


class TestMemoryJobStore(JobStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[JobParts]:
        letters = MemoryLetterStore()
        yield JobParts(jobs=MemoryJobStore(letters, clock), letters=letters)


class TestMemoryGroupStore(GroupStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[GroupParts]:
        letters = MemoryLetterStore()
        yield GroupParts(groups=letters.groups, letters=letters)
