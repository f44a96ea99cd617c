"""Fixtures of the tests that look at BullMQ's queues in Redis from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from redrive.brokers.bullmq.broker import BullBroker
from redrive.runtime.clock import SystemClock
from tests.redis import Redis


@pytest.fixture
def new_broker(redis: Redis) -> Callable[..., BullBroker]:
    """A broker of this server, not yet opened; options go into its URL."""

    def make(url: str = redis.url, **options: str) -> BullBroker:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return BullBroker(f"{url}?{query}" if query else url, clock=SystemClock())

    return make


@pytest_asyncio.fixture
async def open_broker(new_broker: Callable[..., BullBroker]) -> AsyncIterator[Callable[..., object]]:
    """Opens brokers; all are closed at the end."""
    async with AsyncExitStack() as stack:

        async def opened(url: str | None = None, **options: str) -> BullBroker:
            broker = new_broker(**({} if url is None else {"url": url}), **options)
            await broker.open()
            stack.push_async_callback(broker.close)
            return broker

        yield opened


@pytest_asyncio.fixture
async def broker(new_broker: Callable[..., BullBroker]) -> AsyncIterator[BullBroker]:
    """A broker, opened."""
    made = new_broker()
    await made.open()
    yield made
    await made.close()
