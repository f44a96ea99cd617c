"""The delay ladder: any delay on a stock broker, in one hop and without a plugin.

One level is an exchange and a queue of one name, `redrive.delay.<ms>`. What is published to the exchange with the name
of a queue as routing key lies in the level's queue for its time and then moves, through the default exchange, to the
queue of that name. Every message of a level waits equally long, so none ever waits behind a longer one, and a level is
never deleted while something lies in it.

Levels stand every 100 ms up to 3 s and then at most 4 % apart up to 7 days; the delays people write (5s, 10s, 15s, 30s,
1m, 2m, 5m, 10m, 15m, 30m, 1h, 2h, 6h, 12h, 1d, 2d, …, 7d) are levels themselves. A delay is rounded up: never early,
late by less than 100 ms or 4 %. A longer delay than 7 days goes round again: the copy carries its due time in
`HEADER_DUE_AT`, and whoever receives it earlier sends it off for the rest (no start is counted).

All levels are shared by all queues of the broker: their number does not grow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from redrive.core.message import OWN_HEADER_PREFIX
from redrive.core.topology.model import Binding, Exchange, Queue, Topology
from redrive.core.units import Millis

PREFIX: Final = "redrive.delay."
HEADER_DUE_AT: Final = f"{OWN_HEADER_PREFIX}-due-at"
"""Instant (UnixMs, a whole number) before which a delayed copy is not for its handler."""

STEP_MS: Final[Millis] = 100
FINE_UNTIL_MS: Final[Millis] = 3_000
STEP_PERCENT: Final = 4
MAX_LEVEL_MS: Final[Millis] = 7 * 86_400_000

_SECONDS: Final = (5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 43_200)
_ROUND_MS: Final = (*(1_000 * each for each in _SECONDS), *(86_400_000 * days for days in range(1, 8)))

SAFE: Final[Mapping[str, Any]] = {
    "x-queue-type": "quorum",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}
"""Arguments of a queue out of which the broker moves messages without losing one: quorum, and at-least-once, which
needs `reject-publish`. The delivery limit depends on the broker: `redrive.core.topology.fit.for_version`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One step of the ladder."""

    delay_ms: Millis

    @property
    def name(self) -> str:
        """Of its exchange (publish here, with the target queue as routing key) and of its queue."""
        return f"{PREFIX}{self.delay_ms}"


def _delays() -> Iterator[Millis]:
    yield from range(STEP_MS, FINE_UNTIL_MS, STEP_MS)
    delay = FINE_UNTIL_MS
    for end in _ROUND_MS:
        while delay < end:
            yield delay
            delay = min(delay * (100 + STEP_PERCENT) // 100, end)
    yield MAX_LEVEL_MS


LEVELS: Final = tuple(Level(delay_ms=delay) for delay in _delays())
"""All levels, shortest first."""

_DELAYS: Final = tuple(level.delay_ms for level in LEVELS)


def level_for(delay_ms: float) -> Level:
    """The shortest level that is not shorter than the delay; the longest one for what is longer still (put the due time
    into `HEADER_DUE_AT`). Nothing is shorter than the first level.
    """
    return LEVELS[min(bisect_left(_DELAYS, delay_ms), len(LEVELS) - 1)]


def ladder() -> Topology:
    """The exchanges, queues and bindings of all levels; no wirings."""
    return Topology(
        exchanges=tuple(Exchange(name=level.name, type="fanout") for level in LEVELS),
        queues=tuple(_queue(level) for level in LEVELS),
        bindings=tuple(Binding(source=level.name, destination=level.name) for level in LEVELS),
    )


def _queue(level: Level) -> Queue:
    # No dead-letter routing key: the one it was published with, the name of the target queue, stays.
    return Queue(name=level.name, arguments={**SAFE, "x-message-ttl": level.delay_ms, "x-dead-letter-exchange": ""})


def is_level(name: str) -> bool:
    """Whether an exchange or queue of this name belongs to the ladder."""
    digits = name.removeprefix(PREFIX)
    return name != digits and digits.isascii() and digits.isdigit()


def has_ladder(topology: Topology) -> bool:
    """Whether the topology declares the ladder, so that queues with one retry delay of their own may use it, too."""
    return any(queue.name == LEVELS[-1].name for queue in topology.queues)
