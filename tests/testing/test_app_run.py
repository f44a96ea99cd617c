"""What users' tests rely on: a real app, in memory, on a clock that jumps."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from redrive import DeadLetter, Exponential, Redrive, Retry
from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import Selection
from redrive.testing import AppRun, FakeClock, in_memory
from redrive.testing.clock import FAKE_EPOCH

HOUR_MS = 3_600_000


class Orders:
    """An app whose handler fails as its messages say."""

    def __init__(self) -> None:
        self.app = Redrive("shop", broker="sqlite:///never-made.db")
        self.seen: list[tuple[Any, int]] = []
        self.is_fixed = False
        retry = Retry(max_attempts=3, backoff=Exponential("1h", factor=2))

        @self.app.consumer("orders", retry=retry, breaker=None)
        async def handle(order: dict[str, Any]) -> None:
            self.seen.append((order["n"], self.app.clock.now() - FAKE_EPOCH))
            if order.get("bad") and not self.is_fixed:
                raise DeadLetter("no such card", code="CARD_REFUSED")
            if order.get("flaky") and not self.is_fixed:
                raise ConnectionError("the bank does not answer")
            await asyncio.sleep(order.get("takes_s", 0))  # sleeps: a handler that takes real time is the case

        @self.app.consumer("mails", rate="1/min")
        def mail(order: dict[str, Any]) -> None:
            self.seen.append((threading.current_thread() is threading.main_thread(), order["n"]))


@pytest.fixture
def orders() -> Orders:
    return Orders()


RunApp = Callable[[Redrive], AbstractAsyncContextManager[AppRun]]


async def test_retries_hours_apart_are_run_at_their_times(
    redrive_app: RunApp, redrive_clock: FakeClock, orders: Orders
) -> None:
    async with redrive_app(orders.app) as run:
        await run.publish("orders", {"n": 1, "flaky": True})
        await run.until_idle()
        (letter,) = await run.letters()

    assert [(1, 0), (1, HOUR_MS), (1, 3 * HOUR_MS)] == orders.seen
    assert ("CONNECTION_FAILED_EXHAUSTED", 3) == (letter.reason.code, letter.attempt_count)
    assert 3 * HOUR_MS == redrive_clock.now() - FAKE_EPOCH


async def test_a_handler_that_takes_real_time_is_waited_for(redrive_app: RunApp, orders: Orders) -> None:
    async with redrive_app(orders.app) as run:
        await run.publish("orders", {"n": 1, "takes_s": 0.05})
        await run.until_idle()

        assert () == await run.letters()
        assert "deliveries.processed" in {event.name for event in run.events}


async def test_thread_handlers_and_rates_run_too(redrive_app: RunApp, orders: Orders) -> None:
    async with redrive_app(orders.app) as run:
        for number in range(3):
            await run.publish("mails", {"n": number})
        await run.until_idle()

    assert [(False, 0), (False, 1), (False, 2)] == orders.seen


async def test_a_letter_is_redriven_once_its_cause_is_fixed(redrive_app: RunApp, orders: Orders) -> None:
    async with redrive_app(orders.app) as run:
        await run.publish("orders", {"n": 1, "bad": True}, idempotency_key="o-1")
        await run.publish("orders", {"n": 2, "bad": True}, idempotency_key="o-2")
        await run.until_idle()
        orders.is_fixed = True
        await run.redrive(Selection(key="o-1"))
        letters = await run.letters(Selection(reason_code="CARD_REFUSED"))

    assert [1, 2, 1] == [number for number, _ in orders.seen]
    assert [ReviewState.CLOSED, ReviewState.PENDING] == [letter.state for letter in letters]


async def test_the_app_gets_its_broker_and_clock_back(orders: Orders) -> None:
    settings, clock = orders.app.settings, orders.app.clock

    async with in_memory(orders.app):
        inside = orders.app.settings.broker

    assert "memory://" == inside
    assert (settings, clock) == (orders.app.settings, orders.app.clock)
    assert not orders.app.is_open


async def test_a_message_that_waits_beyond_the_limit_is_told(redrive_app: RunApp, orders: Orders) -> None:
    async with redrive_app(orders.app) as run:
        await run.publish("orders", {"n": 1}, delay="9d")

        with pytest.raises(TimeoutError, match="1 messages still wait"):
            await run.until_idle(limit_ms=HOUR_MS)

        await run.until_idle()
    assert 1 == len(orders.seen)


def test_the_plugin_loads_nothing_heavy() -> None:
    script = (
        "import sys, pytest; before = set(sys.modules); import redrive.testing.plugin; "
        "print([name for name in set(sys.modules) - before if not name.startswith(('redrive', 'importlib'))])"
    )

    added = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert "[]" == added.strip()
