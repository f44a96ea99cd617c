"""The list of letters for a server that uses no index: what a page shows of every letter, in few documents.

FerretDB 1.x reads a whole collection for every question but one for a single `_id`, and a letter's document takes it
half a millisecond. There, lists, filters, counts and groups read these instead:

    {prefix}_letter_entries    the summaries of up to `BUCKET` letters, packed. Inserted, never changed.
    {prefix}_letter_list       the `_id` of each of those: who has read one does not read it again

A document of entries counts once it is in the list, and no more once it is not.

An entry tells of one life of a letter: how it stands after so many moves, or that it is gone. Entries are united, not
replaced: of two of one life, "gone" counts, and else the one with more moves. So it does not matter who reads what
twice or in which order, and documents may be merged by anybody at any time: the merged one is inserted, then its
sources are removed.

Authoritative are the letters and their moves (`letters.py`). The entry of a new letter is written after it, that of a
move after the move and before the letter's own state. Failure by failure. Killed after a letter was stored: it is not
listed until it is put again, which the next delivery of its message does, or `relist` runs (`redrive dlq stats
--recount`). Killed after a move: the list shows the state before until the letter is looked at or moved again. Killed
after the entry of a move: the list is right, and the letter's own state follows in the same way. Killed after a
removal: the list shows the letter until the next prune that takes it. Killed while merging: entries stand twice, which
changes nothing.
"""

from __future__ import annotations

import asyncio
import secrets
import zlib
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from bson import Binary
from pymongo.asynchronous.collection import AsyncCollection

from redrive.core.letters.selection import Place
from redrive.core.ports import Clock
from redrive.core.units import Millis, UnixMs
from redrive.stores.mongodb.letter_documents import SUMMARY_FIELDS
from redrive.stores.mongodb.link import Document, Link, by_ids, insert_new

BUCKET: Final = 1_000
"""Entries of one document at most."""
BUCKET_BYTES: Final = 2 * 1024 * 1024
"""Of its entries, before they are packed."""
TIDY_EVERY: Final = 64
"""Of so many documents that are added, one is followed by a merge."""
FEW: Final = 64
"""New documents that are asked for one by one."""
KEPT_GONE_MS: Final[Millis] = 3_600_000
"""So long it is remembered that a letter is gone: longer than any merge takes."""
MAX_UNREAD_MS: Final[Millis] = KEPT_GONE_MS // 2
"""Who has not read for so long reads all again: that a letter is gone may have been forgotten meanwhile. The rest of
`KEPT_GONE_MS` is for clocks that differ, and for a read that takes long.
"""
MAX_TRIES: Final = 20
_READY: Final = "ready"
"""The document that says that all letters are listed."""
_PLAIN: Final = [name.partition(".")[2] for name in SUMMARY_FIELDS if "." in name]


class LetterList:
    """What this process knows of the list, and the way to the rest. Used where `Link.is_scanned`."""

    def __init__(self, link: Link, *, clock: Clock) -> None:
        self._link = link
        self._clock = clock
        self._reading = asyncio.Lock()
        self._known: set[str] = set()
        self._standing: dict[str, Document] = {}
        self._gone: set[str] = set()
        self._sorted: list[Document] | None = None
        self._read_at: UnixMs = clock.now()

    @property
    def is_used(self) -> bool:
        """Whether lists read it."""
        return self._link.is_scanned

    @property
    def _names(self) -> AsyncCollection[Document]:
        return self._link.collection(self._link.own("letter_list"))

    @property
    def _pieces(self) -> AsyncCollection[Document]:
        return self._link.collection(self._link.own("letter_entries"))

    # ------------------------------------------------------------------------------------------- reading

    async def all(self) -> list[Document]:
        """All letters in order of death, as `SUMMARY_FIELDS` has them. Nobody may change what it gives."""
        async with self._reading:
            await self._read_on()
            if self._sorted is None:
                newest = {each["_id"]: each for each in sorted(self._standing.values(), key=_number)}
                self._sorted = sorted(newest.values(), key=_place)
            return self._sorted

    async def lives(self) -> dict[str, str]:
        """The lives of all letters that are listed, by `_id`."""
        return {each["_id"]: each["redrive"]["life"] for each in await self.all()}

    async def _read_on(self) -> None:
        now = self._clock.now()
        if abs(now - self._read_at) > MAX_UNREAD_MS:
            self._forget()
        for _ in range(MAX_TRIES):
            there = await self._listed()
            fresh = there - self._known
            found = await self._read(fresh)
            for piece in found.values():
                self._take(_entries(piece))
            self._known = (self._known & there) | found.keys()
            if fresh <= found.keys():
                self._read_at = now
                return
            # Somebody merged what was to be read: it stands in a document that is read now.

    def _forget(self) -> None:
        self._known, self._standing, self._gone, self._sorted = set(), {}, set(), None

    async def _listed(self) -> set[str]:
        return {each["_id"] async for each in self._names.find({})} - {_READY}

    async def _read(self, names: Collection[str]) -> dict[str, Document]:
        if len(names) <= FEW:
            return await by_ids(self._pieces, sorted(names), is_scanned=True)
        return {each["_id"]: each async for each in self._pieces.find({}) if each["_id"] in names}

    def _take(self, entries: Iterable[Document]) -> None:
        for entry in entries:
            life = entry["redrive"]["life"]
            self._sorted = None
            if "gone" in entry:
                self._gone.add(life)
                self._standing.pop(life, None)
            elif life not in self._gone:
                self._standing[life] = _later(self._standing.get(life), entry)

    # ------------------------------------------------------------------------------------------- writing

    async def add(self, documents: Sequence[Document], *, are_gone: bool = False) -> None:
        """List these letters as they stand now. Killed before the end: some are listed."""
        if not documents or not self.is_used:
            return
        gone = {"gone": self._clock.now()} if are_gone else {}
        entries = [{**_summary(document), **gone} for document in documents]
        await self._insert(entries)
        if secrets.randbelow(TIDY_EVERY) == 0:
            await self.tidy()

    async def tidy(self) -> None:
        """Merge small documents, or all where much of what they say is out of date. Killed in here: entries stand
        twice.
        """
        read = {name: _entries(piece) for name, piece in (await self._read(await self._listed())).items()}
        is_stale = sum(map(len, read.values())) > 2 * len(_united(read.values())) + BUCKET
        sources = {name: entries for name, entries in read.items() if is_stale or len(entries) < BUCKET // 2}
        if len(sources) < 2:  # noqa: PLR2004 - one is merged already
            return
        left = _united(sources.values())
        if is_stale:
            since = self._clock.now() - KEPT_GONE_MS
            left = [entry for entry in left if entry.get("gone", since) >= since]
        if left:
            await self._insert(left)
        for collection in (self._names, self._pieces):
            for name in sources:
                await collection.delete_one({"_id": name})

    async def _insert(self, entries: Sequence[Document]) -> None:
        pieces = [{**each, "at": self._clock.now()} for each in _packed(entries)]
        await self._pieces.insert_many(pieces)
        await self._names.insert_many([{"_id": each["_id"]} for each in pieces])

    # ------------------------------------------------------------------------------------------- repair

    async def open(self, letters: AsyncCollection[Document]) -> None:
        """List what is there from before there was a list. Killed in here: it is done again."""
        if self.is_used and await self._names.find_one({"_id": _READY}) is None:
            await self.relist(letters)
            await insert_new(self._names, [{"_id": _READY}])

    async def relist(self, letters: AsyncCollection[Document]) -> list[Document]:
        """Compare the list with the letters and mend it; what was wrong. Reads every letter: minutes for many."""
        # First the list: what it has was stored before, so that whoever is not among the letters read later is gone.
        listed = {each["redrive"]["life"]: each for each in await self.all()}
        stored: set[str] = set()
        missing: list[Document] = []
        async for document in letters.find({}, SUMMARY_FIELDS, batch_size=BUCKET):
            life = document["redrive"]["life"]
            stored.add(life)
            if life not in listed or listed[life]["redrive"]["moves"] < document["redrive"]["moves"]:
                missing.append(document)
        lost = [each for life, each in listed.items() if life not in stored]
        await self.add(missing)
        await self.add(lost, are_gone=True)
        await self._drop_unlisted()
        return [*missing, *lost]

    async def _drop_unlisted(self) -> None:
        """Entries of somebody who was killed: whoever made them an hour ago has listed them, or never will."""
        since = self._clock.now() - KEPT_GONE_MS
        old = {each["_id"] async for each in self._pieces.find({}, {"at": 1}) if each["at"] < since}
        for name in old - await self._listed():
            await self._pieces.delete_one({"_id": name})


async def one_by_one(found: Sequence[Document]) -> AsyncIterator[Document]:
    """What is read already, as a cursor gives it; others run in between."""
    for place, each in enumerate(found):
        if place % BUCKET == BUCKET - 1:
            await asyncio.sleep(0)
        yield each


def _summary(document: Mapping[str, Any]) -> Document:
    own = document["redrive"]
    return {
        "_id": document["_id"],
        "reviewState": document["reviewState"],
        "redrive": {name: own[name] for name in _PLAIN if name in own},
    }


def _later(one: Document | None, other: Document) -> Document:
    return other if one is None or one["redrive"]["moves"] <= other["redrive"]["moves"] else one


def _united(pieces: Iterable[Sequence[Document]]) -> list[Document]:
    """One entry for each life."""
    found: dict[str, Document] = {}
    for entry in (entry for entries in pieces for entry in entries):
        life = entry["redrive"]["life"]
        before = found.get(life)
        if before is None or "gone" not in before:
            found[life] = entry if "gone" in entry else _later(before, entry)
    return list(found.values())


def _packed(entries: Sequence[Document]) -> Iterator[Document]:
    """As documents of the list."""
    texts: list[bytes] = []
    size = 0
    for entry in entries:
        text = msgspec.json.encode(entry, enc_hook=int)  # the driver has a kind of int of its own
        if texts and (len(texts) >= BUCKET or size + len(text) > BUCKET_BYTES):
            yield _piece(texts)
            texts, size = [], 0
        texts.append(text)
        size += len(text)
    yield _piece(texts)


def _piece(texts: Sequence[bytes]) -> Document:
    return {"_id": secrets.token_hex(12), "entries": Binary(zlib.compress(b"[" + b",".join(texts) + b"]", 1))}


def _entries(piece: Document) -> list[Document]:
    found: list[Document] = msgspec.json.decode(zlib.decompress(piece["entries"]))
    return found


def _number(document: Document) -> int:
    return int(document["redrive"]["number"])


def _place(document: Document) -> Place:
    return document["redrive"]["dead_lettered_at"], document["redrive"]["number"]
