"""Controls: the fairness of running consumers as people want it now.

A worker looks into the store every few seconds and puts what it finds into the mapping that its broker reads at each
take. Where the store is away, or holds something it cannot read, what held before goes on holding.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from redrive.core.policy.control import ControlStore, controlled
from redrive.core.policy.fair import Fair
from redrive.runtime.events import Events


class Controls:
    """`own`: what the consumers say, by queue. `live`: what the broker goes by; it is changed in place."""

    def __init__(
        self, store: ControlStore, *, own: Mapping[str, Fair], live: MutableMapping[str, Fair], events: Events
    ) -> None:
        self._store = store
        self._own = dict(own)
        self._live = live
        self._events = events

    async def look(self) -> None:
        """Take over what has changed. Raises `RedriveError` where the store is away; then nothing has changed."""
        if not self._own:
            return
        found = {control.queue: control for control in await self._store.list()}
        for queue, own in self._own.items():
            control = found.get(queue)
            now = controlled(own, control)
            if now == self._live.get(queue):
                continue
            self._live[queue] = now
            self._events.emit(
                "queue.limits_changed",
                queue=queue,
                batch=now.batch,
                rates={} if control is None else dict(control.rates),
                actor=None if control is None else control.actor,
            )
