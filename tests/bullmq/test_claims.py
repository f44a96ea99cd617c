"""Claims in Redis keep the contract: on Redis 7 and on Valkey 8."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from redrive.core.idempotency import Acquired, InProgress, Verdict
from redrive.core.ports import ClaimStore, Clock
from redrive.errors import BrokerUnavailableError
from redrive.runtime.clock import SystemClock
from redrive.stores.redis.claims import RedisClaimStore
from redrive.testing.contracts.claims import ClaimStoreContract
from tests.conftest import PATIENCE
from tests.redis import OnRedis, Redis


class TestRedisClaimStore(OnRedis, ClaimStoreContract):
    @asynccontextmanager
    async def make(self, clock: Clock) -> AsyncIterator[ClaimStore]:
        store = RedisClaimStore(self.url, clock=clock)
        yield store
        await store.close()


BOTH: Final = (("orders", "k-0"), ("orders", "k-1"))


async def test_a_claim_whose_answer_never_came_holds_up_nobody(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (RedisClaimStore(redis.url, clock=SystemClock()) for _ in range(2))
    await first.open()
    await second.open()
    try:
        (before,) = await second.claim([("orders", "k-0")], lease_ms=3_600_000, owner="dead")
        carry_out = first._run

        async def lose(name: str, *args: Any) -> Any:
            await carry_out(name, *args)
            raise BrokerUnavailableError("The answer was lost.")

        with monkeypatch.context() as patch:
            patch.setattr(first, "_run", lose)
            with pytest.raises(BrokerUnavailableError):
                await first.claim(BOTH, lease_ms=3_600_000, owner="first", gone={"dead"})

        found = await claimed(second)
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while any(isinstance(each, InProgress) for each in found):
                await asyncio.sleep(0.02)  # sleep: another process
                found = await claimed(second)
    finally:
        await first.close()
        await second.close()

    assert isinstance(before, Acquired)
    assert [2, 1] == [each.attempts for each in found if isinstance(each, Acquired)]


async def claimed(store: RedisClaimStore) -> list[Verdict]:
    return await store.claim(BOTH, lease_ms=3_600_000, owner="second")
