"""Operations that take a broker's own dead letters into the store."""

from __future__ import annotations

from redrive.core.letters.foreign import found_letter
from redrive.core.letters.letter import Letter
from redrive.errors import NotFoundError
from redrive.runtime.collector import Collected, Collector, OnCollected
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
        """Take what lies in this dead-letter queue into the store: until it is empty, or, not `once`, for ever. Each
        message is stored before it is acknowledged. `as_queue`: where messages came from that do not say it.
        Raises `NotFoundError` for a queue that is not there.
        """
        collector = Collector(
            self._app.backend,
            self._app.clock,
            self._app.events,
            system=self._app.name,
            worker=runner_name(),
            as_queue=as_queue,
        )
        return await collector.run(queue, once=once, limit=limit, on_collected=on_collected)

    async def collectable(self, queue: str, *, limit: int = 20, as_queue: str | None = None) -> tuple[Letter, ...]:
        """What the first messages of this queue would become. Nothing is taken. Raises `NotFoundError`."""
        if queue not in {depth.queue for depth in await self._app.backend.broker.depths([queue])}:
            raise NotFoundError(f'There is no queue "{queue}".', hint="See: redrive queues list")
        found = await self._app.backend.broker.peek(queue, limit=min(limit, MAX_PAGE))
        now = self._app.clock.now()
        return tuple(
            found_letter(message, dead_letter_queue=queue, system=self._app.name, now=now, as_queue=as_queue)
            for message in found
        )
