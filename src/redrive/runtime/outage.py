"""Outage: how a broker or store that is away is waited for, and what is told of it.

    well ─failed→ away ─failed→ away … ─succeeded→ well

The waits grow from try to try and are spread widely, because everybody who uses the broker lost it at the same moment
and must not be back at the same moment. They start anew only once it has worked for `STABLE_MS`. Told aloud are the
first failure and the end; tries in between are told quietly.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from redrive.core.policy import streak
from redrive.core.policy.backoff import Backoff, Exponential
from redrive.core.ports import Clock
from redrive.core.units import Millis
from redrive.errors import RedriveError
from redrive.runtime.events import Events
from redrive.runtime.settings import Settings

MAX_TEXT_CHARS: Final = 500
"""Of the error's text, in an event."""


def pause_backoff(settings: Settings) -> Backoff:
    """The waits between two tries, as the settings say."""
    return Exponential(f"{settings.pause_initial_ms}ms", cap=f"{settings.pause_max_ms}ms", jitter="±50%")


class Outage:
    """The outage of what these queues need, or its absence. `of`: whom the events name, a `consumer` or a `collector`.
    Belongs to one event loop.
    """

    def __init__(
        self, queues: Sequence[str], settings: Settings, *, clock: Clock, events: Events, of: str = "consumer"
    ) -> None:
        self._of = of
        self._queues = tuple(queues)
        self._backoff = pause_backoff(settings)
        self._clock = clock
        self._events = events
        self._streak = streak.NO_FAILURE

    @property
    def is_on(self) -> bool:
        """Whether the broker was away when it was last asked."""
        return self._streak.is_on

    def failed(self, error: Exception) -> Millis:
        """It is away; how long to wait before the next try."""
        name = f"{self._of}.still_paused" if self.is_on else f"{self._of}.paused"
        self._streak = streak.failed(self._streak, now=self._clock.monotonic_ms())
        delay = self._backoff.delay_ms(self._streak.failures, random.random())  # noqa: S311 - jitter
        for queue in self._queues:
            self._events.emit(
                name,
                queue=queue,
                error_code=error.code if isinstance(error, RedriveError) else "internal",
                error_text=str(error)[:MAX_TEXT_CHARS] or repr(error),
                delay_ms=delay,
            )
        return delay

    def succeeded(self) -> None:
        """It answered."""
        if self.is_on:
            self._streak = streak.succeeded(self._streak, now=self._clock.monotonic_ms())
            for queue in self._queues:
                self._events.emit(f"{self._of}.resumed", queue=queue)
