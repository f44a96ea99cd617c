"""Small topologies for the tests of verification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redrive.core.topology.definitions import parse_definitions
from redrive.core.topology.model import Binding, Exchange, Policy, Queue, Topology

DEFINITIONS = Path(__file__).resolve().parent / "definitions"

SAFE = {
    "x-queue-type": "quorum",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
    "x-delivery-limit": -1,
}
QUORUM = {"x-queue-type": "quorum", "x-delivery-limit": -1}
CLASSIC = {"x-queue-type": "classic"}


def definitions(name: str) -> Topology:
    """A file of the folder `definitions`."""
    return parse_definitions((DEFINITIONS / f"{name}.json").read_text("utf-8")).topology


def queue(name: str, to: str | None = None, key: str | None = None, **arguments: Any) -> Queue:
    """`to`: its dead-letter exchange. Arguments without "x-", with underscores for hyphens."""
    told = {f"x-{each.replace('_', '-')}": value for each, value in arguments.items()}
    if to is not None:
        told["x-dead-letter-exchange"] = to
    if key is not None:
        told["x-dead-letter-routing-key"] = key
    return Queue(name=name, arguments=told)


def topology(*things: Exchange | Queue | Binding | Policy, **fields: Any) -> Topology:
    """All of them, sorted into their places."""
    return Topology(
        exchanges=tuple(each for each in things if isinstance(each, Exchange)),
        queues=tuple(each for each in things if isinstance(each, Queue)),
        bindings=tuple(each for each in things if isinstance(each, Binding)),
        policies=tuple(each for each in things if isinstance(each, Policy)),
        **fields,
    )
