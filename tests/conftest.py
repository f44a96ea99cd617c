"""What every test relies on: the Hypothesis profiles, and that `make test` tests the wheel, not the sources."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import redrive
from tests.postgres_server import postgres, postgres_alone, postgres_proxy
from tests.rabbit import group_tests_that_need_a_node_alone, rabbit, rabbit_alone, rabbit_node, rabbit_proxy
from tests.redis import redis, redis_alone, redis_proxy

__all__ = [
    "postgres", "postgres_alone", "postgres_proxy", "rabbit", "rabbit_alone", "rabbit_node", "rabbit_proxy", "redis",
    "redis_alone", "redis_proxy",
]  # fmt: skip

ROOT = Path(__file__).resolve().parent.parent

# Deadlines measure the machine, not the rule: two busy cores would fail them. `ci` repeats the same examples every
# time, so that a red run can be run again; `campaign` looks for new ones.
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
settings.register_profile("dev", max_examples=50, **_COMMON)
settings.register_profile("ci", max_examples=100, derandomize=True, **_COMMON)
settings.register_profile("campaign", max_examples=10_000, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

PATIENCE = timedelta(seconds=60)
"""How long a test waits for an event that must come. Only a failing test ever waits this long."""


def pytest_sessionstart() -> None:
    """Under `make test` refuse to run against the source tree: what users get is the wheel.

    A shell without job control starts what runs in its background with SIGINT ignored, and every process started from
    there inherits it: Ctrl-C in a test would then reach nobody.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get("REDRIVE_TEST_WHEEL") and Path(redrive.__file__).is_relative_to(ROOT / "src"):
        pytest.exit(f"redrive was imported from {redrive.__file__}, not from the installed wheel", returncode=4)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    group_tests_that_need_a_node_alone(items)


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root, where `examples`, `bench` and `campaign` are importable from."""
    return ROOT
