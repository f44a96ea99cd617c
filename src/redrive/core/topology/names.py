"""Names a broker takes: 1 to 255 bytes of UTF-8 (bytes, not characters), none of them the broker's own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from redrive.core.topology.model import Topology
from redrive.errors import ConfigurationError

MAX_NAME_BYTES: Final = 255
"""An AMQP short string holds no more; routing keys are such strings, too."""

RESERVED: Final = "amq."

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
"""The broker removes line ends from names by itself: what was declared then has another name than the one asked for."""


def check_names(topology: Topology) -> None:
    """Raises `ConfigurationError` that lists every bad name with its length in bytes, and every name that is wanted
    twice. Call it before anything is declared: half a topology is worse than none.
    """
    wrong = list(dict.fromkeys(_wrong(topology)))
    if wrong:
        raise ConfigurationError(
            f"{len(wrong)} name(s) no broker takes; nothing was declared: {'; '.join(wrong)}.",
            hint=f"A name has 1 to {MAX_NAME_BYTES} bytes, suffixes included, and does not start with {RESERVED!r}.",
        )


def _wrong(topology: Topology) -> Iterator[str]:
    for kind, keys in (
        ("exchange", [(each.vhost, each.name) for each in topology.exchanges]),
        ("queue", [(each.vhost, each.name) for each in topology.queues]),
    ):
        for _, name in keys:
            trouble = _trouble(name)
            if trouble:
                yield f"{kind} {name!r} {trouble}"
        for name in _twice(keys):
            yield f"{kind} {name!r} is wanted twice with different settings"
    for binding in topology.bindings:
        trouble = _length_trouble(binding.routing_key)
        if trouble:
            yield f"routing key {binding.routing_key!r} {trouble}"


def _twice(keys: Iterable[tuple[str, str]]) -> list[str]:
    return [name for (_, name), count in Counter(keys).items() if count > 1]


def _trouble(name: str) -> str:
    if not name.strip():
        return "is empty"
    if name.startswith(RESERVED):
        return f"starts with {RESERVED!r}, which is the broker's"
    if _CONTROL.search(name):
        return "has a control character"
    return _length_trouble(name)


def _length_trouble(text: str) -> str:
    size = name_bytes(text)
    return f"has {size} bytes" if size > MAX_NAME_BYTES else ""


def name_bytes(name: str) -> int:
    """Length on the wire."""
    return len(name.encode("utf-8", "surrogatepass"))
