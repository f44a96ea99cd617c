"""Operations that take a broker's own dead letters into the store."""

from __future__ import annotations

from collections import Counter

from redrive.core.letters.foreign import found_letter
from redrive.core.letters.letter import Letter
from redrive.errors import ConfigurationError
from redrive.runtime.collecting import Turn, collect_in_turn
from redrive.runtime.collector import Collected, Collector, OnCollected, refuse_unknown
from redrive.runtime.failed_collector import FailedCollector
from redrive.service.operations import MAX_PAGE, Operations
from redrive.service.redriving import runner_name


class CollectOperations(Operations):
    """On a broker's own dead-letter queues."""

    async def collect(
        self,
        queue: str,
        *,
        once: bool = True,
        limit: int | None = None,
        as_queue: str | None = None,
        on_collected: OnCollected | None = None,
    ) -> Collected:
        """Take what lies in this dead-letter queue, or (where the broker keeps failed jobs with their queue) what has
        failed in this queue, into the store: until it is empty, or, not `once`, for ever. Each message is stored before
        it is acknowledged or removed. `as_queue`: where messages came from that do not say it.
        Raises `NotFoundError` for a queue that is not there, `TransitionError` where another collector drains it.
        """
        app, owner = self._app, runner_name()
        collector = self._failed(as_queue) or Collector(
            app.backend, app.clock, app.events, system=app.name, worker=owner, as_queue=as_queue
        )
        turn = Turn(app.backend.claims, app.clock, queue=queue, owner=owner)
        return await collect_in_turn(
            collector, turn, app.clock, queue=queue, once=once, limit=limit, on_collected=on_collected
        )

    async def collectable(
        self, queue: str, *, limit: int = 20, as_queue: str | None = None
    ) -> tuple[tuple[Letter, ...], Counter[str]]:
        """What the first messages of this queue would become, and how many would be left there, by why. Nothing is
        taken. Raises `NotFoundError`.
        """
        limit = min(limit, MAX_PAGE)
        failed = self._failed(as_queue)
        if failed is not None:
            letters, left = await failed.look(queue, limit=limit)
            return tuple(letters), left
        await refuse_unknown(self._app.backend, queue)
        found = await self._app.backend.broker.peek(queue, limit=limit)
        now = self._app.clock.now()
        return tuple(
            found_letter(message, dead_letter_queue=queue, system=self._app.name, now=now, as_queue=as_queue)
            for message in found
        ), Counter()

    def _failed(self, as_queue: str | None) -> FailedCollector | None:
        backend = self._app.backend
        if backend.failed is None:
            return None
        if as_queue is not None:
            raise ConfigurationError(
                "A failed job is known to come from its queue. Nothing was taken.", hint="Leave --from out."
            )
        return FailedCollector(backend, backend.failed, self._app.clock, events=self._app.events, system=self._app.name)
