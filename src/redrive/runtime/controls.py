"""Controls: what people want of queues, carried to the consumers that run.

A worker takes nothing before it knows what was set while it was away, so that a pause survives restarts. Then it looks
into the store every second: fairness goes into the mapping that its broker reads at each take, the rest to the
consumer's pipeline. Where the store is away, or holds something it cannot read, what held before goes on holding.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Final, Protocol

from redrive.core.policy.control import Control, ControlStore, controlled
from redrive.core.policy.fair import Fair
from redrive.core.ports import Clock
from redrive.core.units import Millis
from redrive.errors import BrokerUnavailableError, RedriveError
from redrive.runtime.events import Events

LOOK_EVERY_MS: Final[Millis] = 1_000
"""Between two looks: with its jitter, and a take that is under way, a pause holds everywhere within two seconds."""


class Controlled(Protocol):
    """A consumer that goes by what people want."""

    def follow(self, control: Control | None) -> None:
        """From now on; None: nothing but its own word."""
        ...


class Controls:
    """`own`: how fair consumers take turns by their own word, by queue. `live`: what the broker goes by; it is changed
    in place. `consumers`: who else is to follow, by queue.
    """

    def __init__(
        self,
        store: ControlStore,
        *,
        own: Mapping[str, Fair],
        live: MutableMapping[str, Fair],
        events: Events,
        consumers: Mapping[str, Controlled] | None = None,
    ) -> None:
        self._store = store
        self._own = dict(own)
        self._live = live
        self._events = events
        self._consumers = dict(consumers or {})
        self._followed: dict[str, Control] = {}

    async def begin(self, clock: Clock) -> None:
        """Look until it is known what holds; then consumers may start. What a newer redrive wrote cannot be known: that
        is told, and they start.
        """
        while True:
            try:
                await self.look()
            except BrokerUnavailableError:
                await clock.sleep(LOOK_EVERY_MS)
                continue
            except RedriveError as error:
                self._events.emit("queue.control_unreadable", queues=sorted(self._consumers), error_text=str(error))
                for consumer in self._consumers.values():
                    consumer.follow(None)
            return

    async def look(self) -> None:
        """Take over what has changed. Raises `RedriveError` where the store is away; then nothing has changed."""
        if not self._own and not self._consumers:
            return
        found = {control.queue: control for control in await self._store.list()}
        for queue, own in self._own.items():
            self._take_turns(queue, own, found.get(queue))
        for queue, consumer in self._consumers.items():
            self._follow(queue, consumer, found.get(queue))

    def _take_turns(self, queue: str, own: Fair, control: Control | None) -> None:
        now = controlled(own, control)
        if now == self._live.get(queue):
            return
        self._live[queue] = now
        self._events.emit(
            "queue.limits_changed",
            queue=queue,
            batch=now.batch,
            rates={} if control is None else dict(control.rates),
            actor=None if control is None else control.actor,
        )

    def _follow(self, queue: str, consumer: Controlled, control: Control | None) -> None:
        wanted = Control(queue=queue) if control is None else control
        before = self._followed.get(queue)
        if before == wanted:
            return
        self._followed[queue] = wanted
        consumer.follow(control)
        was = Control(queue=queue) if before is None else before
        if wanted.paused is not None and wanted.paused != was.paused:
            self._events.emit("queue.paused", queue=queue, actor=wanted.paused.actor, note=wanted.paused.note)
        elif wanted.paused is None and was.paused is not None:
            self._events.emit("queue.resumed", queue=queue)
        if wanted.quarantined != was.quarantined:
            self._events.emit("queue.quarantine_changed", queue=queue, count=len(wanted.quarantined))
