"""SqliteBroker: the `Broker` port on one SQLite file. The work is in redrive.sqlite."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Sequence

from redrive.core import settlement
from redrive.core.message import Message
from redrive.core.policy.standing import Standing
from redrive.core.ports import Depth, Features, Lease, Outgoing, Published, Received, Settle
from redrive.core.units import Millis
from redrive.sqlite import queue as messages
from redrive.sqlite import turns
from redrive.sqlite.file import SqliteFile
from redrive.sqlite.ledger import ABANDONED, FEATURES, check_outgoing
from redrive.sqlite.receive import receive
from redrive.sqlite.writer import Tx


class SqliteBroker:
    """Messages in one SQLite file. What the ledger of the same file does is seen here, and the other way round."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    @property
    def features(self) -> Features:
        """What the embedded broker can do."""
        return FEATURES

    async def open(self) -> None:
        """See `SqliteFile.open`."""
        await self._file.open()

    async def close(self) -> None:
        """See `SqliteFile.close`."""
        await self._file.close()

    async def publish(self, batch: Sequence[Outgoing]) -> list[Published]:
        """See `Broker.publish`; one commit for the batch."""
        check_outgoing(batch)
        return await self._file.write_step(_publish, batch)

    async def receive(
        self, queue: str, *, limit: int, lease_ms: Millis, worker: str, wait_ms: Millis
    ) -> list[Received]:
        """See `Broker.receive`."""
        if limit <= 0:
            return []

        def step(tx: Tx) -> messages.Leased | None:
            head = messages.look(tx, queue, limit=limit, with_claims=False)
            return messages.lease(tx, head, lease_ms=lease_ms, worker=worker)

        values = messages.Leased.received
        return await receive(self._file, queue, step=step, values=values, hand_back=_hand_back, wait_ms=wait_ms)

    async def settle(self, batch: Sequence[Settle]) -> list[bool]:
        """See `Broker.settle`; one commit for the batch."""
        return await self._file.write_step(messages.settle, batch)

    def renew(self, batch: Sequence[Lease], *, lease_ms: Millis) -> list[bool]:
        """See `Broker.renew`."""
        step: Callable[[Tx], list[bool]] = lambda tx: messages.renew(tx, batch, lease_ms=lease_ms)  # noqa: E731
        return self._file.write_blocking(step, is_synced=False) if batch else []

    async def depths(self, queues: Collection[str] = ()) -> list[Depth]:
        """See `Broker.depths`. A dead-letter queue is listed with its open letters as ready."""
        _ = queues
        now = self._file.clock.now()
        return await self._file.read(lambda connection: messages.depths(connection, now))

    async def peek(self, queue: str, *, limit: int) -> list[Message]:
        """See `Broker.peek`. Of a dead-letter queue: the messages of its open letters."""
        now, fair = self._file.clock.now(), self._file.fair.get(queue)
        return await self._file.read(
            lambda connection: messages.peek(connection, queue, limit=limit, now=now, fair=fair)
        )

    async def discard(self, queue: str, is_gone: Callable[[Message], bool], *, limit: int) -> int:
        """See `Broker.discard`; one commit. Letters are no messages: of a dead-letter queue nothing goes."""
        return await self._file.write(lambda tx: messages.discard(tx, queue, is_gone, limit=limit))

    async def gone(self, workers: Collection[str]) -> set[str]:
        """Not known here: leases of the dead end by themselves."""
        _ = workers
        return set()

    async def standings(self, queue: str, *, limit: int) -> list[Standing]:
        """Tenants of a fair queue, the longest backlog first; [] where it is not fair or not there."""

        def look(connection: sqlite3.Connection) -> list[Standing]:
            queue_id = messages.find_queue(connection, queue)
            return [] if queue_id is None else turns.standings(connection, queue_id, limit=limit)

        return await self._file.read(look)

    async def delete_queue(self, queue: str) -> None:
        """Remove the queue and every message in it, as an administrator would. Its claims and letters stay."""
        await self._file.write(lambda tx: messages.delete(tx, queue))


def _publish(tx: Tx, batch: Sequence[Outgoing]) -> list[Published]:
    messages.publish(tx, batch)
    return [Published()] * len(batch)


def _hand_back(tx: Tx, received: Sequence[Received]) -> None:
    end = settlement.Requeue(due_at=tx.now, reason=ABANDONED)
    messages.settle(tx, [Settle(lease=each.lease, settlement=end) for each in received])
