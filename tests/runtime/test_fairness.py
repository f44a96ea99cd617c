"""Turns between tenants, from the decorator to the handler, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from redrive import ConfigurationError, Delivery, Fair, Fixed, Redrive, Retry, UnsupportedError
from redrive.core.ports import Features
from redrive.testing.clock import FakeClock
from tests.runtime.stage import run_threads_at_once

RUN_MS = 10
WORKERS = 4


@dataclass
class Shop:
    """An app in memory whose consumer runs 10 ms for each message, four of them at once."""

    fair_by: Fair | None
    clock: FakeClock = field(default_factory=FakeClock)
    starts: list[tuple[str, int]] = field(default_factory=list)
    ends: list[tuple[str, int]] = field(default_factory=list)
    failing: str = ""

    def __post_init__(self) -> None:
        self.app = Redrive("shop", broker="memory://", clock=self.clock)
        self.began = self.clock.now()

        @self.app.consumer(
            "orders", fair_by=self.fair_by, concurrency=WORKERS, breaker=None, retry=Retry(20, Fixed("5s"))
        )
        async def handle(_order: dict[str, Any], delivery: Delivery) -> None:
            tenant = delivery.tenant or "-"
            self.starts.append((tenant, self.now))
            await self.clock.sleep(RUN_MS)
            if tenant == self.failing:
                raise ConnectionError("away")
            self.ends.append((tenant, self.now))

    @property
    def now(self) -> int:
        return self.clock.now() - self.began

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        run_threads_at_once()
        async with self.app:
            worker = self.app.worker()
            running = asyncio.create_task(worker.run())
            yield
            worker.stop()
            await self.clock.run_until(running.done, limit_ms=600_000)

    async def publish(self, tenant: str | None, count: int) -> None:
        await self.app.publish_many("orders", [{"n": n} for n in range(count)], tenant=tenant)

    async def until(self, at: int) -> None:
        await self.clock.advance(at - self.now)

    async def until_done(self, count: int) -> None:
        await self.clock.run_until(lambda: len(self.ends) == count, limit_ms=60_000)

    def of(self, tenant: str, seen: list[tuple[str, int]]) -> list[int]:
        return [at for name, at in seen if name == tenant]


async def flood(fair_by: Fair | None) -> Shop:
    shop = Shop(fair_by)
    async with shop.working():
        await shop.publish("A", 1_000)
        await shop.until(100)
        await shop.publish("B", 1)
        await shop.until(1_000)
        await shop.publish("C", 10)
        await shop.until_done(1_011)
    return shop


async def test_one_tenant_floods_and_the_others_hardly_wait() -> None:
    """Case FA-01."""
    shop = await flood(Fair())

    (begun,) = shop.of("B", shop.starts)
    assert begun <= 100 + 50 + RUN_MS
    assert max(shop.of("C", shop.ends)) <= 1_000 + 200
    between = [name for name, at in shop.starts if 100 < at <= begun]
    assert between.count("A") <= 2 * WORKERS


async def test_turns_leave_no_worker_idle() -> None:
    """Case FA-01."""
    fair, plain = await flood(Fair()), await flood(None)

    assert max(at for _, at in fair.ends) <= 1.05 * max(at for _, at in plain.ends)


async def test_odd_tenants_are_all_served_and_no_tenant_is_one() -> None:
    """Case FA-02."""
    odd = ["", "  ", "42", "Acme", "acme", "A", "x" * 2_000, "a/b:c*"]
    shop = Shop(Fair())
    async with shop.app:
        await shop.publish(None, 300)
        for tenant in odd:
            await shop.publish(tenant, 1)
        async with shop.working():
            await shop.until_done(300 + len(odd))

    first = [name for name, _ in shop.starts[:12]]
    assert set(odd[2:]) <= set(first)


async def test_a_limited_and_a_failing_tenant_hold_up_nobody() -> None:
    """Case FA-05."""
    shop = Shop(Fair(rate={"A": "1 per 10 s"}), failing="D")
    async with shop.working():
        await shop.publish("A", 20)
        await shop.publish("D", 40)
        await shop.publish("B", 100)
        await shop.until(15_000)
        starts, ends = list(shop.starts), list(shop.ends)

    assert max(shop.of("B", ends)) <= 1_000
    assert 100 == len(shop.of("B", ends))
    assert 2 == len(shop.of("A", starts))
    # While both had something waiting, the one that fails had no more than its share.
    both = [name for name, _ in starts[:60] if name in ("B", "D")]
    assert both.count("D") <= both.count("B") + 1
    assert 3 * 40 == len(shop.of("D", starts))


async def test_a_tenants_concurrency_leaves_the_other_slots_to_others() -> None:
    shop = Shop(Fair(concurrency={"A": 1}))
    async with shop.working():
        await shop.publish("A", 50)
        await shop.publish("B", 60)
        await shop.until_done(110)

    at_once = Counter(at for name, at in shop.starts if name == "A")
    assert 1 == max(at_once.values())
    assert max(shop.of("B", shop.ends)) <= 60 / (WORKERS - 1) * RUN_MS * 1.2 + 50


@pytest.mark.parametrize("given", ["tenants", 3])
def test_a_wrong_fair_by_names_the_consumer(given: Any) -> None:
    app = Redrive("shop", broker="memory://")

    with pytest.raises(ConfigurationError, match='consumer "orders": fair_by'):
        app.consumer("orders", fair_by=given)(lambda _order: None)


async def test_a_broker_that_takes_no_turns_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Redrive("shop", broker="memory://")

    @app.consumer("orders", fair_by="tenant")
    async def handle(order: dict[str, Any]) -> None: ...

    unfair = Features(
        name="other", durable=False, leases=True, priorities=True, exact_delays=True, counts_starts=True, atomic=False,
        transactions=False, max_body_bytes=1_000,
    )  # fmt: skip
    monkeypatch.setattr("redrive.runtime.backend.Backend.features", property(lambda _self: unfair))

    with pytest.raises(UnsupportedError, match='"orders" takes no turns'):
        await app.worker().run()


async def test_a_broker_whose_messages_say_their_tenant_reads_no_field() -> None:
    app = Redrive("shop", broker="memory://")

    @app.consumer("orders", fair_by=Fair(tenant_field="companyId"))
    async def handle(order: dict[str, Any]) -> None: ...

    with pytest.raises(UnsupportedError, match=r'"orders" has fair\.tenant_field'):
        await app.worker().run()
