"""The fixtures that give a test a real RabbitMQ: `rabbit`, `rabbit_alone` and `rabbit_proxy`.

One node per version serves the whole run, all workers of xdist together; the first test that needs it starts it, and it
ends with the run. Each test gets an empty virtual host of its own. What stops, kills or floods the server takes
`rabbit_alone`: the same on a node that no other test uses at that time.

A version that is not there is a failure in CI and a skip at home, with the command that gets it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from redrive.testing.servers.proxy import FaultProxy
from redrive.testing.servers.rabbitmq import RabbitNode, RabbitServer, Vhost
from redrive.testing.servers.rabbitmq_install import Install, installed

EXTERNAL = "REDRIVE_TEST_RABBITMQ_URL"
OLD, NEW = "rabbitmq-3", "rabbitmq-4"
ALONE = "rabbit_alone"

_STARTED: list[RabbitNode] = []
"""The shared nodes this process has started. Nobody stops them: they end with the run's main process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rabbit:
    """What a test needs to know of its server and of its own virtual host there."""

    server: RabbitServer
    vhost: Vhost

    @property
    def url(self) -> str:
        """`amqp://` URL of an empty virtual host."""
        return self.vhost.url

    @property
    def management_url(self) -> str:
        """`http://` URL of the management API, credentials included."""
        return self.vhost.management_url

    @property
    def version(self) -> str:
        return self.server.version

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitAlone(Rabbit):
    """One with a node that the test may stop, kill and pause."""

    server: RabbitNode

    @property
    def node(self) -> RabbitNode:
        return self.server


@pytest.fixture(params=[OLD, NEW])
def rabbit(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rabbit]:
    """A fresh virtual host on a RabbitMQ 3.x, and again on a 4.x. Nobody stops this server."""
    server = _shared_server(request.param, folder=_folder_of_the_run(tmp_path_factory))
    with server.vhost() as vhost:
        yield Rabbit(server=server, vhost=vhost)


@pytest.fixture
def rabbit_proxy(rabbit: Rabbit) -> Iterator[FaultProxy]:
    """A proxy in front of `rabbit`: `rabbit.vhost.url_by("127.0.0.1", rabbit_proxy.port)` goes through it."""
    with FaultProxy(rabbit.server.host, rabbit.server.amqp_port) as proxy:
        yield proxy


@pytest.fixture(scope="session", params=[OLD, NEW])
def rabbit_node(request: pytest.FixtureRequest) -> Iterator[RabbitNode]:
    """A node for one process of the run; tests use it through `rabbit_alone`."""
    with RabbitNode(install_of(request.param)) as node:
        yield node


@pytest.fixture
def rabbit_alone(rabbit_node: RabbitNode) -> Iterator[RabbitAlone]:
    """A fresh virtual host on a node that is this test's alone: stop it, kill it, pause it. 3.x, and again 4.x."""
    rabbit_node.start()
    with rabbit_node.vhost() as vhost:
        yield RabbitAlone(server=rabbit_node, vhost=vhost)
        # A test may leave it stopped; the virtual host cannot be deleted then.
        rabbit_node.start()


def group_tests_that_need_a_node_alone(items: list[pytest.Item]) -> None:
    """All in one process of the run, one after the other: so one node per version is enough for all of them."""
    for item in items:
        if ALONE in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(ALONE))


def server_of(version: str, factory: pytest.TempPathFactory) -> RabbitServer:
    """The run's node of this version, for fixtures that choose the version themselves. Nobody stops it."""
    return _shared_server(version, folder=_folder_of_the_run(factory))


def _folder_of_the_run(factory: pytest.TempPathFactory) -> Path:
    """The folder that all workers of one run share, or the run's own where there are none."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def _shared_server(version: str, *, folder: Path) -> RabbitServer:
    if os.environ.get(EXTERNAL):
        if version != OLD:
            pytest.skip(f"{EXTERNAL} is set: that server is the only one")
        return RabbitServer.at(os.environ[EXTERNAL])
    with (folder / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = folder / f"{version}.json"
        if not known.exists():
            node = RabbitNode(install_of(version), owner=_main_process())
            node.start()
            _STARTED.append(node)
            where = {"host": node.host, "amqp_port": node.amqp_port, "management_port": node.management_port}
            known.write_text(json.dumps({**where, "user": node.user, "password": node.password}))
        return RabbitServer(**json.loads(known.read_text()))


def _main_process() -> int:
    """The process whose end is the end of the run: the workers of xdist are its children."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


def install_of(version: str) -> Install:
    """Where RabbitMQ `OLD` or `NEW` is. One that is not there skips the test, or, in CI, fails it if it is `OLD`."""
    major = int(version[-1])
    for install in installed():
        if install.major == major:
            return install
    missing = f"RabbitMQ {major}.x is not on this machine. Run (as root): python -m redrive.testing.servers"
    if os.environ.get("CI") == "true" and version == OLD:
        pytest.fail(missing)
    pytest.skip(missing)
