"""Waiting for work on one queue: BullMQ's marker, on a connection of its own.

Whoever adds a job puts a marker into a sorted set on which idle workers block (BZPOPMIN): member "0" says that there is
work, member "1" that there will be some at its score, in ms. One worker gets it, and the scripts put it back as long
as there is more. So a marker that was taken and not acted upon must be put back: other workers, Node's among them,
would sleep on until their own patience ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from redrive.brokers.bullmq.keys import Keys
from redrive.core.units import Millis
from redrive.errors import RedriveError
from redrive.redis.failures import LinkLost, Refusal
from redrive.redis.link import Link
from redrive.redis.server import Server

PATIENCE_MS: Final[Millis] = 5_000
"""Longest time between two looks though no marker came. BullMQ's drainDelay."""
PAUSE_MS: Final[Millis] = 100
"""Before a lost connection is tried again."""


class Waiter:
    """Wakes whoever waits for work on one queue in this process."""

    def __init__(self, server: Server, keys: Keys) -> None:
        self._server = server
        self._keys = keys
        self._link: Link | None = None
        self._client_id = 0
        self._pop: asyncio.Task[None] | None = None
        self._waiting = 0
        self._wake: asyncio.Future[None] | None = None
        self._is_closed = False

    async def wait(self, ms: float) -> None:
        """Returns when there may be work, at the latest after `ms`."""
        if self._pop is None or self._pop.done():
            self._pop = asyncio.create_task(self._pop_marker())
        if self._wake is None or self._wake.done():
            self._wake = asyncio.get_running_loop().create_future()
        self._waiting += 1
        try:
            await asyncio.wait([self._wake], timeout=max(ms, 0.5) / 1_000)
        finally:
            self._waiting -= 1

    def wake(self) -> None:
        """There may be work: this process itself has made room, or is closing."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def close(self) -> None:
        """Give the marker back where one was just taken, and disconnect. May be called twice."""
        self._is_closed = True
        self.wake()
        if self._pop is not None and not self._pop.done():
            with contextlib.suppress(RedriveError, LinkLost, Refusal, TimeoutError):
                async with asyncio.timeout(1.0):
                    link = await self._server.link(self._keys["marker"], wait_ms=0)
                    await link.send([("CLIENT", "UNBLOCK", self._client_id)])
                    await asyncio.shield(self._pop)
            self._pop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._pop
        if self._link is not None:
            self._link.close()

    async def _pop_marker(self) -> None:
        marker: Any = None
        try:
            link = await self._connected()
            command = ("BZPOPMIN", self._keys["marker"], PATIENCE_MS / 1_000)
            (marker,) = await link.send([command], patience_ms=2 * PATIENCE_MS)
        except (RedriveError, LinkLost):
            await asyncio.sleep(PAUSE_MS / 1_000)
        if isinstance(marker, Exception):
            # A server that is not ready, or refuses: the next take says so.
            await asyncio.sleep(PAUSE_MS / 1_000)
        elif marker and (not self._waiting or self._is_closed):
            with contextlib.suppress(RedriveError, LinkLost):
                await self._server.command(
                    self._keys["marker"], "ZADD", self._keys["marker"], marker[2], marker[1], wait_ms=0
                )
        self.wake()

    async def _connected(self) -> Link:
        if self._link is None or self._link.is_lost:
            self._link = await self._server.new_link(self._keys["marker"])
            try:
                self._client_id = await self._link.ask("CLIENT", "ID")
            except Refusal:
                self._client_id = 0
        return self._link
