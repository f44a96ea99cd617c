"""The stores keep their contracts on a real server, over the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redrive.core.audit import RequestStore
from redrive.core.policy.control import ControlStore
from redrive.core.ports import ClaimStore, Clock, LetterStore
from redrive.stores.mongodb.claims import MongoClaimStore
from redrive.stores.mongodb.controls import MongoControlStore
from redrive.stores.mongodb.jobs import MongoJobStore
from redrive.stores.mongodb.letters import MongoLetterStore
from redrive.stores.mongodb.link import Link
from redrive.stores.mongodb.requests import MongoRequestStore
from redrive.testing.contracts import ClaimStoreContract, JobParts, JobStoreContract, LetterStoreContract
from redrive.testing.contracts.controls import ControlStoreContract
from redrive.testing.contracts.groups import GroupParts, GroupStoreContract
from redrive.testing.contracts.requests import RequestStoreContract
from tests.mongodb.server import database_url


class TestMongoClaimStore(ClaimStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[ClaimStore]:
        yield MongoClaimStore(Link(database_url()), clock=clock)


class TestMongoControlStore(ControlStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[ControlStore]:
        yield MongoControlStore(Link(database_url()))


class TestMongoRequestStore(RequestStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[RequestStore]:
        yield MongoRequestStore(Link(database_url()))


class TestMongoLetterStore(LetterStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[LetterStore]:
        yield MongoLetterStore(Link(database_url()), clock=clock)


class TestMongoLetterStoreByIndex(LetterStoreContract):
    """As it asks a server that has indexes."""

    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[LetterStore]:
        yield MongoLetterStore(Link(database_url(), is_scanned=False), clock=clock)


class TestMongoJobStore(JobStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[JobParts]:
        link = Link(database_url())
        letters = MongoLetterStore(link, clock=clock)
        await letters.open()
        yield JobParts(jobs=MongoJobStore(link, letters, clock=clock), letters=letters)
        await letters.close()


class TestMongoGroupStoreByIndex(GroupStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[GroupParts]:
        letters = MongoLetterStore(Link(database_url(), is_scanned=False), clock=clock)
        await letters.open()
        yield GroupParts(groups=letters.groups, letters=letters)
        await letters.close()


class TestMongoGroupStore(GroupStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[GroupParts]:
        letters = MongoLetterStore(Link(database_url()), clock=clock)
        await letters.open()
        yield GroupParts(groups=letters.groups, letters=letters)
        await letters.close()
