"""The stores keep their contracts on a real server, over the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redrive.core.policy.control import ControlStore
from redrive.core.ports import ClaimStore, Clock
from redrive.stores.mongodb.claims import MongoClaimStore
from redrive.stores.mongodb.controls import MongoControlStore
from redrive.stores.mongodb.link import Link
from redrive.testing.contracts import ClaimStoreContract
from redrive.testing.contracts.controls import ControlStoreContract
from tests.mongodb.server import database_url


class TestMongoClaimStore(ClaimStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[ClaimStore]:
        yield MongoClaimStore(Link(database_url()), clock=clock)


class TestMongoControlStore(ControlStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[ControlStore]:
        yield MongoControlStore(Link(database_url()))
