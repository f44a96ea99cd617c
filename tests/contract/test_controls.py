"""Controls of queues keep their contract in memory, in a file and in Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redrive.core.policy.control import ControlStore
from redrive.core.ports import Clock
from redrive.stores.memory import MemoryControlStore
from redrive.stores.redis.controls import RedisControlStore
from redrive.stores.sqlite import SqliteControlStore
from redrive.testing.contracts.controls import ControlStoreContract
from tests.contract.test_sqlite import fresh_file
from tests.redis import OnRedis


class TestMemoryControlStore(ControlStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[ControlStore]:
        yield MemoryControlStore()


class TestSqliteControlStore(ControlStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[ControlStore]:
        async with fresh_file(clock) as file:
            yield SqliteControlStore(file)


class TestRedisControlStore(OnRedis, ControlStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[ControlStore]:
        yield RedisControlStore(self.url, clock=clock)
