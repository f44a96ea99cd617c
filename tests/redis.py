"""The fixtures that give a test a real Redis: `redis`, `redis_alone` and `redis_proxy`.

One server per version and process of the run; each test finds it empty. What stops, kills or floods the server takes
`redis_alone`: one that is this test's only.

A version that is not there is a failure in CI and a skip at home, with the command that gets it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from redrive.core.ports import Clock
from redrive.core.units import Millis
from redrive.runtime.clock import SystemClock
from redrive.testing.servers.proxy import FaultProxy
from redrive.testing.servers.redis import RedisNode, ask
from redrive.testing.servers.redis_install import RedisInstall, installed_redis

EXTERNAL = "REDRIVE_TEST_REDIS"
OLD, NEW = "redis-7", "valkey-8"

_NODES: dict[str, RedisNode] = {}
"""Servers this process has started; they end with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redis:
    """What a test needs to know of its server."""

    host: str
    port: int
    url: str

    def ask(self, *command: str | bytes | float) -> Any:
        """One command, as `redis-cli` would send it."""
        return ask(self.host, self.port, *command)

    def url_by(self, proxy: FaultProxy) -> str:
        """The URL through a proxy."""
        return f"redis://127.0.0.1:{proxy.port}/0"


@pytest.fixture(params=[OLD, NEW])
def redis(request: pytest.FixtureRequest) -> Redis:
    """An empty Redis 7, and again a Valkey 8. Nobody stops this server."""
    return empty_server(request.param)


class OnRedis:
    """Stands before a contract suite among a test class's bases: in real time, for leases are the server's."""

    lease_ms: ClassVar[Millis] = 2_500

    @pytest.fixture(autouse=True)
    def server(self, redis: Redis) -> None:
        self.url = redis.url

    def make_clock(self) -> Clock:
        return SystemClock()


@pytest.fixture
def redis_proxy(redis: Redis) -> Iterator[FaultProxy]:
    """A proxy in front of `redis`: `redis.url_by(redis_proxy)` goes through it."""
    with FaultProxy(redis.host, redis.port) as proxy:
        yield proxy


@pytest.fixture(params=[OLD, NEW])
def redis_alone(request: pytest.FixtureRequest) -> Iterator[RedisNode]:
    """A server that is this test's alone, writing to disk before it answers: stop it, kill it, pause it, fill it."""
    with RedisNode(install_of(request.param), settings={"appendfsync": "always"}) as node:
        yield node


def empty_server(version: str) -> Redis:
    """The run's server of this version, emptied."""
    found = _external(version) or _shared(version)
    found.ask("FLUSHALL")
    return found


def _external(version: str) -> Redis | None:
    url = os.environ.get(EXTERNAL)
    if not url:
        return None
    if version != OLD:
        pytest.skip(f"{EXTERNAL} is set: that server is the only one")
    parts = urlsplit(url)
    return Redis(host=parts.hostname or "127.0.0.1", port=parts.port or 6379, url=url)


def _shared(version: str) -> Redis:
    if version not in _NODES:
        node = RedisNode(install_of(version))
        node.start()
        _NODES[version] = node
    node = _NODES[version]
    return Redis(host=node.host, port=node.port, url=node.url)


def install_of(version: str) -> RedisInstall:
    """The server of this version; fails or skips where it is not there."""
    major = int(version[-1])
    for install in installed_redis():
        if (install.major >= major) if version == NEW else (install.major <= major):
            return install
    missing = f"{version} is not on this machine. Run (as root): python -m redrive.testing.servers"
    if os.environ.get("CI") == "true" and version == OLD:
        pytest.fail(missing)
    pytest.skip(missing)
