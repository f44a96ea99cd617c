"""The three operations of the system's operators on its parked messages, where they lie on the broker.

They are functions: whatever answers HTTP in front of them turns `NotFoundError` into 404 and `ConfigurationError` into
422, and checks who is asking. `redrive dlq list | peek | redrive --in-place` does the same from a shell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redrive import ConfigurationError
from redrive.core.live import SendBack
from redrive.errors import NotFoundError
from redrive.in_place import Place, look_document, peeked, sent_back, sent_back_document, standing_document, standings
from redrive.topologies import Reach

if TYPE_CHECKING:
    from redrive import Redrive

MAX_LIMIT = 100


class ParkedMessages:
    """The parking queues of one app on RabbitMQ. `management`: URL of the management API, None for the usual one."""

    def __init__(self, app: Redrive, *, management: str | None = None) -> None:
        self._place = Place(reach=Reach(url=app.settings.broker, management=management), topology=app.wired_topology())
        self.queues = tuple(consumer.dead_letter_queue for consumer in app.consumers.values())

    async def list_queues(self) -> list[dict[str, Any]]:
        """Every parking queue with its depth and the age of its oldest message."""
        return [standing_document(each) for each in await standings(self._place, None) if each.queue in self.queues]

    async def peek(self, queue: str, *, limit: int = 20) -> dict[str, Any]:
        """The oldest messages with all properties and the reason; nothing is taken, their order stays."""
        self._check(queue, limit)
        return look_document(await peeked(self._place, queue, limit=limit))

    async def redrive(self, queue: str, *, actor: str, limit: int = MAX_LIMIT) -> dict[str, Any]:
        """Publish the oldest to `retry.q.X`, each confirmed before it leaves the parking queue: requested, moved,
        failed, batch. Killed half-way and called again, nothing is lost and nothing sent twice.
        """
        self._check(queue, limit)
        return sent_back_document(await sent_back(self._place, queue, SendBack(actor=actor, limit=limit)))

    def _check(self, queue: str, limit: int) -> None:
        if queue not in self.queues:
            raise NotFoundError(f'"{queue}" is no parking queue of this system.', hint=f"Known: {self.queues}.")
        if not 1 <= limit <= MAX_LIMIT:
            raise ConfigurationError(f"limit is {limit}: it must be between 1 and {MAX_LIMIT}.")
