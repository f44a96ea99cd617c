"""Passes over dead-letter queues that this process has carried out: the last one of each queue, in memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from redrive.core.ports import Clock
from redrive.core.units import UnixMs
from redrive.runtime.collector import Collected
from redrive.views import instant
from redrive.web.admin.problems import refuse

MAX_PASSES: Final = 100
"""Queues whose last pass is remembered."""
TOP: Final = 50
"""Entries of one count that are shown."""


@dataclass(slots=True)
class Pass:
    """One pass over one queue. `state`: running, done, failed, or stopped with its process."""

    queue: str
    actor: str
    started_at: UnixMs
    state: str = "running"
    ended_at: UnixMs | None = None
    error: str | None = None
    done: Collected = field(default_factory=Collected)

    def seen(self, done: Collected) -> None:
        """So far."""
        self.done = done

    def ended(self, state: str, now: UnixMs, error: str | None = None) -> None:
        """It is over."""
        self.state, self.ended_at, self.error = state, now, error

    def document(self) -> dict[str, Any]:
        """As it is shown."""
        return {
            "queue": self.queue,
            "state": self.state,
            "actor": self.actor,
            "started_at": instant(self.started_at),
            "ended_at": instant(self.ended_at),
            "taken": self.done.taken,
            "new": self.done.new,
            "by_queue": _top(self.done.by_queue),
            "left": dict(self.done.left),
            "by_group": _top(self.done.by_group),
            "error": self.error,
        }


def _top(counts: Counter[str]) -> dict[str, int]:
    return dict(counts.most_common(TOP))


@dataclass(slots=True)
class Passes:
    """The passes of one process: the last one of each queue."""

    clock: Clock
    by_queue: dict[str, Pass] = field(default_factory=dict)

    def begin(self, queue: str, actor: str) -> Pass | None:
        """A new one; None where one is running. Raises `Refused` where too many are."""
        known = self.by_queue.pop(queue, None)
        if known is not None and known.state == "running":
            self.by_queue[queue] = known
            return None
        if len(self.by_queue) >= MAX_PASSES:
            oldest = next((name for name, each in self.by_queue.items() if each.state != "running"), None)
            if oldest is None:
                raise refuse("too_many_passes")
            del self.by_queue[oldest]
        found = self.by_queue[queue] = Pass(queue=queue, actor=actor, started_at=self.clock.now())
        return found
