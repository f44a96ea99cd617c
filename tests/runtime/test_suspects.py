"""Messages whose last start never ended run alone, one after the other, on a clock that the test moves (case RC-06)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from redrive import Delivery, Redrive
from redrive.runtime.gate import ALONE_MS, QUIET_WAIT_MS
from redrive.runtime.pipeline import TAKE_WAIT_MS
from redrive.testing.clock import FakeClock
from tests.runtime.stage import run_threads_at_once

LEASE_MS = 300
HOUR_MS = 3_600_000
SOON_MS = 1_000
"""A start that waits for nothing comes sooner than this."""


@dataclass
class Shop:
    """An app in memory, whose handler takes as long as each order says."""

    clock: FakeClock = field(default_factory=FakeClock)
    starts: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.app = Redrive("shop", broker="memory://", clock=self.clock)
        self.began = self.clock.now()

        @self.app.consumer("orders", concurrency=20)
        async def handle(order: dict[str, Any], delivery: Delivery) -> None:
            self.starts[order["n"]] = self.now
            await self.clock.sleep(order["ms"])
            self.ends[order["n"]] = self.now

    @property
    def now(self) -> int:
        return self.clock.now() - self.began

    async def publish(self, **orders: int) -> None:
        await self.app.publish_many("orders", [({"n": n, "ms": ms}, {"message_id": n}) for n, ms in orders.items()])

    async def lose(self, **orders: int) -> None:
        """These were in the hands of a worker that is gone: in `LEASE_MS` their leases end."""
        await self.publish(**orders)
        ledger = self.app.backend.ledger
        for _ in orders:
            await ledger.take("orders", limit=1, lease_ms=LEASE_MS, worker="gone", wait_ms=0, claims=True)

    async def until_started(self, *names: str) -> None:
        await self.clock.run_until(lambda: self.starts.keys() >= set(names), limit_ms=HOUR_MS // 2)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        run_threads_at_once()
        async with self.app:
            await self.lose_and_load()
            worker = self.app.worker()
            running = asyncio.create_task(worker.run())
            yield
            worker.stop()
            await self.clock.run_until(running.done, limit_ms=2 * HOUR_MS)

    async def lose_and_load(self) -> None:
        """Before the worker comes."""


class Busy(Shop):
    """The worker that lives has long work of its own when it gets five short orders of the dead one."""

    async def lose_and_load(self) -> None:
        await self.lose(a=10, b=10, c=10, d=10, e=10)
        await self.publish(own1=HOUR_MS, own2=HOUR_MS)


async def test_short_suspects_follow_one_another_whatever_else_runs_on_in_the_process() -> None:
    shop = Busy()
    async with shop.working():
        await shop.until_started("own1", "own2", *"abcde")

        assert {} == {name: at for name, at in shop.ends.items() if name.startswith("own")}
        first = shop.starts["a"]
        assert LEASE_MS + QUIET_WAIT_MS <= first < LEASE_MS + QUIET_WAIT_MS + TAKE_WAIT_MS + SOON_MS
        assert max(shop.starts.values()) < first + SOON_MS


class Long(Shop):
    """The first of four orders of the dead worker takes an hour again."""

    async def lose_and_load(self) -> None:
        await self.lose(a=HOUR_MS, b=10, c=10, d=10)


async def test_a_long_suspect_is_alone_for_ten_seconds_and_those_behind_it_do_not_wait_for_its_end() -> None:
    shop = Long()
    async with shop.working():
        await shop.until_started(*"abcd")

        second = shop.starts["a"] + ALONE_MS + QUIET_WAIT_MS
        assert {} == {name: at for name, at in shop.ends.items() if name == "a"}
        assert second <= shop.starts["b"] < second + SOON_MS
        assert max(shop.starts.values()) < shop.starts["b"] + SOON_MS


async def test_suspects_run_one_at_a_time() -> None:
    class Bombs(Shop):
        async def lose_and_load(self) -> None:
            await self.lose(a=100, b=100, c=100)
            await self.publish(late=10)

    shop = Bombs()
    async with shop.working():
        await shop.until_started(*"abc")
        await shop.clock.run_until(lambda: "c" in shop.ends, limit_ms=HOUR_MS)

        assert shop.starts["a"] < shop.ends["a"] <= shop.starts["b"] < shop.ends["b"] <= shop.starts["c"]
