"""One run of one contender on RabbitMQ: on a fresh virtual host, as `bench.apart` runs it."""

from __future__ import annotations

import time
from pathlib import Path

from bench.apart import Place, Run, Sides, run
from bench.measure import Contender, scratch
from redrive.testing.servers.rabbitmq import RabbitNode


def on_a_vhost(node: RabbitNode, contender: Contender, *, place: Path, messages: int) -> Run:
    """Publish and consume `messages`. Raises RuntimeError where one was lost, or handled twice."""
    with node.vhost() as vhost, scratch(place, contender.name) as folder:
        where = Place(url=vhost.url, pid=lambda: broker_pid(node), folder=folder, left=lambda: _left(node, vhost.name))
        return run(contender, where, messages=messages, sides=Sides())


def _left(node: RabbitNode, vhost: str) -> dict[str, int]:
    """Messages by queue; the broker tells its numbers every few seconds. Control queues of Celery's are its own."""
    queues = node.api("GET", f"/api/queues/{vhost}?disable_stats=false")
    return {
        queue["name"]: queue.get("messages", 0)
        for queue in queues
        if queue.get("messages", 0) and queue.get("durable") and not queue.get("exclusive")
    }


def broker_pid(node: RabbitNode) -> int:
    """The operating system's id of the Erlang machine. The node tells it some seconds after its start."""
    deadline = time.monotonic() + 60
    while "os_pid" not in (found := node.api("GET", "/api/nodes")[0]):
        if time.monotonic() > deadline:
            raise RuntimeError("the broker does not tell its process id")
        time.sleep(0.1)
    return int(found["os_pid"])
