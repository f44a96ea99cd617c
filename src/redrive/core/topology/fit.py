"""A topology as one broker takes it: its version, its virtual host."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from redrive.core.topology.model import Queue, QueueType, Topology

LIMIT: Final = "x-delivery-limit"
UNLIMITED: Final = -1
NEVER_REACHED: Final = 1_000_000_000
"""The delivery limit of a quorum queue that is to have none: only with one do messages that were pushed and handed back
unstarted come before those behind them; without, they go to the end (measured on 3.10.8 and 4.0.5).
"""
LIMITED_SINCE: Final = 4
"""Major version from which a quorum queue that says nothing gives a message up at its 20th return."""


def for_version(topology: Topology, version: str | None) -> Topology:
    """The same topology as a broker of this version ("3.10.8", "4.1.0-rc.1") is to be told.

    Redrive counts attempts itself, so a quorum queue that says nothing about a delivery limit has none: from 4.0 on
    that must be said (-1), before that it must not, for there -1 means that a message is gone at its first return
    (measured on 3.10.8). A limit that is said stays. None (unknown): nothing is said.
    """
    if version is None or major(version) < LIMITED_SINCE:
        return topology
    return replace(topology, queues=tuple(map(_unlimited, topology.queues)))


def _unlimited(queue: Queue) -> Queue:
    if queue.arguments.get("x-queue-type") != QueueType.QUORUM or LIMIT in queue.arguments:
        return queue
    return replace(queue, arguments={**queue.arguments, LIMIT: UNLIMITED})


def major(version: str) -> int:
    """First number of a version; 0 where it has none."""
    found = re.match(r"\D{0,10}(\d{1,6})", version)
    return int(found[1]) if found else 0


def in_vhost(topology: Topology, vhost: str) -> Topology:
    """Everything of it in this virtual host."""
    return replace(
        topology,
        exchanges=tuple(replace(each, vhost=vhost) for each in topology.exchanges),
        queues=tuple(replace(each, vhost=vhost) for each in topology.queues),
        bindings=tuple(replace(each, vhost=vhost) for each in topology.bindings),
        policies=tuple(replace(each, vhost=vhost) for each in topology.policies),
        operator_policies=tuple(replace(each, vhost=vhost) for each in topology.operator_policies),
    )
