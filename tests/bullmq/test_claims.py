"""Claims in Redis keep the contract: on Redis 7 and on Valkey 8."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from redrive.core.ports import ClaimStore, Clock
from redrive.core.units import Millis
from redrive.runtime.clock import SystemClock
from redrive.stores.redis.claims import RedisClaimStore
from redrive.testing.contracts.claims import ClaimStoreContract
from tests.redis import Redis


class TestRedisClaimStore(ClaimStoreContract):
    """In real time: leases are the server's."""

    lease_ms: ClassVar[Millis] = 2_500

    @pytest.fixture(autouse=True)
    def server(self, redis: Redis) -> None:
        self.url = redis.url

    def make_clock(self) -> Clock:
        return SystemClock()

    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[ClaimStore]:
        store = RedisClaimStore(self.url, clock=clock)
        yield store
        await store.close()
