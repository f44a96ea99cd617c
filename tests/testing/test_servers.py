"""Private servers: they answer, keep their data over a kill, and never outlive their owner."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from redrive.testing.servers import __main__ as servers_main
from redrive.testing.servers import proxy
from redrive.testing.servers.processes import ServerFailed, free_ports
from redrive.testing.servers.redis import RedisNode
from tests.conftest import PATIENCE
from tests.rabbit import Rabbit, RabbitAlone
from tests.redis import OLD, install_of

QUEUES = "/api/queues/{vhost}"


def test_every_test_gets_an_empty_virtual_host(rabbit: Rabbit) -> None:
    queues = rabbit.server.api("GET", f"/api/queues/{rabbit.vhost.name}")

    assert [] == queues
    assert rabbit.url.endswith(f"@127.0.0.1:{rabbit.server.amqp_port}/{rabbit.vhost.name}")


def test_a_killed_node_starts_again_with_its_data_on_the_same_ports(rabbit_alone: RabbitAlone) -> None:
    node, queues = rabbit_alone.node, QUEUES.format(vhost=rabbit_alone.vhost.name)
    node.api("PUT", f"{queues}/orders", {"durable": True})
    # RabbitMQ 4.0 writes what it was told of queues within a second, not before it answers: here it is on disk.
    node.restart()
    before = (node.amqp_port, node.management_port)

    node.kill()
    assert not node.is_running
    node.start()

    assert before == (node.amqp_port, node.management_port)
    assert ["orders"] == [queue["name"] for queue in node.api("GET", queues)]


def test_definitions_are_imported_by_the_servers_own_tool(rabbit_alone: RabbitAlone) -> None:
    node, vhost = rabbit_alone.node, rabbit_alone.vhost.name
    queue = {"name": "orders", "vhost": vhost, "durable": True, "auto_delete": False, "arguments": {}}

    node.import_definitions(json.dumps({"queues": [queue]}))

    assert ["orders"] == [queue["name"] for queue in node.api("GET", QUEUES.format(vhost=vhost))]


OWNER = """
import sys
from redrive.testing.servers.processes import GuardedProcess
from pathlib import Path
folder = Path(sys.argv[1])
server = GuardedProcess(["sleep", "600"], log=folder / "log", folder=folder)
print(server.pid, flush=True)
sys.stdin.read()
"""


def test_a_server_ends_and_its_folder_goes_when_its_owner_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    command = [sys.executable, "-c", OWNER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        server = os.pidfd_open(int(owner.stdout.readline()))

        owner.kill()

        ended, _, _ = select.select([server], [], [], PATIENCE.total_seconds())
        assert [server] == ended
    deadline = time.monotonic() + PATIENCE.total_seconds()
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.02)  # sleep: another process removes it, which sets no event of ours
    assert not folder.exists()


def test_free_ports_are_different_and_outside_the_range_clients_use() -> None:
    ports = [*free_ports(20), *free_ports(20)]

    assert 40 == len(set(ports))
    assert max(ports) < 32_768


TAKER = """
import sys
from redrive.testing.servers.processes import free_ports
print(*free_ports(2_000), flush=True)
sys.stdin.read()
"""


def test_processes_that_choose_ports_at_one_time_get_different_ones() -> None:
    command = [sys.executable, "-c", TAKER]
    with ExitStack() as stack:
        takers = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(3)
        ]
        taken = [port for taker in takers if taker.stdout for port in taker.stdout.readline().split()]
        for taker in takers:
            taker.communicate()

    assert 6_000 == len(taken) == len(set(taken))


class Robbed(RedisNode):
    """Between choosing its ports and starting somebody listens on one of them, the first time."""

    def __init__(self, *arguments: Any, which: str, robber: socket.socket, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.chosen: list[int] = []
        self._which = which
        self._robber = robber

    def _take_ports(self) -> None:
        super()._take_ports()
        self.chosen.append(getattr(self, self._which))
        if len(self.chosen) == 1:
            self._robber.bind((self.host, self.chosen[0]))
            self._robber.listen()


@pytest.mark.parametrize("which", ["port", "bus_port"])
def test_a_server_whose_port_was_taken_in_the_meantime_starts_on_another_one(which: str) -> None:
    settings = {"cluster-enabled": "yes", "databases": "1"}
    with socket.socket() as robber, Robbed(install_of(OLD), settings=settings, which=which, robber=robber) as node:
        assert 2 == len(set(node.chosen))
        assert f"@{node.bus_port} myself".encode() in node.ask("CLUSTER", "NODES")
        assert b"PONG" == node.ask("PING")


def test_a_proxy_whose_port_was_taken_in_the_meantime_listens_on_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as robber:
        robber.bind(("127.0.0.1", 0))
        robber.listen()
        taken = robber.getsockname()[1]
        ports = iter([[taken], free_ports(1)])
        monkeypatch.setattr(proxy, "free_ports", lambda _count: next(ports))

        with proxy.FaultProxy("127.0.0.1", taken) as made, socket.create_connection(("127.0.0.1", made.port)):
            assert made.port != taken


def test_a_server_of_somebody_else_on_its_port_is_never_taken_for_its_own(redis_alone: RedisNode) -> None:
    with RedisNode(redis_alone.install) as other:
        other.stop()
        other.port = redis_alone.port

        with pytest.raises(ServerFailed, match="ended while it was starting"):
            other.start()
    assert b"PONG" == redis_alone.ask("PING")


def test_every_server_that_tests_need_is_asked_for() -> None:
    looks = {name for name in vars(servers_main) if name.startswith("_has_")}

    assert looks
    assert looks <= set(servers_main.main.__code__.co_names)
