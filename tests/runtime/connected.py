"""A broker in memory with the manners of RabbitMQ: a delivery belongs to a worker's connection, not to a lease; nothing
counts starts; a retry is a new copy that says in a header as which attempt it is to run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from redrive.brokers.memory import MemoryBroker
from redrive.core import settlement
from redrive.core.attempts import HEADER_ATTEMPT
from redrive.core.letters.letter import AttemptOutcome
from redrive.core.message import Message
from redrive.core.ports import Clock, Depth, Features, Lease, Outgoing, Published, Received, Settle
from redrive.core.settlement import Reason
from redrive.core.units import Millis

FOREVER_MS = 365 * 86_400_000
BACK = Reason(code="CONNECTION_LOST", text="the connection is gone")


class ConnectedBroker:
    """A `Broker`. `lose(worker)`: its connection breaks; what it had in hand is handed out again. `stays_away`: it does
    not come back.
    """

    def __init__(self, clock: Clock) -> None:
        self._inner = MemoryBroker(clock)
        self._clock = clock
        self._held: dict[str, dict[int, Lease]] = {}
        self._away: set[str] = set()
        self.asked_for_gone: Counter[str] = Counter()

    @property
    def features(self) -> Features:
        return replace(self._inner.features, name="connected", leases=False, counts_starts=False)

    async def lose(self, worker: str, *, stays_away: bool) -> None:
        """Break the worker's connection."""
        held = self._held.pop(worker, {})
        for lease in held.values():
            self._inner._queue(lease.queue).copies[lease.ref].is_redelivered = True
        end = settlement.Requeue(due_at=self._clock.now(), reason=BACK)
        await self._inner.settle([Settle(lease=lease, settlement=end) for lease in held.values()])
        if stays_away:
            self._away.add(worker)

    async def open(self) -> None:
        await self._inner.open()

    async def close(self) -> None:
        await self._inner.close()

    async def publish(self, batch: Sequence[Outgoing]) -> list[Published]:
        return await self._inner.publish(batch)

    async def receive(
        self, queue: str, *, limit: int, lease_ms: Millis, worker: str, wait_ms: Millis
    ) -> list[Received]:
        _ = lease_ms
        received = await self._inner.receive(queue, limit=limit, lease_ms=FOREVER_MS, worker=worker, wait_ms=wait_ms)
        held = self._held.setdefault(worker, {})
        held.update({each.lease.ref: each.lease for each in received})
        return [replace(each, starts=None, lease_until=None) for each in received]

    async def settle(self, batch: Sequence[Settle]) -> list[bool]:
        for each in batch:
            copy = self._inner._queue(each.lease.queue).held(each.lease)
            if copy is not None and isinstance(each.settlement, settlement.Retry) and each.entry is not None:
                headers = {**copy.message.headers, HEADER_ATTEMPT: each.entry.attempt + 1}
                copy.message = replace(copy.message, headers=headers)
        for held in self._held.values():
            for each in batch:
                held.pop(each.lease.ref, None)
        return await self._inner.settle(batch)

    def renew(self, batch: Sequence[Lease], *, lease_ms: Millis) -> list[bool]:
        _ = lease_ms
        return self._inner.renew(batch, lease_ms=FOREVER_MS)

    async def depths(self, queues: Collection[str] = ()) -> list[Depth]:
        return await self._inner.depths(queues)

    async def peek(self, queue: str, *, limit: int) -> list[Message]:
        return await self._inner.peek(queue, limit=limit)

    async def discard(self, queue: str, is_gone: Callable[[Message], bool], *, limit: int) -> int:
        return await self._inner.discard(queue, is_gone, limit=limit)

    async def gone(self, workers: Collection[str]) -> set[str]:
        self.asked_for_gone.update(workers)
        return self._away & set(workers)


def lost_starts(received: Received) -> list[tuple[int, str | None]]:
    """(attempt, worker) of the starts in the history that never ended."""
    return [(entry.attempt, entry.worker) for entry in received.history if entry.outcome is AttemptOutcome.INTERRUPTED]
