"""Operations on queues: publish, look, copy the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.policy.control import Control
from redrive.core.policy.standing import Standing, reported
from redrive.core.ports import LetterStats, Published
from redrive.errors import ConfigurationError, UnsupportedError
from redrive.service.operations import MAX_PAGE, Operations
from redrive.service.values import QueueView, Receipt


class QueueOperations(Operations):
    """On queues."""

    async def publish(self, queue: str, messages: Sequence[tuple[Any, Mapping[str, Any]]]) -> Receipt:
        """Send messages, each a payload and its `Redrive.publish` arguments; returns when all are durable."""
        answers: list[Published] = await self._app.publish_many(queue, messages)
        duplicates = sum(answer.duplicate for answer in answers)
        conflicts = sum(answer.conflict for answer in answers)
        published = len(answers) - duplicates - conflicts
        return Receipt(queue=queue, published=published, duplicates=duplicates, conflicts=conflicts)

    @property
    def consumed_queues(self) -> tuple[str, ...]:
        """The queues this app has consumers for; empty where only its broker is known."""
        return tuple(self._app.consumers)

    async def queues(self) -> tuple[QueueView, ...]:
        """Every queue the broker knows, this app consumes, or that has open letters, by name."""
        stats = await self._app.backend.letters.stats(Selection(states=OPEN_STATES), top=MAX_PAGE)
        asked = {*self._app.consumers, *stats.by_queue}
        depths = {depth.queue: depth for depth in await self._app.backend.broker.depths(asked)}
        names = sorted({*depths, *self._app.consumers, *stats.by_queue} - self._dead_letter_names())
        store = self._app.backend.controls
        controls = {} if store is None else {control.queue: control for control in await store.list()}
        return tuple(
            self._queue_view(name, depths.get(name), stats=stats, control=controls.get(name)) for name in names
        )

    def _queue_view(self, name: str, depth: Any, *, stats: LetterStats, control: Control | None) -> QueueView:
        now = self._app.clock.now()
        return QueueView(
            queue=name,
            ready=0 if depth is None else depth.ready,
            scheduled=0 if depth is None else depth.scheduled,
            leased=0 if depth is None else depth.leased,
            dead=stats.by_queue.get(name, 0),
            oldest_ready_at=None if depth is None else depth.oldest_ready_at,
            is_consumed=name in self._app.consumers,
            paused=None if control is None else control.paused,
            quarantined=0 if control is None else sum(each.holds(now) for each in control.quarantined),
        )

    async def standings(self, queue: str) -> tuple[Standing, ...]:
        """The tenants of a fair queue that wait or did so lately, the longest backlog first."""
        look = self._app.backend.standings
        if look is None:
            raise UnsupportedError(f'"{self._app.backend.url}" does not know where tenants stand.')
        return tuple(reported(await look(queue, MAX_PAGE), self._app.fair.get(queue)))

    @property
    def has_queues_in_file(self) -> bool:
        """Whether queues lie in the file that `backup` copies, and not on a server."""
        return self._app.backend.broker.features.name == "sqlite"

    async def backup(self, target: Path) -> None:
        """Copy everything into a new file while others go on working. Raises `UnsupportedError` where the broker is
        no file, `ConfigurationError` where the target exists.
        """
        copy = self._app.backend.backup
        if copy is None:
            raise UnsupportedError(f'"{self._app.backend.url}" is not a file redrive can copy. Nothing was written.')
        if target.exists():  # noqa: ASYNC240 - one look at a local file
            raise ConfigurationError(f'"{target}" exists already. Nothing was written.', hint="Name a new file.")
        await copy(target)
