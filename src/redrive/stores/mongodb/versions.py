"""Records that many may want to change at once, each change an insert that only one can make.

A record is kept as documents of one `scope`, one for each `generation`; the highest is the record. To change it:

    1 read      the generations of the scope
    2 insert    generation + 1 under an `_id` made of both: of all who try, one succeeds
    3 look      whether it is the highest, and the one it was made from is still there; else take it back, and again
    4 tidy      remove the generations below

Compare-and-set by an update would be shorter, and wrong where the server looks first and writes then (FerretDB 1.x):
two takers of one lost lease would both win. A unique key holds everywhere.

Why step 3: a generation is removed once it is superseded, so its `_id` is free again; whoever read it long ago could
insert its successor a second time. He then finds a higher one, or misses the one he came from. A record that is pruned
goes with its highest generation, so the same look tells.

Failure by failure. Killed between 2 and 3: the change is there and nobody was told; to a claim that is a lost start,
over when its lease is. Killed between 3 and 4: an old generation stays beside the record until the next change. The
answer to 2 was lost: a claim takes its insert back with its next call, which brings back the generation below.

Changes are made by generators that say what to ask of the server, so that the event loop and a blocking thread follow
one and the same protocol. Round trips for a batch: three where the records are new, four else; once more for each time
that somebody else was quicker, at most `MAX_ROUNDS`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pymongo import DeleteOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, PyMongoError

from redrive.errors import BrokerUnavailableError
from redrive.stores.mongodb.failures import duplicates_of, translated
from redrive.stores.mongodb.link import Document, Link, insert_new

MAX_ROUNDS: Final = 200
"""Tries of one batch. Each failed one means that somebody else made a change of the same record."""
MAX_BATCH: Final = 500
"""Records changed in one go."""
MAX_LEFT: Final = 10_000
"""Documents remembered for removal."""
_ORDER: Final = [("redrive.scope", 1), ("redrive.generation", 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Ask for all generations of these scopes, lowest first."""

    scopes: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert:
    """Insert; the answer is the places of those that were there already."""

    documents: Sequence[Document]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Remove what these filters name, one document each. `is_tidying`: it may as well be done later."""

    wanted: Sequence[Document]
    is_tidying: bool = False


Ask: TypeAlias = "Read | Insert | Remove"
Steps: TypeAlias = "Generator[Ask, Any, None]"
Change: TypeAlias = "Callable[[Document | None], Document | None]"
"""What a record becomes; None: it stays as it is. May be called several times, the last call counts."""


def scope_of(*names: str) -> str:
    """The scope of a record with these names: the same length for all, and safe in any server."""
    digest = hashlib.sha256(b"\x00".join(b"%d:" % len(name) + name.encode("utf-8", "surrogatepass") for name in names))
    return digest.hexdigest()[:40]


def id_of(scope: str, generation: int) -> str:
    """The id of one generation."""
    return f"{scope}-{generation}"


def generation_in(document: Document) -> int:
    """Its generation."""
    return int(document["redrive"]["generation"])


def changing(wanted: Mapping[str, Change]) -> Steps:
    """The steps that make these changes, each of another scope. Raises `BrokerUnavailableError` where others were
    always quicker.
    """
    left = dict(wanted)
    for _ in range(MAX_ROUNDS):
        found = _by_scope((yield Read(scopes=list(left))))
        made = _made(left, found)
        if made:
            taken = yield Insert(documents=made)
            yield from _settled([each for place, each in enumerate(made) if place not in taken], left, found)
        if not left:
            return
    raise BrokerUnavailableError(
        f"{len(left)} records were changed by others {MAX_ROUNDS} times in a row. Nothing is known to have happened to "
        "them.",
        hint="It is tried again by itself.",
    )


def _made(left: dict[str, Change], found: Mapping[str, Sequence[Document]]) -> list[Document]:
    """The next generations; a record that stays as it is leaves `left`."""
    made = []
    for scope, change in list(left.items()):
        before = found.get(scope, ())
        document = change(before[-1] if before else None)
        if document is None:
            del left[scope]
        else:
            made.append(_stamped(document, scope, 1 + (generation_in(before[-1]) if before else 0)))
    return made


def _settled(inserted: Sequence[Document], left: dict[str, Change], found: Mapping[str, Sequence[Document]]) -> Steps:
    """Look which inserts hold, and take the others back; a record that is changed leaves `left`."""
    if not inserted:
        return
    after = _by_scope((yield Read(scopes=[document["redrive"]["scope"] for document in inserted])))
    back, below = [], []
    for document in inserted:
        scope = document["redrive"]["scope"]
        if _holds(document, after.get(scope, []), made_from=found.get(scope, [])):
            del left[scope]
            below += [each["_id"] for each in after[scope][:-1]]
        else:
            back.append(_exactly(document))
    if back:
        yield Remove(wanted=back)
    if below:
        yield Remove(wanted=[{"_id": each} for each in below], is_tidying=True)


def _stamped(document: Document, scope: str, generation: int) -> Document:
    inner = {**document["redrive"], "scope": scope, "generation": generation, "mark": secrets.token_hex(8)}
    return {**document, "_id": id_of(scope, generation), "redrive": inner}


def _exactly(document: Document) -> Document:
    """The filter of this very insert: somebody else's of the same generation has the same id."""
    return {"_id": document["_id"], "redrive.mark": document["redrive"]["mark"]}


def _by_scope(documents: Sequence[Document]) -> dict[str, list[Document]]:
    found: dict[str, list[Document]] = {}
    for document in sorted(documents, key=generation_in):
        found.setdefault(document["redrive"]["scope"], []).append(document)
    return found


def _holds(document: Document, after: Sequence[Document], *, made_from: Sequence[Document]) -> bool:
    ids = [each["_id"] for each in after]
    return ids[-1:] == [document["_id"]] and (not made_from or made_from[-1]["_id"] in ids)


class Versions:
    """The records of one collection."""

    def __init__(self, link: Link, collection: str) -> None:
        self._link = link
        self._name = collection
        self._left: list[Document] = []

    async def open(self) -> None:
        """Make the index that finds a record."""
        with translated(self._link.where):
            await self.collection.create_index(_ORDER, name="redrive_record")

    @property
    def collection(self) -> AsyncCollection[Document]:
        """Where they lie."""
        return self._link.collection(self._name)

    async def get(self, *scopes: str) -> dict[str, Document]:
        """The records of these scopes, as far as there are any."""
        with translated(self._link.where):
            documents = await self._read(scopes)
        return {scope: found[-1] for scope, found in _by_scope(documents).items()}

    async def change(self, wanted: Mapping[str, Change], *, takes_back: bool = False) -> None:
        """Make changes, `MAX_BATCH` at a time. `takes_back`: where this raises and an insert's answer was lost, the
        next call takes it back. Only for what nobody else may build on: a claim, never the end of one.
        """
        scopes = list(wanted)
        for start in range(0, len(scopes), MAX_BATCH):
            await self._carry_out(
                changing({scope: wanted[scope] for scope in scopes[start : start + MAX_BATCH]}), takes_back
            )

    async def _carry_out(self, steps: Steps, takes_back: bool) -> None:  # noqa: FBT001
        with translated(self._link.where):
            await self._remove_left()
            answer: Any = None
            while True:
                try:
                    ask = steps.send(answer)
                except StopIteration:
                    return
                answer = await self._answer(ask, takes_back=takes_back)

    async def _answer(self, ask: Ask, *, takes_back: bool) -> Any:
        match ask:
            case Read():
                return await self._read(ask.scopes)
            case Insert():
                try:
                    return await insert_new(self.collection, ask.documents)
                except BaseException:
                    # Also a cancelled call: nobody will know that he has it.
                    if takes_back:
                        self._remember([_exactly(document) for document in ask.documents])
                    raise
            case Remove():
                await self._remove(ask)
                return None

    async def _remove(self, ask: Remove) -> None:
        try:
            await self.remove(ask.wanted)
        except PyMongoError:
            self._remember(ask.wanted)
            if not ask.is_tidying:
                raise

    async def _read(self, scopes: Sequence[str]) -> list[Document]:
        return await self.collection.find({"redrive.scope": {"$in": list(scopes)}}).sort(_ORDER).to_list()

    async def remove(self, wanted: Sequence[Document]) -> int:
        """Remove one document for each filter, in this order; how many went."""
        requests = [DeleteOne(each) for each in wanted]
        return (await self.collection.bulk_write(requests, ordered=True)).deleted_count if requests else 0

    def _remember(self, wanted: Sequence[Document]) -> None:
        if len(self._left) + len(wanted) <= MAX_LEFT:
            self._left += wanted

    async def _remove_left(self) -> None:
        if self._left:
            left, self._left = self._left, []
            try:
                await self.remove(left)
            except BaseException:
                self._remember(left)
                raise

    def change_blocking(self, wanted: Mapping[str, Change]) -> None:
        """`change` from a thread that may block. An insert whose answer was lost stays."""
        steps = changing(wanted)
        with translated(self._link.where):
            collection = self._link.blocking(self._name)
            answer: Any = None
            while True:
                try:
                    ask = steps.send(answer)
                except StopIteration:
                    return
                answer = _answer_blocking(collection, ask)


def _answer_blocking(collection: Collection[Document], ask: Ask) -> Any:
    match ask:
        case Read():
            return collection.find({"redrive.scope": {"$in": list(ask.scopes)}}).sort(_ORDER).to_list()
        case Insert():
            try:
                collection.insert_many(ask.documents, ordered=False)
            except BulkWriteError as error:
                return duplicates_of(error)
            return set()
        case Remove():
            collection.bulk_write([DeleteOne(each) for each in ask.wanted], ordered=True)
            return None
