"""The pytest plugin: fixtures for tests of applications. Imports nothing of redrive until a fixture is used.

async def test_a_card_that_is_refused_is_dead_lettered(redrive_app):
    async with redrive_app(app) as run:
        await run.publish("orders.created", {"id": 7, "card": "refused"})
        await run.until_idle()
        (letter,) = await run.letters()
        assert letter.reason.code == "VALIDATION_FAILED"
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from redrive.runtime.app import Redrive
    from redrive.testing.app_run import AppRun
    from redrive.testing.clock import FakeClock


@pytest.fixture
def redrive_clock() -> FakeClock:
    """A clock that moves only when the test says so."""
    from redrive.testing.clock import FakeClock  # noqa: PLC0415 - loaded by every pytest run, so kept light

    return FakeClock()


@pytest.fixture
def redrive_app(redrive_clock: FakeClock) -> Callable[[Redrive], AbstractAsyncContextManager[AppRun]]:
    """The app of a test, working, on a broker in memory and on `redrive_clock`: see the module's example."""
    from redrive.testing.app_run import in_memory  # noqa: PLC0415

    return lambda app: in_memory(app, clock=redrive_clock)
