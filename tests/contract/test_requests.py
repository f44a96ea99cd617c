"""What was written over the API is kept as its contract says, in memory and in a file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redrive.core.audit import RequestStore
from redrive.core.ports import Clock
from redrive.stores.memory import MemoryRequestStore
from redrive.stores.sqlite import SqliteRequestStore
from redrive.testing.contracts.requests import RequestStoreContract
from tests.contract.test_sqlite import fresh_file


class TestMemoryRequestStore(RequestStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[RequestStore]:
        yield MemoryRequestStore()


class TestSqliteRequestStore(RequestStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[RequestStore]:
        async with fresh_file(clock) as file:
            yield SqliteRequestStore(file)
