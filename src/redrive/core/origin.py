"""Where a message was first published to, however often it has come back since.

A retry through a broker's own dead-lettering or a delay queue arrives through another exchange and under another
routing key. Who knows the first ones, best first: the headers the queue's wiring names; redrive's own, on copies it
made; the broker's `x-death` entry of this queue, which keeps the route of the first death; the delivery itself.
"""

from __future__ import annotations

from typing import Any, Final

from redrive.core.message import OWN_HEADER_PREFIX, Message
from redrive.core.topology.wiring import TierRetry, Wiring

HEADER_EXCHANGE: Final = f"{OWN_HEADER_PREFIX}-exchange"
HEADER_ROUTING_KEY: Final = f"{OWN_HEADER_PREFIX}-routing-key"
"""On copies that go another way than the message came: where it came from first."""

MAX_DEATHS: Final = 100
"""Entries of `x-death` that are looked at."""


def origin_of(message: Message, *, queue: str, wiring: Wiring | None = None) -> tuple[str | None, str | None]:
    """(exchange, routing key) as first published; None where nothing tells. "" is the default exchange."""
    headers = message.headers
    retry = None if wiring is None else wiring.retry
    names: list[tuple[str | None, str | None]] = [(HEADER_EXCHANGE, HEADER_ROUTING_KEY)]
    if isinstance(retry, TierRetry):
        names.insert(0, (retry.exchange_header, retry.routing_key_header))
    for exchange_header, key_header in names:
        key = _text(headers.get(key_header)) if key_header else None
        if key is not None:
            return _text(headers.get(exchange_header)) if exchange_header else None, key
    return by_death(headers.get("x-death"), queue) or (message.properties.exchange, message.properties.routing_key)


def by_death(deaths: Any, queue: str) -> tuple[str, str] | None:
    """(exchange, routing key) of the first death in this queue, as `x-death` tells; None where it does not."""
    if not isinstance(deaths, list | tuple):
        return None
    for entry in deaths[:MAX_DEATHS]:
        if isinstance(entry, dict) and _text(entry.get("queue")) == queue:
            keys = entry.get("routing-keys")
            exchange = _text(entry.get("exchange"))
            key = _text(keys[0]) if isinstance(keys, list | tuple) and keys else None
            if exchange is not None and key is not None:
                return exchange, key
    return None


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None
