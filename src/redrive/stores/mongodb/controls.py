"""MongoControlStore: controls of queues, one document per queue. The last one written holds."""

from __future__ import annotations

from redrive.core.policy.control import Control, Controls, control_from_json, control_json
from redrive.stores.mongodb.failures import translated
from redrive.stores.mongodb.link import Link
from redrive.stores.mongodb.versions import scope_of

MAX_CONTROLS = 10_000
"""Queues with a control."""


class MongoControlStore:
    """A `ControlStore` in MongoDB."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._name = link.own("controls")

    async def open(self) -> None:
        """Connect. Raises `ConfigurationError` or `BrokerUnavailableError`."""
        await self._link.open(self)

    async def close(self) -> None:
        """Disconnect. May be called twice."""
        await self._link.close(self)

    async def put(self, control: Control) -> None:
        """See `ControlStore.put`."""
        wanted = {"_id": scope_of(control.queue)}
        with translated(self._link.where, fate="The control may not have changed."):
            collection = self._link.collection(self._name)
            if control.is_empty:
                await collection.delete_one(wanted)
            else:
                await collection.replace_one(wanted, {**wanted, "control": control_json(control)}, upsert=True)

    async def list(self) -> Controls:
        """See `ControlStore.list`."""
        with translated(self._link.where):
            documents = await self._link.collection(self._name).find().limit(MAX_CONTROLS).to_list()
        return sorted((control_from_json(each["control"]) for each in documents), key=lambda each: each.queue)
