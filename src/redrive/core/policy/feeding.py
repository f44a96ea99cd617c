"""Feed: how many messages a short queue gets, from which others take at a speed nobody tells.

What lies in it is first come, first served, so it is to hold as little as keeps those who take from ever finding it
empty: what they take until the next look, and a half more. A look tells how many are left. Where none are, it was
too little, and half as much again goes in; where many are, less.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from redrive.core.units import Millis

LEAST: Final = 2
"""Messages that are kept ready however slowly they go."""
MOST: Final = 2_000
MARGIN: Final = 1.5
GROWTH: Final = 1.5
CYCLE_MS: Final = 6.0
"""About how long a look and what is sent after it take."""
LEAST_WAIT_MS: Final[Millis] = 2
MOST_WAIT_MS: Final[Millis] = 20
QUICK_MS: Final[Millis] = 2 * MOST_WAIT_MS
"""A queue found empty after a longer time says nothing about how fast it was emptied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """`ready`: messages in the queue, as last seen and with what was sent since. `target`: how many are to be there.
    `per_ms`: how many were taken between the last two looks. `at_ms`: the last look.
    """

    ready: int = 0
    target: float = LEAST
    per_ms: float = 0.0
    at_ms: float = 0.0


def room(feed: Feed) -> int:
    """How many more may go in."""
    return max(0, ceil(feed.target) - feed.ready)


def sent(feed: Feed, count: int) -> Feed:
    """After so many more went in."""
    return replace(feed, ready=feed.ready + count)


def seen(feed: Feed, ready: int, now_ms: float) -> Feed:
    """After a look that found so many."""
    taken, passed_ms = max(0, feed.ready - ready), max(1.0, now_ms - feed.at_ms)
    per_ms = taken / passed_ms
    if not ready and taken >= ceil(feed.target) and passed_ms <= QUICK_MS:
        target = feed.target * GROWTH
    else:
        target = (feed.target + MARGIN * per_ms * CYCLE_MS) / 2
    return Feed(ready=ready, target=min(MOST, max(LEAST, target)), per_ms=per_ms, at_ms=now_ms)


def wait_ms(feed: Feed) -> float:
    """When to look again, while there is something to send: when about half of what is ready has gone."""
    if not feed.per_ms:
        return MOST_WAIT_MS
    return min(MOST_WAIT_MS, max(LEAST_WAIT_MS, feed.ready / feed.per_ms / 2))
