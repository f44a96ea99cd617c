"""The list of letters for a server that uses no index: what a page shows of every letter, in few documents.

FerretDB 1.x reads a whole collection for every question, and a letter's document takes it half a millisecond; where a
single `_id` is asked for, its database looks through all of them, forty times as fast. Only an insert has an index.
There, lists, filters, counts and groups read these instead, and who moves a letter does (`letters.py`):

    {prefix}_letter_entries    the summaries of up to `BUCKET` letters, packed. Inserted, never changed.
    {prefix}_letter_list       the `_id` of each of those: who has read one does not read it again

A document of entries counts once it is in the list, and no more once it is not.

An entry tells of one life of a letter: how it stands after so many moves, or, without a summary, that it is gone.
Entries are united, not replaced: of two of one life, "gone" counts, and else the one with more moves. So it does not
matter who reads what twice or in which order, and documents may be merged by anybody at any time: the merged one is
inserted, then its sources are removed. In between it is looked whether all of them are still there. Where not, somebody
else has merged them, and may have left out what this one read: it is taken back.

That a letter is gone is forgotten by a merge that has read the whole list and found for an hour nothing else of it.
Where something else stands, a merge takes that out and notes "gone" anew: another merge may have it in hand, and one
that is killed may leave it.

Authoritative are the letters and their moves (`letters.py`). The entry of a new letter is written after it, that of a
move after the move and before the letter's own state. Failure by failure. Killed after a letter was stored: it is not
listed until it is put again, which the next delivery of its message does, or `relist` runs (`redrive dlq stats
--recount`). Killed after a move: the list shows the state before until the letter is looked at or moved again. Killed
after the entry of a move: the list is right, and the letter's own state follows in the same way. Killed after a
removal: the list shows the letter until the next prune that takes it. Killed after "gone" was listed: summaries of what
is gone are hidden, and stay in the list until they are merged. Killed while merging: entries stand twice, which changes
nothing.
"""

from __future__ import annotations

import asyncio
import secrets
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from bson import Binary
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import PyMongoError

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
"""Of so many documents that are added, one begins a merge, which goes on aside."""
FEW: Final = 8
"""New documents that are asked for one by one; for more, one look at all of them is less."""
KEPT_GONE_MS: Final[Millis] = 3_600_000
"""So long it is remembered that a letter is gone, since nothing else was told of it: longer than any merge takes."""
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
        self._lives: defaultdict[str, set[str]] = defaultdict(set)
        self._gone: set[str] = set()
        self._sorted: list[Document] | None = None
        self._read_at: UnixMs = clock.now()
        self._tidying: asyncio.Task[None] | None = None

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

    async def one(self, name: str) -> Document | None:
        """The letter with this `_id`, as `all` has it. None: it is not listed."""
        async with self._reading:
            await self._read_on()
            return max((self._standing[life] for life in self._lives.get(name, ())), key=_number, default=None)

    async def is_gone(self, life: str) -> bool:
        """Whether somebody removed this letter, an hour ago at most."""
        async with self._reading:
            await self._read_on()
            return life in self._gone

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
                await asyncio.sleep(0)
            self._known = (self._known & there) | found.keys()
            if fresh <= found.keys():
                self._read_at = now
                return
            # Somebody merged what was to be read: it stands in a document that is read now.

    def _forget(self) -> None:
        self._known, self._standing, self._gone, self._sorted = set(), {}, set(), None
        self._lives.clear()

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
                self._lives[entry["_id"]].discard(life)
                self._standing.pop(life, None)
            elif life not in self._gone:
                self._lives[entry["_id"]].add(life)
                self._standing[life] = _later(self._standing.get(life), entry)

    # ------------------------------------------------------------------------------------------- writing

    async def add(self, documents: Sequence[Document]) -> None:
        """List these letters as they stand now. Killed before the end: some are listed."""
        if documents and self.is_used:
            await self._add([_summary(document) for document in documents])

    async def remove(self, documents: Sequence[Document]) -> None:
        """These letters are gone: nothing of what they said stands in the list any more. Killed before the end: they
        are not shown, or shown until the next prune that takes them.
        """
        now = self._clock.now()
        gone = [{"_id": each["_id"], "redrive": {"life": each["redrive"]["life"]}, "gone": now} for each in documents]
        await self._add(gone)
        lives = {each["redrive"]["life"] for each in gone}
        for _ in range(MAX_TRIES):
            read = await self._whole()
            if read is not None:
                telling = {name: entries for name, entries in read.items() if lives & _told(entries)}
                if not telling:
                    return
                united = _united(telling.values(), at=now)
                await self._merge(
                    telling, [each for each in united if "gone" in each or each["redrive"]["life"] not in lives]
                )

    async def _add(self, entries: Sequence[Document]) -> None:
        self._took(await self._insert(entries), entries)
        if secrets.randbelow(TIDY_EVERY) == 0 and (self._tidying is None or self._tidying.done()):
            self._tidying = asyncio.create_task(self._tidy_aside())

    async def _tidy_aside(self) -> None:
        # Where the server is away, it is done another time.
        with suppress(PyMongoError):
            await self.tidy()

    async def close(self) -> None:
        """End what is done aside. May be called twice."""
        if self._tidying is not None:
            await asyncio.wait([self._tidying])
            self._tidying = None

    async def tidy(self) -> None:
        """Merge small documents, or all where much of what they say is out of date. Killed in here: entries stand
        twice.
        """
        read = await self._whole()
        if read is None:
            return
        now = self._clock.now()
        whole = _united(read.values(), at=now)
        forgotten = {each["redrive"]["life"] for each in whole if each.get("gone", now) < now - KEPT_GONE_MS}
        is_stale = sum(map(len, read.values())) > 2 * (len(whole) - len(forgotten)) + BUCKET
        sources = {name: entries for name, entries in read.items() if is_stale or len(entries) < BUCKET // 2}
        if len(sources) > 1:  # one is merged already
            united = _united(sources.values(), at=now)
            await self._merge(sources, [each for each in united if each["redrive"]["life"] not in forgotten])

    async def _whole(self) -> dict[str, list[Document]] | None:
        """All that the list says. None: somebody merged it meanwhile."""
        names = await self._listed()
        pieces = await self._read(names)
        read: dict[str, list[Document]] = {}
        for name, piece in pieces.items():
            read[name] = _entries(piece)
            await asyncio.sleep(0)
        return read if read.keys() == names else None

    async def _merge(self, sources: Collection[str], left: Sequence[Document]) -> None:
        """Put what is left in place of its sources; nothing changes where somebody else has merged one of them."""
        merged = await self._insert(left)
        is_mine = await self._listed() >= set(sources)
        if is_mine:
            self._took(merged, left)
        removed = sources if is_mine else merged
        for collection in (self._names, self._pieces):
            for name in removed:
                await collection.delete_one({"_id": name})

    async def _insert(self, entries: Sequence[Document]) -> list[str]:
        """The names of the documents that tell this now."""
        if not entries:
            return []
        pieces = [{**each, "at": self._clock.now()} for each in _packed(entries)]
        await self._pieces.insert_many(pieces)
        await self._names.insert_many([{"_id": each["_id"]} for each in pieces])
        return [each["_id"] for each in pieces]

    def _took(self, names: Collection[str], entries: Sequence[Document]) -> None:
        """Who wrote it need not read it."""
        self._known |= set(names)
        self._take(entries)

    # ------------------------------------------------------------------------------------------- repair

    async def open(self, letters: AsyncCollection[Document]) -> None:
        """Read the list, so that no page has to wait for that. First list what is there from before there was one;
        killed in here: it is done again.
        """
        if not self.is_used:
            return
        if await self._names.find_one({"_id": _READY}) is None:
            await self.relist(letters)
            await insert_new(self._names, [{"_id": _READY}])
        await self.all()

    async def relist(self, letters: AsyncCollection[Document]) -> list[Document]:
        """Compare the list with the letters and mend it; what was wrong. The letters' own states, which follow, are
        brought up to it. Reads every letter: minutes for many.
        """
        # First the list: what it has was stored before, so that whoever is not among the letters read later is gone.
        listed = {each["redrive"]["life"]: each for each in await self.all()}
        stored: set[str] = set()
        missing: list[Document] = []
        behind: list[Document] = []
        async for document in letters.find({}, SUMMARY_FIELDS, batch_size=BUCKET):
            life, moves = document["redrive"]["life"], document["redrive"]["moves"]
            stored.add(life)
            if life not in listed or listed[life]["redrive"]["moves"] < moves:
                missing.append(document)
            elif listed[life]["redrive"]["moves"] > moves:
                behind.append(listed[life])
        lost = [each for life, each in listed.items() if life not in stored]
        await self.add(missing)
        if lost:
            await self.remove(lost)
        for each in behind:
            await letters.update_one({"_id": each["_id"]}, {"$set": state_of(each)})
        await self._drop_unlisted()
        return [*missing, *lost]

    async def _drop_unlisted(self) -> None:
        """Entries of somebody who was killed: whoever made them an hour ago has listed them, or never will."""
        since = self._clock.now() - KEPT_GONE_MS
        old = {each["_id"] async for each in self._pieces.find({}, {"at": 1}) if each["at"] < since}
        for name in old - await self._listed():
            await self._pieces.delete_one({"_id": name})


def state_of(document: Document) -> Document:
    """What a move changes of a letter, as an update sets it."""
    own = {f"redrive.{name}": document["redrive"][name] for name in ("moves", "replays", "sent_closed")}
    return {"reviewState": document["reviewState"], **own}


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


def _told(entries: Iterable[Document]) -> set[str]:
    """The lives of which these tell more than that they are gone."""
    return {entry["redrive"]["life"] for entry in entries if "gone" not in entry}


def _united(pieces: Collection[Sequence[Document]], *, at: UnixMs) -> list[Document]:
    """One entry for each life. `at`: when that is noted of those that are gone and were told of otherwise, too."""
    standing: dict[str, Document] = {}
    gone: dict[str, Document] = {}
    for entry in (entry for entries in pieces for entry in entries):
        life = entry["redrive"]["life"]
        if "gone" not in entry:
            standing[life] = _later(standing.get(life), entry)
        elif life not in gone or gone[life]["gone"] < entry["gone"]:
            gone[life] = entry
    return [
        *(entry for life, entry in standing.items() if life not in gone),
        *({**entry, "gone": at} if life in standing else entry for life, entry in gone.items()),
    ]


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
