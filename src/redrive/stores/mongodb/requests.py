"""MongoRequestStore: who wrote what, one document each, and the answers of Idempotency-Keys.

A write is changed by the one server that carries it out, and an answer is written by the one that holds the claim, so a
plain replacement is enough: nobody else writes the same document at the same time.
"""

from __future__ import annotations

import json
from typing import Any

from redrive.core.audit import Answer, Write, WritePage, WriteQuery, after_cursor, page_of
from redrive.core.units import UnixMs
from redrive.stores.mongodb.failures import translated
from redrive.stores.mongodb.link import Document, Link

_NAMES = ("at", "actor", "role", "operation", "target", "address", "status", "result")
_TEXTS = ("actor", "operation", "target")


class MongoRequestStore:
    """A `RequestStore` in MongoDB."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._writes = link.own("writes")
        self._answers = link.own("answers")

    async def open(self) -> None:
        """Connect, and make the index. Raises `ConfigurationError` or `BrokerUnavailableError`."""
        await self._link.open(self)
        try:
            with translated(self._link.where):
                answers = self._link.collection(self._answers)
                await answers.create_index([("expires_at", 1)], name="redrive_expiry")
        except BaseException:
            await self._link.close(self)
            raise

    async def close(self) -> None:
        """Disconnect. May be called twice."""
        await self._link.close(self)

    async def put(self, write: Write) -> None:
        """See `RequestStore.put`."""
        document = {name: getattr(write, name) for name in _NAMES}
        # ASCII: NUL and lone surrogates, which no server keeps as they are, stand in it escaped.
        document |= {name: _kept(document[name]) for name in (*_TEXTS, "address", "result")}
        with translated(self._link.where, fate="The write may not be kept."):
            await self._link.collection(self._writes).replace_one({"_id": write.id}, document, upsert=True)

    async def writes(self, query: WriteQuery, *, limit: int, cursor: str | None = None) -> WritePage:
        """See `RequestStore.writes`."""
        wanted: Document = {name: _kept(value) for name in _TEXTS if (value := getattr(query, name)) is not None}
        below = after_cursor(cursor)
        if below is not None:
            wanted["_id"] = {"$lt": below}
        times = {"$gte": query.since, "$lt": query.until}
        if given := {name: value for name, value in times.items() if value is not None}:
            wanted["at"] = given
        with translated(self._link.where):
            found = self._link.collection(self._writes).find(wanted).sort("_id", -1).limit(limit + 1)
            documents = await found.to_list()
        return page_of([_write(each) for each in documents], limit)

    async def keep(self, key: str, answer: Answer, *, expires_at: UnixMs) -> None:
        """See `RequestStore.keep`."""
        document = {"status": answer.status, "body": answer.body, "headers": json.dumps(dict(answer.headers))}
        with translated(self._link.where, fate="The answer may not be kept."):
            collection = self._link.collection(self._answers)
            await collection.replace_one({"_id": key}, {**document, "expires_at": expires_at}, upsert=True)

    async def answer(self, key: str, *, now: UnixMs) -> Answer | None:
        """See `RequestStore.answer`."""
        with translated(self._link.where):
            found = await self._link.collection(self._answers).find_one({"_id": key})
        if found is None or found["expires_at"] <= now:
            return None
        return Answer(status=found["status"], body=bytes(found["body"]), headers=json.loads(found["headers"]))

    async def prune(self, *, now: UnixMs, before: UnixMs, limit: int) -> int:
        """See `RequestStore.prune`. Killed in here: some are gone."""
        over = await self._remove(self._answers, {"expires_at": {"$lte": now}}, limit)
        return over + await self._remove(self._writes, {"_id": {"$lt": f"rq_{before:012x}"}}, limit)

    async def _remove(self, name: str, wanted: Document, limit: int) -> int:
        with translated(self._link.where, fate="Some may be gone."):
            collection = self._link.collection(name)
            ids = [each["_id"] for each in await collection.find(wanted, {"_id": 1}).limit(limit).to_list()]
            return (await collection.delete_many({"_id": {"$in": ids}})).deleted_count if ids else 0


def _kept(text: str) -> str:
    return json.dumps(text)[1:-1]


def _write(document: dict[str, Any]) -> Write:
    given = {name: document[name] for name in _NAMES}
    given |= {name: json.loads(f'"{given[name]}"') for name in (*_TEXTS, "address", "result")}
    return Write(id=document["_id"], **given)
