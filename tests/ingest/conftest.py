"""The gateway over the in-memory broker, with a clock that stands still."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from redrive.core.message import Message
from redrive.ingest import Gateway
from redrive.runtime.app import Redrive
from redrive.runtime.events import Event
from redrive.testing import FakeClock
from tests.ingest.client import SECRET

QUEUE = "courier-events-main"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def app(clock: FakeClock) -> AsyncIterator[Redrive]:
    async with Redrive("ingest", broker="memory://", clock=clock) as app:
        yield app


@pytest.fixture
def happened(app: Redrive) -> list[Event]:
    events: list[Event] = []
    app.events.subscribe(events.append)
    return events


@pytest.fixture
def make(app: Redrive) -> Callable[..., Gateway]:
    def make(**options: Any) -> Gateway:
        return Gateway(app, QUEUE, **{"sources": {"courier-x": [SECRET]}, **options})

    return make


@pytest.fixture
def gateway(make: Callable[..., Gateway]) -> Gateway:
    return make()


@pytest.fixture
def queued(app: Redrive) -> Callable[[], Any]:
    async def queued() -> list[Message]:
        return await app.backend.broker.peek(QUEUE, limit=1_000)

    return queued
