"""RedisControlStore: controls of queues in the Redis the broker is in, where every worker on every host sees them.

{prefix}:redrive-controls    queue to its control as JSON (a hash)
"""

from __future__ import annotations

from typing import Final

from redrive.core.policy.control import Control, Controls, control_from_json, control_json
from redrive.core.ports import Clock
from redrive.core.units import Millis
from redrive.redis.address import parse
from redrive.redis.server import Server

CALL_WAIT_MS: Final[Millis] = 2_000


class RedisControlStore:
    """A `ControlStore` in Redis, on a connection of its own."""

    def __init__(self, url: str, *, clock: Clock) -> None:
        """Connects to nothing yet. Raises `ConfigurationError` for a URL that is none."""
        address = parse(url)
        self._server = Server(address, clock=clock)
        self._key = f"{address.prefix}:redrive-controls"

    async def open(self) -> None:
        """Connect. Raises `ConfigurationError` or `BrokerUnavailableError`."""
        await self._server.open()

    async def close(self) -> None:
        """Disconnect. May be called twice."""
        await self._server.close()

    async def put(self, control: Control) -> None:
        """See `ControlStore.put`."""
        document = control_json(control)
        command = (
            ("HDEL", self._key, control.queue) if control.is_empty else ("HSET", self._key, control.queue, document)
        )
        await self._server.command(self._key, *command, wait_ms=CALL_WAIT_MS)

    async def list(self) -> Controls:
        """See `ControlStore.list`."""
        found = await self._server.command(self._key, "HVALS", self._key, wait_ms=CALL_WAIT_MS)
        return sorted((control_from_json(each) for each in found), key=lambda each: each.queue)
