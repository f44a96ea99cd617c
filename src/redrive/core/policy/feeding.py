"""Feed: how many messages a short queue gets, from which others take at a speed nobody tells.

What lies in it is first come, first served, so it is to hold as little as keeps those who take from waiting: what they
take until the next look and until what is sent after that has arrived. A look tells how many are left. How fast they go
is told only by a time in which several looks fit: those who take do it in bursts, and of two looks one soon after the
other sees four go, or none. Where every look of such a time found the queue empty more would have gone, so it gets half
as much again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from redrive.core.units import Millis

LEAST: Final = 1
"""Messages that are kept ready however slowly they go."""
MOST: Final = 2_000
GROWTH: Final = 1.5
SAMPLE_MS: Final[Millis] = 20
"""The shortest time that tells a speed; of an older one half is forgotten in it."""
SEND_MS: Final = 2.0
"""About how long what is sent after a look takes to get there."""
LEAST_WAIT_MS: Final[Millis] = 4
MOST_WAIT_MS: Final[Millis] = 20
MOST_CYCLE_MS: Final[Millis] = 100
"""Looks further apart than this were so because nothing was to be sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """`ready`: messages in the queue, as last seen and with what was sent since. `target`: how many are to be there.
    `per_ms`: how many are taken. `looked_ms`: the last look. `taken`, `looks`, `was_left`: what the looks since
    `since_ms` have found: how many were gone, and whether any were left.
    """

    ready: int = 0
    target: float = LEAST
    per_ms: float = 0.0
    looked_ms: float = 0.0
    since_ms: float = 0.0
    taken: int = 0
    looks: int = 0
    was_left: bool = False


def room(feed: Feed) -> int:
    """How many more may go in."""
    return max(0, round(feed.target) - feed.ready)


def sent(feed: Feed, count: int) -> Feed:
    """After so many more went in."""
    return replace(feed, ready=feed.ready + count)


def seen(feed: Feed, ready: int, now_ms: float) -> Feed:
    """After a look that found so many."""
    taken = feed.taken + max(0, feed.ready - ready)
    looks, was_left = feed.looks + 1, feed.was_left or ready > 0
    passed_ms = now_ms - feed.since_ms
    if passed_ms < SAMPLE_MS:
        return replace(feed, ready=ready, looked_ms=now_ms, taken=taken, looks=looks, was_left=was_left)
    found = taken / passed_ms
    per_ms = found + (feed.per_ms - found) * 0.5 ** (passed_ms / SAMPLE_MS)
    target = per_ms * (min(passed_ms / looks, MOST_CYCLE_MS) + SEND_MS)
    if not was_left and taken >= round(feed.target):
        target = max(target, feed.target + 1, feed.target * GROWTH)
    return Feed(ready=ready, target=min(MOST, max(LEAST, target)), per_ms=per_ms, looked_ms=now_ms, since_ms=now_ms)


def look_at(feed: Feed) -> float:
    """When to look again, while there is something to send: when about a third of what is ready has gone."""
    if not feed.per_ms:
        return feed.looked_ms + MOST_WAIT_MS
    return feed.looked_ms + min(MOST_WAIT_MS, max(LEAST_WAIT_MS, feed.ready / feed.per_ms / 3))
