"""The fixtures that give a test a real PostgreSQL: `postgres`, `postgres_proxy` and `postgres_alone`.

One server per process of the run, and a fresh database for each test. What stops, kills or fills the server takes
`postgres_alone`: one that is this test's only, and writes to disk before it answers.

Where there is none: a failure in CI and a skip at home, with the command that gets it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import pytest

from redrive.testing.servers.postgres import PostgresNode, database
from redrive.testing.servers.postgres_install import PostgresInstall, installed_postgres
from redrive.testing.servers.proxy import FaultProxy

EXTERNAL = "REDRIVE_TEST_POSTGRES"

_NODES: list[PostgresNode] = []
"""The server this process has started; it ends with it."""


def server_url() -> str:
    """The run's server."""
    url = os.environ.get(EXTERNAL)
    if url:
        return url
    if not _NODES:
        node = PostgresNode(install(), settings={"fsync": "off", "synchronous_commit": "off"})
        node.start()
        _NODES.append(node)
    return _NODES[0].url


@pytest.fixture
def postgres() -> Iterator[str]:
    """URL of an empty database. Nobody stops this server."""
    with database(server_url()) as url:
        yield url


@pytest.fixture
def postgres_proxy(postgres: str) -> Iterator[tuple[FaultProxy, str]]:
    """A proxy in front of `postgres`, and the URL through it."""
    parts = urlsplit(postgres)
    with FaultProxy(parts.hostname or "127.0.0.1", parts.port or 5432) as proxy:
        login = parts.netloc.rpartition("@")[0]
        yield proxy, urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{proxy.port}"))


@pytest.fixture
def postgres_alone() -> Iterator[PostgresNode]:
    """A server that is this test's alone: stop it, kill it, pause it, fill it."""
    with PostgresNode(install()) as node:
        yield node


def install() -> PostgresInstall:
    """The server to start; fails or skips where there is none."""
    found = installed_postgres()
    if found is not None:
        return found
    missing = "PostgreSQL is not on this machine. Run (as root): python -m redrive.testing.servers"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)
