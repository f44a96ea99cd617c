"""Workers: who lives, as the broker sees it.

Each worker holds an exclusive queue named after it. The broker deletes it the moment the worker's connection ends, and
refuses it to anybody else before: so another process can ask whether a worker that still holds claims is over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Final

from redrive.brokers.rabbitmq.failures import NOT_FOUND, RESOURCE_LOCKED, ChannelLost
from redrive.brokers.rabbitmq.link import Channel, Link
from redrive.core.topology.names import MAX_NAME_BYTES, name_bytes

PREFIX: Final = "redrive.worker."


def sign(worker: str) -> str:
    """The name of its queue; a name that is too long, or has what a queue's may not have, is digested."""
    name = f"{PREFIX}{worker}"
    if name_bytes(name) <= MAX_NAME_BYTES and worker.isprintable():
        return name
    return f"{PREFIX}{hashlib.sha256(worker.encode('utf-8', 'surrogatepass')).hexdigest()}"


class Workers:
    """The workers of this process, and questions about others."""

    def __init__(self) -> None:
        self._here: set[str] = set()

    def forget_all(self) -> None:
        """The connection was lost, and the signs with it."""
        self._here.clear()

    def knows(self, worker: str) -> bool:
        """Whether this process holds the worker's sign."""
        return worker in self._here

    async def be_here(self, link: Link, worker: str) -> None:
        """Hold this worker's sign. Another connection that holds it still (one that was cut a moment ago and that the
        broker has not missed yet) is waited for by the next call.
        """
        if worker in self._here:
            return
        channel = await Channel(link).open()
        try:
            await channel.declare_queue(sign(worker), durable=False, exclusive=True)
            self._here.add(worker)
        except ChannelLost as lost:
            if lost.code != RESOURCE_LOCKED:
                raise
        finally:
            await channel.close()

    async def gone(self, link: Link, workers: Collection[str]) -> set[str]:
        """Those of whom the broker knows no connection."""
        return {worker for worker in workers if worker not in self._here and await self._is_gone(link, worker)}

    async def _is_gone(self, link: Link, worker: str) -> bool:
        channel = await Channel(link).open()
        try:
            await channel.declare_queue(sign(worker), passive=True)
        except ChannelLost as lost:
            return lost.code == NOT_FOUND
        finally:
            await channel.close()
        return False
