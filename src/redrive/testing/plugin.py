"""The pytest plugin: fixtures for applications built on redrive. Imports nothing heavy until a fixture is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from redrive.testing.clock import FakeClock


@pytest.fixture
def redrive_clock() -> FakeClock:
    """A clock that moves only when the test says so."""
    from redrive.testing.clock import FakeClock  # noqa: PLC0415 - loaded by every pytest run, so kept light

    return FakeClock()
