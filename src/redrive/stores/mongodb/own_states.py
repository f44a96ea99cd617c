"""The states in the letters themselves, on a server that looks through all letters to change one (`letter_list.py`).

Authoritative are the moves, and lists read the packed list. What stands in `dead_letter_events` is for other tools; it
follows, one letter after the other, once no letter has been moved for a moment: whatever else is written has to wait
while the server looks for a letter to change. Killed before: a letter's own state is behind until the letter is looked
at or moved again, or all are compared (`redrive dlq stats --recount`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from pymongo.errors import PyMongoError

from redrive.stores.mongodb.letter_list import state_of
from redrive.stores.mongodb.link import Document, Link

MAX_LEFT: Final = 10_000
"""Letters remembered; of more than that, the oldest stay behind."""
REST_S: Final = 0.5
"""So long no letter has been moved before one is written."""
LAST_S: Final = 10.0
"""How long a store that is closed goes on writing."""


class OwnStates:
    """Writes behind what other tools read."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._left: dict[str, Document] = {}
        self._newest: Document | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_closing = asyncio.Event()

    def write(self, moved: Document) -> None:
        """Soon the letter itself says what this summary of it does."""
        self._left.pop(moved["_id"], None)
        self._left[moved["_id"]] = self._newest = moved
        if len(self._left) > MAX_LEFT:
            del self._left[next(iter(self._left))]
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())

    async def close(self) -> None:
        """Write what is left, as far as there is time. May be called twice."""
        writing, self._writing = self._writing, None
        if writing is not None:
            self._is_closing.set()
            await asyncio.wait([writing], timeout=LAST_S)
            writing.cancel()
            await asyncio.wait([writing])
            self._is_closing.clear()
            self._left.clear()

    async def _write_all(self) -> None:
        while self._left:
            await self._rest()
            name, moved = next(iter(self._left.items()))
            # Where the server is away, the letter stays behind, as after a kill.
            with suppress(PyMongoError):
                await self._write_one(moved)
            if self._left.get(name) is moved:
                del self._left[name]

    async def _rest(self) -> None:
        newest = None
        while self._newest is not newest and not self._is_closing.is_set():
            newest = self._newest
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_closing.wait(), REST_S)

    async def _write_one(self, moved: Document) -> None:
        letters = self._link.collection(self._link.address.letters)
        # By its `_id` alone: a second condition would make the server read every letter.
        found = await letters.find_one({"_id": moved["_id"]}, {"redrive.life": 1, "redrive.moves": 1})
        own = moved["redrive"]
        if found and found["redrive"]["life"] == own["life"] and found["redrive"]["moves"] < own["moves"]:
            await letters.update_one({"_id": moved["_id"]}, {"$set": state_of(moved)})
