"""One run of one contender on Redis: on a server of its own, as `bench.apart` runs it.

The server keeps an append-only file, written to disk every second; it is not rewritten while a run goes on, which would
take a processor from whomever it hits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.apart import Place, Run, Sides, run
from bench.measure import Contender, scratch
from redrive.testing.servers.redis import RedisNode
from redrive.testing.servers.redis_install import RedisInstall

SETTINGS: Final = {"auto-aof-rewrite-percentage": "0"}

IN_HAND: Final[dict[str, tuple[str, ...]]] = {
    "celery": ("HLEN", "unacked"),
    "dramatiq": ("HLEN", "dramatiq:orders.msgs"),
    "taskiq": ("XPENDING", "orders", "taskiq"),
    "arq": ("ZCARD", "arq:queue"),
    "saq": ("ZCARD", "saq:orders:incomplete"),
}
"""Beside its lists, which must all be empty: where else a contender has what it has not acknowledged."""


@contextmanager
def server(install: RedisInstall) -> Iterator[RedisNode]:
    """An empty one."""
    with RedisNode(install, settings=SETTINGS) as node:
        yield node


def on_a_server(install: RedisInstall, contender: Contender, *, folder: Path, messages: int, sides: Sides) -> Run:
    """Publish and consume `messages`. Raises RuntimeError where one was lost, or handled twice."""
    with server(install) as node, scratch(folder, contender.name) as place:
        where = Place(
            url=node.url, pid=lambda: process_of(node), folder=place, left=lambda: _left(node, contender.name)
        )
        return run(contender, where, messages=messages, sides=sides)


def process_of(node: RedisNode) -> int:
    """The operating system's id of the server."""
    return int(info(node, "server")["process_id"])


def info(node: RedisNode, section: str) -> dict[str, str]:
    """What the server says of itself."""
    lines = node.ask("INFO", section).decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _left(node: RedisNode, name: str) -> dict[str, int]:
    left = {key.decode(): int(node.ask("LLEN", key)) for key in node.ask("KEYS", "*") if _is_list(node, key)}
    if name in IN_HAND:
        answer: Any = node.ask(*IN_HAND[name])
        left[IN_HAND[name][1]] = int(answer[0] if isinstance(answer, list) else answer)
    return {key: count for key, count in left.items() if count}


def _is_list(node: RedisNode, key: bytes) -> bool:
    return bool(node.ask("TYPE", key) == b"list")
