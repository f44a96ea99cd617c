"""A topology as one broker takes it: its version, its virtual host."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

from redrive.core.topology.model import Queue, Topology

LIMIT: Final = "x-delivery-limit"
UNLIMITED: Final = -1
LIMITED_SINCE: Final = 4
"""Major version from which a quorum queue that says nothing drops a message at its 20th return, and -1 says "never"."""


def for_version(topology: Topology, version: str | None) -> Topology:
    """The same topology as a broker of this version ("3.10.8", "4.1.0-rc.1") takes it: a delivery limit of -1 is left
    out below 4.0, where it is no value and there is no limit anyway. Unknown (None) counts as the newest.
    """
    if version is None or major(version) >= LIMITED_SINCE:
        return topology
    return replace(topology, queues=tuple(_without_switch(queue) for queue in topology.queues))


def _without_switch(queue: Queue) -> Queue:
    if queue.arguments.get(LIMIT) != UNLIMITED:
        return queue
    kept: dict[str, Any] = {name: value for name, value in queue.arguments.items() if name != LIMIT}
    return replace(queue, arguments=kept)


def major(version: str) -> int:
    """First number of a version; one that has none counts as the newest."""
    found = re.match(r"\D{0,10}(\d{1,6})", version)
    return int(found[1]) if found else LIMITED_SINCE


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
