"""Fixtures of the tests that stand beside Node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.node import MAJORS, Node
from tests.redis import Redis


@pytest.fixture(params=MAJORS)
def node(request: pytest.FixtureRequest, redis: Redis) -> Iterator[Node]:
    """A process with Node's BullMQ 5, and again with 6."""
    with Node(request.param, redis.url) as found:
        yield found
