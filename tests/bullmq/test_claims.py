"""Claims in Redis keep the contract: on Redis 7 and on Valkey 8."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redrive.core.ports import ClaimStore, Clock
from redrive.stores.redis.claims import RedisClaimStore
from redrive.testing.contracts.claims import ClaimStoreContract
from tests.redis import OnRedis


class TestRedisClaimStore(OnRedis, ClaimStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[ClaimStore]:
        store = RedisClaimStore(self.url, clock=clock)
        yield store
        await store.close()
