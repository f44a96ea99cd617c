"""What a RabbitMQ campaign stands on: a node, a proxy in front of it, workers, a sender, and the books."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pika

from campaign.journal import CONFIRMED
from campaign.kills import open_letters
from campaign.rabbit.send import SENT
from campaign.rabbit.shapes import SHAPES, Shape
from campaign.stage import Process, Stage
from redrive.testing.servers.proxy import FaultProxy
from redrive.testing.servers.rabbitmq import RabbitNode, Vhost
from redrive.testing.servers.rabbitmq_install import Install, installed

WORKERS: Final = 2
APP: Final = "campaign.rabbit.app:app"
HEARTBEAT_S: Final = 5
"""Short: a connection that the proxy has half killed must be noticed within the campaign."""

STRAGGLERS_S: Final = 240.0
"""A quorum queue hands a message over again 180 s after the hand-over got lost."""


@dataclass(slots=True)
class Ground:
    """One campaign's node, proxy and processes. Made by `ground()`."""

    stage: Stage
    shape: Shape
    node: RabbitNode
    vhost: Vhost
    proxy: FaultProxy
    workers: list[Process]
    sender: Process | None = None
    _sends: tuple[int, float] = (0, 0.0)

    # ------------------------------------------------------------------------------------------- processes

    def start_worker(self, number: int) -> None:
        """Start the worker of this number (again)."""
        process = self.stage.redrive(f"worker-{number}", "work", APP)
        if number < len(self.workers):
            self.workers[number] = process
        else:
            self.workers.append(process)

    def start_workers(self) -> None:
        """All of them."""
        for number in range(WORKERS):
            self.start_worker(number)

    def until(self, what: str, holds: Callable[[], bool], *, seconds: float) -> None:
        """As `Stage.until`; meanwhile what ended for want of a broker is started again, as a service manager does."""

        def holds_now() -> bool:
            self._revive()
            return holds()

        self.stage.until(what, holds_now, seconds=seconds)

    def _revive(self) -> None:
        """A process that cannot reach its broker at its start says so and ends with an error."""
        for number, worker in enumerate(self.workers):
            if not worker.is_alive:
                self.start_worker(number)
        if self.sender is not None and not self.sender.is_alive and self.sender.popen.returncode:
            self.start_sender(*self._sends)

    def await_worker(self, number: int, *, seconds: float = 120) -> None:
        """Wait until it works."""
        self.until(f"worker-{number} works", lambda: _works(self.workers[number]), seconds=seconds)

    def kill_worker(self, number: int) -> None:
        """`kill -9` of a working worker, and another one in its place."""
        self.await_worker(number)
        self.stage.pause(0.05, 0.5)
        self.stage.kill(self.workers[number])
        self.start_worker(number)

    def stop_workers(self) -> None:
        """SIGTERM, as for a deploy; waits until they are gone."""
        for worker in self.workers:
            worker.popen.send_signal(signal.SIGTERM)
        for worker in self.workers:
            try:
                worker.popen.wait(60)
            except subprocess.TimeoutExpired:
                self.stage.check(False, f"{worker.role} did not stop within 60 s of SIGTERM")  # noqa: FBT003

    def start_sender(self, count: int, seconds: float) -> None:
        """Start the sender (again)."""
        self._sends = (count, seconds)
        self.sender = self.stage.python("sender", "campaign.rabbit.send", str(count), f"{seconds:.1f}")

    # ------------------------------------------------------------------------------------------- books

    @property
    def confirmed(self) -> set[str]:
        """Messages the broker has confirmed to the sender."""
        return set(self.stage.journal.of(CONFIRMED, SENT))

    def expected(self) -> set[str]:
        """The effects that all confirmed messages must have, one per queue that gets the message."""
        return {f"{queue} {name}" for name in self.confirmed for queue in self.shape.route(number_of(name)).queues}

    def missing(self) -> set[str]:
        """Effects that have not happened yet."""
        return self.expected() - set(self.stage.effects())

    def open_letters(self) -> int:
        """Dead letters nobody has closed."""
        return self.stage.ask(open_letters)

    def waiting(self) -> Counter[str]:
        """Messages that lie ready in queues of the broker, by queue."""
        with connection(self.vhost) as channel:
            names = [queue["name"] for queue in self.node.api("GET", f"/api/queues/{self.vhost.name}?columns=name")]
            depths = {name: _ready(channel, name) for name in names if not name.startswith("redrive.worker.")}
        return Counter({name: depth for name, depth in depths.items() if depth})


def _works(worker: Process) -> bool:
    return "worker.started" in worker.log.read_text("utf-8", errors="replace")


def number_of(name: str) -> int:
    """The number in a message's name."""
    return int(name.rpartition("-")[2])


@contextmanager
def ground(
    stage: Stage,
    shape: str,
    *,
    safe: bool = False,
    defaults: bool = False,
    through_proxy: bool = True,
    version: str = "",
) -> Iterator[Ground]:
    """A node with an empty virtual host, and a proxy through which all of the campaign's processes go, if any do.

    `version`: of RabbitMQ, where this machine has it and `CAMPAIGN_RABBITMQ` says nothing.
    """
    with (
        RabbitNode(chosen(version)) as node,
        node.vhost() as vhost,
        FaultProxy(node.host, node.amqp_port) as proxy,
    ):
        stage.say(f"{node.install}, {shape}{', safe form' if safe else ''}")
        port = proxy.port if through_proxy else node.amqp_port
        stage.environment |= {
            "REDRIVE_BROKER": f"{vhost.url_by(node.host, port)}?heartbeat={HEARTBEAT_S}",
            "REDRIVE_STORE": f"sqlite:///{stage.file}",
            "CAMPAIGN_SHAPE": shape,
            "CAMPAIGN_SAFE": "1" if safe else "",
            "CAMPAIGN_DEFAULTS": "1" if defaults else "",
        }
        yield Ground(stage=stage, shape=SHAPES[shape], node=node, vhost=vhost, proxy=proxy, workers=[])


def chosen(version: str) -> Install:
    """The RabbitMQ to use: what `CAMPAIGN_RABBITMQ` says, else `version` if it is here, else the oldest one here."""
    wanted = os.environ.get("CAMPAIGN_RABBITMQ")
    found = installed()
    for install in found:
        if install.version.startswith(version if wanted is None else wanted):
            return install
    if wanted is not None or not found:
        raise RuntimeError(f"RabbitMQ {wanted or ''} is not on this machine. Run: make servers")
    return found[0]


@contextmanager
def connection(vhost: Vhost) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    """A channel straight to the node, past the proxy."""
    with pika.BlockingConnection(pika.URLParameters(vhost.url)) as opened:
        yield opened.channel()


def _ready(channel: pika.adapters.blocking_connection.BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)
