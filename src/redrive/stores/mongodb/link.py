"""One database of a MongoDB, by an asynchronous client and, for what must block, by a plain one.

Every write is acknowledged by a majority and journaled; every read is the primary's. The driver repeats a write by
itself only where the server can tell that it is the same one.

    mongodb://user:password@host1,host2/database?prefix=redrive&claims=processed_events&letters=dead_letter_events

`prefix`, `claims` and `letters` name collections; all other options are the driver's own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from pymongo import AsyncMongoClient, MongoClient, ReadPreference
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, InvalidURI, PyMongoError
from pymongo.uri_parser import parse_uri
from pymongo.write_concern import WriteConcern

from redrive.core.units import Millis
from redrive.errors import ConfigurationError
from redrive.stores.mongodb.failures import duplicates_of, translated

SELECT_MS: Final[Millis] = 2_000
"""How long a call waits for a server that can take it."""
ANSWER_MS: Final[Millis] = 10_000
"""How long for its answer: a server that stands still must not hold a worker up for ever."""
AT_ONCE: Final = 50
"""Questions that are on their way to a server that wants each of them alone."""
CLAIMS: Final = "processed_events"
LETTERS: Final = "dead_letter_events"
PREFIX: Final = "redrive"

Document = dict[str, Any]
_SAFE: Final[WriteConcern] = WriteConcern(w="majority", j=True)
_OWN: Final = ("prefix", "claims", "letters")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """What a URL names. `url` has redrive's own options taken out; `where` is for people: no password in it."""

    url: str
    where: str
    database: str
    prefix: str
    claims: str
    letters: str


def parse(url: str) -> Address:
    """The parts of a mongodb:// URL. Raises `ConfigurationError` naming what is wrong."""
    parts = urlsplit(url)
    options = parse_qsl(parts.query, keep_blank_values=True)
    own = {name: value for name, value in options if name in _OWN}
    rest = urlencode([(name, value) for name, value in options if name not in _OWN])
    plain = parts._replace(query=rest).geturl()
    where = parts.netloc.rpartition("@")[2] or "localhost"
    try:
        database = parse_uri(plain, validate=True)["database"] if parts.scheme == "mongodb" else parts.path.strip("/")
    except (PyMongoError, ValueError) as error:
        raise ConfigurationError(f"The URL of MongoDB at {where} is not right: {error}.") from None
    if not database:
        raise ConfigurationError(
            f"The URL of MongoDB at {where} names no database.", hint='Write "mongodb://host:27017/database".'
        )
    names = {
        "prefix": own.get("prefix", PREFIX),
        "claims": own.get("claims", CLAIMS),
        "letters": own.get("letters", LETTERS),
    }
    for name, value in names.items():
        if not value or "$" in value or "\x00" in value or value.startswith("system."):
            raise ConfigurationError(f'The URL\'s {name} is "{value}": no name of a collection.')
    return Address(url=plain, where=where, database=database, **names)


class Link:
    """The connection that the stores of one app share; the last of its users to close it disconnects."""

    def __init__(self, url: str, *, is_scanned: bool | None = None) -> None:
        """Connects to nothing yet. Raises `ConfigurationError` for a URL that is none. `is_scanned` None: the server is
        asked.
        """
        self.address = parse(url)
        self.is_scanned = bool(is_scanned)
        """Whether the server reads a whole collection for every question but one for a single `_id` (FerretDB 1.x)."""
        self._is_told = is_scanned is not None
        self._client: AsyncMongoClient[Document] | None = None
        self._blocking: MongoClient[Document] | None = None
        self._users: set[int] = set()
        self._making = threading.Lock()

    @property
    def where(self) -> str:
        """The server, for messages."""
        return self.address.where

    async def open(self, user: object) -> None:
        """Connect and look whether the server answers. Raises `ConfigurationError` or `BrokerUnavailableError`."""
        if not self._users:
            with translated(self.where):
                client = self._made(AsyncMongoClient)
                try:
                    await client.admin.command("ping")
                    if not self._is_told:
                        version = (await client.admin.command("buildInfo")).get("ferretdbVersion", "")
                        self.is_scanned = str(version).startswith("v1.")
                except BaseException:
                    await client.close()
                    raise
            self._client = client
        self._users.add(id(user))

    async def close(self, user: object) -> None:
        """Disconnect when nobody needs it any more. May be called twice."""
        self._users.discard(id(user))
        if self._users:
            return
        client, self._client = self._client, None
        blocking, self._blocking = self._blocking, None
        if client is not None:
            await client.close()
        if blocking is not None:
            blocking.close()

    def collection(self, name: str) -> AsyncCollection[Document]:
        """One collection of the database."""
        assert self._client is not None, "the store is not open"
        database = self._client[self.address.database]
        return database.get_collection(name, write_concern=_SAFE, read_preference=ReadPreference.PRIMARY)

    def blocking(self, name: str) -> Collection[Document]:
        """The same for a thread that may block, by a client of its own."""
        with self._making:
            # Several threads may renew at once; each client but one would never be closed.
            if self._blocking is None:
                self._blocking = self._made(MongoClient)
            client = self._blocking
        database = client[self.address.database]
        return database.get_collection(name, write_concern=_SAFE, read_preference=ReadPreference.PRIMARY)

    def own(self, name: str) -> str:
        """The name of a collection that only redrive reads."""
        return f"{self.address.prefix}_{name}"

    def _made(self, client: Any) -> Any:
        given = {name.lower() for name, _ in parse_qsl(urlsplit(self.address.url).query)}
        options: Mapping[str, Any] = {
            "serverSelectionTimeoutMS": SELECT_MS,
            "connectTimeoutMS": SELECT_MS,
            "socketTimeoutMS": ANSWER_MS,
            "appname": "redrive",
        }
        try:
            return client(
                self.address.url, **{name: value for name, value in options.items() if name.lower() not in given}
            )
        except (InvalidURI, ValueError) as error:
            raise ConfigurationError(f"The URL of MongoDB at {self.where} is not right: {error}.") from None


async def by_ids(
    collection: AsyncCollection[Document],
    ids: Sequence[str],
    fields: Mapping[str, Any] | None = None,
    *,
    is_scanned: bool,
) -> dict[str, Document]:
    """The documents with these `_id`s that are there. `is_scanned`: each is asked for alone, a few at a time."""
    if not is_scanned:
        return {each["_id"]: each async for each in collection.find({"_id": {"$in": list(ids)}}, fields)} if ids else {}
    found: dict[str, Document] = {}
    for start in range(0, len(ids), AT_ONCE):
        asked = (collection.find_one({"_id": each}, fields) for each in ids[start : start + AT_ONCE])
        found |= {each["_id"]: each for each in await asyncio.gather(*asked) if each is not None}
    return found


async def insert_new(collection: AsyncCollection[Document], documents: Sequence[Document]) -> set[int]:
    """Insert those whose keys are not there; the places of the others. Which of many writers comes first, a unique key
    decides: the one thing that every server does in one step.
    """
    if not documents:
        return set()
    try:
        await collection.insert_many(documents, ordered=False)
    except BulkWriteError as error:
        return duplicates_of(error)
    return set()
