"""Readiness: whether this process does its work now, and if not, why. Learned from events and from asking the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from redrive.core.units import Millis
from redrive.errors import BrokerUnavailableError, ConfigurationError, RedriveError
from redrive.runtime.app import Redrive
from redrive.runtime.events import Event

ASK_EVERY_MS: Final[Millis] = 1_000
"""However often somebody probes, the store is asked no more often than this."""

REFUSAL_HOLDS_MS: Final[Millis] = 10_000
"""So long a webhook that could not be enqueued keeps us from being ready. Then senders may come and try again: a disk
that is full can be read, so only a write shows that there is room again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """One reason why this process is not ready. `code` is stable."""

    code: str
    text: str
    queue: str | None = None


class ReadinessCheck(Protocol):
    """Why a process is not ready."""

    async def obstacles(self) -> tuple[Obstacle, ...]:
        """Empty: it is ready."""
        ...

    @property
    def paused(self) -> tuple[str, ...]:
        """Queues of this process that a person has paused, by name; no obstacle."""
        ...


class Readiness:
    """Watches one app. `obstacles` is empty when it is ready.

    Not ready: before the app is open, while a consumer is paused because broker or store is away, while the worker
    drains, when the store cannot be read (its schema is newer, it is damaged, locked or gone), and after it would not
    take a webhook.

    A queue that a person has paused is no obstacle: the process does what it is told, and a deploy must not wait for
    somebody to resume it. It is `paused`, and shown beside.
    """

    def __init__(self, app: Redrive) -> None:
        self._app = app
        self._paused: dict[str, Obstacle] = {}
        self._draining: Obstacle | None = None
        self._store: Obstacle | None = None
        self._asked_ms: float | None = None
        self._refused_ms: float | None = None
        self.failed_to_open: RedriveError | None = None
        self._by_people: set[str] = set()
        app.events.subscribe(self._watch)

    def _watch(self, event: Event) -> None:
        match event.name:
            case "consumer.paused" | "consumer.still_paused":
                self._pause(event.fields)
            case "consumer.resumed":
                self._paused.pop(str(event.fields["queue"]), None)
            case "queue.paused":
                self._by_people.add(str(event.fields["queue"]))
            case "queue.resumed":
                self._by_people.discard(str(event.fields["queue"]))
            case "ingest.refused" if event.fields["error_code"] == BrokerUnavailableError.code:
                self._refused_ms = self._app.clock.monotonic_ms()
            case "message.published":
                self._refused_ms = None
            case "worker.draining" | "worker.stopped":
                self._draining = Obstacle(code="draining", text="The worker drains and takes nothing new.")
            case "worker.started":
                self._draining = None
            case _:
                pass

    def _pause(self, fields: Mapping[str, Any]) -> None:
        queue = str(fields["queue"])
        text = f"Consuming is paused: {fields.get('error_text') or 'broker or store is away'}"
        self._paused[queue] = Obstacle(code="consumer_paused", text=text, queue=queue)

    @property
    def paused(self) -> tuple[str, ...]:
        """See `ReadinessCheck`."""
        return tuple(sorted(self._by_people))

    async def obstacles(self) -> tuple[Obstacle, ...]:
        """Why this process is not ready now, the most general reason first."""
        if self._app.is_open:
            await self._ask_store()
        return self.known()

    def known(self) -> tuple[Obstacle, ...]:
        """The same without asking the store; from any thread."""
        if not self._app.is_open:
            return (self._not_open(),)
        known = (self._draining, self._store, self._refusing(), *tuple(self._paused.values()))
        return tuple(obstacle for obstacle in known if obstacle is not None)

    def _refusing(self) -> Obstacle | None:
        at = self._refused_ms
        if at is None or self._app.clock.monotonic_ms() - at >= REFUSAL_HOLDS_MS:
            return None
        return Obstacle(code=BrokerUnavailableError.code, text="The broker did not take the latest webhook.")

    def _not_open(self) -> Obstacle:
        error = self.failed_to_open
        if error is None:
            return Obstacle(code="starting", text="The app is not open yet.")
        return Obstacle(code=error.code, text=str(error))

    async def _ask_store(self) -> None:
        now = self._app.clock.monotonic_ms()
        if self._asked_ms is not None and now - self._asked_ms < ASK_EVERY_MS:
            return
        self._asked_ms = now
        try:
            await self._app.backend.jobs.list(limit=1)
            self._store = None
        except ConfigurationError:
            self._store = Obstacle(code="starting", text="The app is not open yet.")
        except RedriveError as error:
            self._store = Obstacle(code=error.code, text=str(error))
