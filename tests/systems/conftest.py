"""Where a system runs: the embedded file, and a RabbitMQ 3.x and 4.x with an empty virtual host for each test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests import redis as redis_servers
from tests.rabbit import NEW, OLD, Rabbit, server_of
from tests.systems.mail_gateway import Here, gateway, on_redis

EMBEDDED = "embedded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """`environment`: the variables that make an example run here. `rabbit`: None on the embedded broker."""

    name: str
    environment: Mapping[str, str]
    rabbit: Rabbit | None = None

    @property
    def is_embedded(self) -> bool:
        return self.rabbit is None


@pytest.fixture(params=[EMBEDDED, OLD, NEW])
def place(request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    store = f"sqlite:///{tmp_path}/redrive.db"
    if request.param == EMBEDDED:
        yield Place(name=EMBEDDED, environment={"REDRIVE_BROKER": store})
        return
    server = server_of(request.param, tmp_path_factory)
    with server.vhost() as vhost:
        rabbit = Rabbit(server=server, vhost=vhost)
        yield Place(
            name=request.param, environment={"REDRIVE_BROKER": rabbit.url, "REDRIVE_STORE": store}, rabbit=rabbit
        )


@pytest.fixture(params=[EMBEDDED, redis_servers.OLD, redis_servers.NEW])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Here:
    """The mail gateway: on the embedded file, and on a Redis and a Valkey that are empty."""
    if request.param == EMBEDDED:
        return partial(gateway, tmp_path)
    server = redis_servers.empty_server(request.param)
    return partial(gateway, tmp_path, **on_redis(server.url, tmp_path))
