"""MongoLetterStore: dead letters in `dead_letter_events`, one document each, never a body in a list.

    dead_letter_events        the letter (`letter_documents.py`)
    {prefix}_letter_pieces    what is too large for one document, stored before the letter
    {prefix}_letter_moves     what people did: `_id` is the letter's life and a running number
    {prefix}_letter_holds     the job that has a letter in hand: `_id` is the letter's
    {prefix}_letter_list      what lists read where the server uses no index (`letter_list.py`)

Authoritative for the review state is the last move: state and audit are one insert, under a number that only one of two
people can take. The letter's own `reviewState`, which lists and other tools read, is written after it; killed in
between, it shows the state before until the letter is looked at or moved again, which writes it.

A prune is a move like any other ("pruned", which nothing follows), so that a letter which somebody restores at that
moment stays. Killed after it: the letter is as good as gone; lists show it until the next prune that takes it.

A page is found by (death, number), which no two letters share: a unique index, and another number for the second.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Final

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import BulkWriteError, DocumentTooLarge

from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.review import moves
from redrive.core.letters.selection import OPEN_STATES, Place, Selection, cursor_at, has_headers, place_of
from redrive.core.ports import AuditEntry, Clock, LetterStats, Page, ReviewChange
from redrive.core.text import clean, cut
from redrive.core.units import UnixMs
from redrive.errors import BrokerUnavailableError
from redrive.stores.mongodb.failures import is_duplicate, translated
from redrive.stores.mongodb.groups import MongoGroupStore, sends_in
from redrive.stores.mongodb.letter_counts import counted
from redrive.stores.mongodb.letter_documents import (
    SUMMARY_FIELDS,
    documents_of,
    headers_in,
    id_in,
    letter_in,
    piece_id,
    summary_in,
    text_out,
    text_out_or_empty,
    without_snapshot,
)
from redrive.stores.mongodb.letter_list import LetterList, one_by_one, state_of
from redrive.stores.mongodb.letter_query import is_expired, is_sifted, listed_in, place_in, query_of
from redrive.stores.mongodb.link import Document, Link, by_ids, insert_new
from redrive.stores.mongodb.own_states import OwnStates

PAGE: Final = 500
"""Letters asked of the server in one go."""
FEW: Final = 4
"""Small documents that a server without an index is asked for one by one; for more, one look at all of them is less."""
MAX_TRIES: Final = 50
"""Tries of one move, or of one number: each failed one means that somebody else was quicker."""
PRUNED: Final = "pruned"
_ORDER: Final = [("redrive.dead_lettered_at", 1), ("redrive.number", 1)]
_KEYED: Final = {f"redrive.{name}": 1 for name in ("id", "queue", "key", "dead_lettered_at", "number")}
_INDEXED: Final = ("queue", "dead_letter_queue", "previous", "fingerprint", "key", "expires_at", "number")


class MongoLetterStore:
    """A `LetterStore` in MongoDB."""

    def __init__(self, link: Link, *, clock: Clock) -> None:
        self._link = link
        self._clock = clock
        self._last_number = 0
        self._list = LetterList(link, clock=clock)
        self._own_states = OwnStates(link)
        self.groups = MongoGroupStore(link, letters=link.address.letters, walk=self.walk, listed=self._list)

    async def open(self) -> None:
        """Connect. Raises `ConfigurationError` or `BrokerUnavailableError`."""
        await self._link.open(self)
        try:
            with translated(self._link.where):
                await self.letters.create_index(_ORDER, name="redrive_order", unique=True)
                for name in _INDEXED:
                    await self.letters.create_index([(f"redrive.{name}", 1)], name=f"redrive_{name}")
                await self._moves.create_index([("life", 1), ("n", 1)], name="redrive_moves")
                await self._list.open(self.letters)
            await self.groups.open()
        except BaseException:
            await self._link.close(self)
            raise

    async def close(self) -> None:
        """Disconnect. May be called twice."""
        await self._own_states.close()
        await self._list.close()
        await self._link.close(self)

    @property
    def letters(self) -> AsyncCollection[Document]:
        """The letters themselves."""
        return self._link.collection(self._link.address.letters)

    @property
    def holds(self) -> AsyncCollection[Document]:
        """Which job has which letter in hand."""
        return self._link.collection(self._link.own("letter_holds"))

    @property
    def _moves(self) -> AsyncCollection[Document]:
        return self._link.collection(self._link.own("letter_moves"))

    @property
    def _pieces(self) -> AsyncCollection[Document]:
        return self._link.collection(self._link.own("letter_pieces"))

    # ------------------------------------------------------------------------------------------------- keeping

    async def put(self, batch: Sequence[Letter]) -> None:
        """See `LetterStore.put`. Killed in here: some are stored, each whole; pieces of one may lie about."""
        unique: dict[str, Letter] = {}
        for letter in batch:
            unique.setdefault(letter.id, letter)
        made = [documents_of(letter, number=self._number(), life=secrets.token_hex(12)) for letter in unique.values()]
        with translated(self._link.where, fate="Some of these letters may be stored; storing them again is safe."):
            for _, pieces in made:
                for piece in pieces:
                    await self._pieces.insert_one(piece)
            left, fresh = [document for document, _ in made], []
            for _ in range(MAX_TRIES):
                if not left:
                    break
                left, stored = await self._store(left)
                fresh += stored
            if left:
                raise BrokerUnavailableError(
                    f"{len(left)} dead letters were not stored in MongoDB at {self._link.where} after {MAX_TRIES} "
                    "tries: others store the same ones. Storing them again is safe.",
                    hint="It is tried again by itself.",
                )
            await self._drop_pieces_of_none([(document, len(pieces)) for document, pieces in made if pieces])
            await self._list.add(fresh)
            if self._list.is_used:
                await self._list_again(unique.keys() - {text_out(each["redrive"]["id"]) for each in fresh})
        await self.groups.arrived(fresh)

    async def _list_again(self, there: Collection[str]) -> None:
        """Who stored these before may have been killed before they were listed."""
        lives = await self._list.lives() if there else {}
        found = await self._by_ids(self.letters, sorted({id_in(each) for each in there} - lives.keys()), SUMMARY_FIELDS)
        await self._list.add(list(found.values()))

    async def _by_ids(
        self, collection: AsyncCollection[Document], ids: Sequence[str], fields: Document | None = None
    ) -> dict[str, Document]:
        return await by_ids(collection, ids, fields, is_scanned=self._link.is_scanned)

    async def _store(self, documents: Sequence[Document]) -> tuple[list[Document], list[Document]]:
        """Store them. Those that have to be tried in another form, with another number or without what is refused; and
        those that are stored now.
        """
        for document in documents:
            if document["redrive"].get("again"):
                await self._finish_prune(document["_id"])
        try:
            await self.letters.insert_many([_clean(document) for document in documents], ordered=False)
        except DocumentTooLarge:
            if all("bare" in document["redrive"] for document in documents):
                raise
            return [without_snapshot(document) for document in documents], []
        except BulkWriteError as error:
            details = error.details or {}
            failed = {each["index"]: each for each in details.get("writeErrors", ())}
            refused = {place for place, each in failed.items() if not is_duplicate(each)}
            if not failed or details.get("writeConcernErrors") or _are_bare(documents, refused):
                raise
            there = await self._alive([documents[place]["_id"] for place in failed.keys() - refused])
            again = [without_snapshot(documents[place]) for place in sorted(refused)]
            for place in sorted(failed.keys() - refused):
                document = documents[place]
                if document["_id"] not in there:
                    own = {**document["redrive"], "number": self._number() + secrets.randbelow(1_000), "again": True}
                    again.append({**document, "redrive": own})
            return again, [document for place, document in enumerate(documents) if place not in failed]
        return [], list(documents)

    async def _drop_pieces_of_none(self, large: Sequence[tuple[Document, int]]) -> None:
        """The pieces of letters that were there already. Which copy was stored, only the server knows for sure."""
        if not large:
            return
        found = await self._by_ids(self.letters, [document["_id"] for document, _ in large], {"redrive.life": 1})
        kept = {each["redrive"]["life"] for each in found.values()}
        for document, count in large:
            if document["redrive"]["life"] not in kept:
                await self._drop_pieces(document["redrive"]["life"], count)

    async def _alive(self, ids: Sequence[str]) -> set[str]:
        """Those of these letters that are there, and not being pruned."""
        listed = await self._list.lives() if self._list.is_used else {}
        lives = {name: listed[name] for name in ids if name in listed}
        found = await self._by_ids(self.letters, [name for name in ids if name not in lives], {"redrive.life": 1})
        lives |= {name: each["redrive"]["life"] for name, each in found.items()}
        gone = await self._gone(list(lives.values()))
        return {name for name, life in lives.items() if life not in gone}

    async def _gone(self, lives: Sequence[str]) -> set[str]:
        if self._link.is_scanned and len(lives) <= FEW:
            trails = {life: await self._trail(life) for life in lives}
            return {life for life, trail in trails.items() if trail and trail[-1]["to"] == PRUNED}
        pruned = self._moves.find({"life": {"$in": list(lives)}, "to": PRUNED}, {"life": 1})
        return {each["life"] async for each in pruned}

    async def _finish_prune(self, letter_id: str) -> None:
        document = await self.letters.find_one({"_id": letter_id}, SUMMARY_FIELDS)
        if document is not None and await self._gone([document["redrive"]["life"]]):
            await self._remove([document])

    async def _drop_pieces(self, life: str, count: int) -> None:
        for place in range(count):
            await self._pieces.delete_one({"_id": piece_id(life, place)})

    def _number(self) -> int:
        self._last_number = max(self._last_number + 1, self._clock.now() * 1_000)
        return self._last_number

    async def get(self, letter_id: str) -> tuple[Letter, tuple[AuditEntry, ...]] | None:
        """See `LetterStore.get`."""
        with translated(self._link.where):
            document = await self.letters.find_one({"_id": id_in(letter_id)})
            if document is None:
                return None
            own = document["redrive"]
            trail = await self._trail(own["life"])
            if trail and trail[-1]["to"] == PRUNED:
                return None
            state = ReviewState(trail[-1]["to"] if trail else document["reviewState"])
            await self._write_state(document, trail)
            ids = [piece_id(own["life"], place) for place in range(own.get("pieces", 0))]
            pieces = [(await self._pieces.find_one({"_id": each}) or {})["exact"] for each in ids]
            job = (await self.holders([document["_id"]])).get(document["_id"])
        audit = tuple(
            AuditEntry(letter_id=letter_id, at=each["at"], actor=each["actor"], action=action, note=each["note"])
            for each in trail
            for action in each["steps"]
        )
        return letter_in(document, pieces, state=state, job=job), audit

    # ------------------------------------------------------------------------------------------------- finding

    async def find(self, selection: Selection, *, limit: int, cursor: str | None = None) -> Page:
        """See `LetterStore.find`."""
        after = None if cursor is None else place_of(cursor)
        with translated(self._link.where):
            found = [document async for document in self.walk(selection, after=after, limit=limit + 1)]
            page = found[:limit]
            jobs = await self.holders([document["_id"] for document in page])
        summaries = tuple(summary_in(document, job=jobs.get(document["_id"])) for document in page)
        return Page(letters=summaries, cursor=cursor_at(place_in(page[-1])) if len(found) > limit and page else None)

    async def walk(
        self, selection: Selection, *, after: Place | None = None, limit: int | None = None, up_to: int | None = None
    ) -> AsyncIterator[Document]:
        """The documents of the selected letters in order of death, by one cursor. `up_to`: none with a higher
        number.
        """
        wanted = 0
        if self._list.is_used:
            with_headers = {} if not selection.headers else await self._with_headers()
            async for document in one_by_one(listed_in(await self._list.all(), selection, after=after, up_to=up_to)):
                if limit is not None and wanted >= limit:
                    return
                if await self._is_selected(selection, with_headers.get(document["redrive"]["life"], document)):
                    yield document
                    wanted += 1
            return
        fields = {**SUMMARY_FIELDS, **({"redrive.headers": 1} if selection.headers else {})}
        cursor = self.letters.find(query_of(selection, after, up_to), fields, batch_size=PAGE).sort(_ORDER)
        if limit is not None and not is_sifted(selection):
            cursor = cursor.limit(limit)
        async with cursor:
            async for document in cursor:
                if limit is not None and wanted >= limit:
                    return
                if await self._is_selected(selection, document):
                    yield document
                    wanted += 1

    async def _with_headers(self) -> dict[str, Document]:
        """All letters by their lives. Their own states may be behind."""
        fields = {**SUMMARY_FIELDS, "redrive.headers": 1}
        return {each["redrive"]["life"]: each async for each in self.letters.find({}, fields, batch_size=PAGE)}

    async def _is_selected(self, selection: Selection, document: Document) -> bool:
        own = document["redrive"]
        if selection.text is not None:
            texts = (text_out_or_empty(own[name]) for name in ("reason_text", "message_id", "key"))
            if not any(selection.text.lower() in text.lower() for text in texts):
                return False
        if not selection.headers:
            return True
        if own.get("pieces"):
            found = await self.get(summary_in(document, job=None).id)
            return found is not None and has_headers(found[0].message.headers, selection.headers)
        return has_headers(headers_in(document), selection.headers)

    async def stats(
        self, selection: Selection, *, top: int = 20, ages_at: UnixMs | None = None, up_to: int | None = None
    ) -> LetterStats:
        """See `LetterStore.stats`. Every letter that is counted is read, without its body; for ages all are."""
        with translated(self._link.where):
            return await counted(self.walk(selection), top=top, ages_at=ages_at, up_to=up_to)

    async def earlier(self, letter_ids: Sequence[str], *, job_id: str | None) -> dict[str, str]:
        """See `LetterStore.earlier`. Reads the open letters of these keys, without their bodies."""
        with translated(self._link.where):
            ids = [id_in(each) for each in letter_ids]
            if self._list.is_used:
                named = set(ids)
                asked = [
                    each for each in await self._list.all() if each["_id"] in named and _scope(each)[1] is not None
                ]
            else:
                wanted = {"_id": {"$in": ids}, "redrive.key": {"$ne": None}}
                asked = await self.letters.find(wanted, _KEYED).to_list()
            first = await self._first_open(asked, job_id=job_id) if asked else {}
        pairs = ((each, first.get(_scope(each))) for each in asked)
        return {
            text_out(each["redrive"]["id"]): text_out(one["redrive"]["id"])
            for each, one in pairs
            if one is not None and place_in(one) < place_in(each)
        }

    async def _first_open(self, asked: Sequence[Document], *, job_id: str | None) -> dict[tuple[str, str], Document]:
        scopes = {_scope(each) for each in asked}
        if self._list.is_used:
            opened = listed_in(await self._list.all(), Selection(states=OPEN_STATES), after=None, up_to=None)
            found = [each for each in opened if _scope(each) in scopes]
        else:
            wanted = {
                "redrive.key": {"$in": sorted({key for _, key in scopes})},
                "redrive.dead_lettered_at": {"$lte": max(place_in(each)[0] for each in asked)},
                "reviewState": {"$in": sorted(str(state) for state in OPEN_STATES)},
            }
            found = await self.letters.find(wanted, _KEYED, batch_size=PAGE).sort(_ORDER).to_list()
        first: dict[tuple[str, str], Document] = {}
        for start in range(0, len(found), PAGE):
            page = found[start : start + PAGE]
            jobs = await self.holders([each["_id"] for each in page])
            for each in page:
                if job_id is None or jobs.get(each["_id"]) != job_id:
                    first.setdefault(_scope(each), each)
        return first

    async def holders(self, ids: Sequence[str]) -> dict[str, str]:
        """The jobs that hold these letters, by the letters' `_id`."""
        if not ids:
            return {}
        found = await by_ids(self.holds, list(ids), is_scanned=self._link.is_scanned and len(ids) <= FEW)
        return {name: each["job"] for name, each in found.items()}

    async def newest_number(self) -> int:
        """The number of the letter that came last."""
        if self._list.is_used:
            return max((each["redrive"]["number"] for each in await self._list.all()), default=0)
        found = await self.letters.find({}, {"redrive.number": 1}).sort([("redrive.number", -1)]).limit(1).to_list()
        return int(found[0]["redrive"]["number"]) if found else 0

    # ------------------------------------------------------------------------------------------------- reviewing

    async def review(self, batch: Sequence[ReviewChange]) -> list[str | None]:
        """See `LetterStore.review`. Killed in here: some moves are made, each with its audit."""
        with translated(self._link.where, fate="Some of these moves may be made; made twice they are refused."):
            return [await self._review_one(change) for change in batch]

    async def _review_one(self, change: ReviewChange) -> str | None:
        if self._list.is_used and await self._review_listed(change):
            return None
        missing = f'no dead letter has the id "{cut(change.letter_id)}"'
        for _ in range(MAX_TRIES):
            document = await self.letters.find_one({"_id": id_in(change.letter_id)}, SUMMARY_FIELDS)
            if document is None:
                return missing
            trail = await self._trail(document["redrive"]["life"])
            state = trail[-1]["to"] if trail else document["reviewState"]
            if state == PRUNED:
                return missing
            steps = moves(ReviewState(state), change.to)
            if isinstance(steps, str):
                await self._write_state(document, trail)
                return steps
            move = _move(document, trail, steps, change=change)
            if not await insert_new(self._moves, [move]):
                await self._write_state(document, [*trail, move])
                return None
        return "others moved it at the same moment: look at it again"

    async def _review_listed(self, change: ReviewChange) -> bool:
        """Move a letter as it is listed, without reading it. False: nothing was done, it has to be read. Killed after
        the move: see `_write_state`.
        """
        listed = await self._list.one(id_in(change.letter_id))
        steps = "" if listed is None else moves(ReviewState(listed["reviewState"]), change.to)
        if listed is None or isinstance(steps, str):
            return False
        move = _move(listed, (), steps, change=change)
        if await insert_new(self._moves, [move]):
            return False
        moved = _moved_on(listed, move)
        await self._list.add([moved])
        if await self._list.is_gone(listed["redrive"]["life"]):
            # Pruned since it was read: whose moves are gone leaves their numbers free.
            await self._moves.delete_one({"_id": move["_id"]})
            return False
        self._own_states.write(moved)
        return True

    async def _trail(self, life: str) -> list[Document]:
        if not self._link.is_scanned:
            return await self._moves.find({"life": life}).sort([("life", 1), ("n", 1)]).to_list()
        trail: list[Document] = []
        while (move := await self._moves.find_one({"_id": f"{life}-{len(trail) + 1}"})) is not None:
            trail.append(move)
        return trail

    async def _write_state(self, document: Document, trail: Sequence[Document]) -> None:
        """Write what the last move says into the list, then into the letter, for lists and for other tools.

        Killed before the end: the letter stays behind its moves, by which whoever looks at it or moves it next writes
        both again. The other way round, a letter that is up to date would hide that the list is not.
        """
        if trail and document["redrive"]["moves"] < trail[-1]["n"]:
            replays, sent_closed = sends_in(trail)
            own = {"moves": trail[-1]["n"], "replays": replays, "sent_closed": sent_closed}
            moved = {**document, "reviewState": trail[-1]["to"], "redrive": {**document["redrive"], **own}}
            if not self._link.is_scanned:
                this = {"_id": document["_id"], "redrive.life": document["redrive"]["life"]}
                await self.letters.update_one(this, {"$set": state_of(moved)})
                return
            listed = await self._list.one(document["_id"])
            if listed is None or listed["redrive"]["moves"] < trail[-1]["n"]:
                await self._list.add([moved])
            self._own_states.write(moved)

    # ------------------------------------------------------------------------------------------------- pruning

    async def prune(self, *, now: UnixMs, limit: int, selection: Selection | None = None) -> int:
        """See `LetterStore.prune`. Killed in here: some letters are gone, the pieces of one may lie about."""
        with translated(self._link.where, fate="Some letters may be gone."):
            if selection is None and self._list.is_used:
                done = [each for each in await self._list.all() if is_expired(each, now)]
                found = done[:limit]
            elif selection is None:
                wanted = {
                    "redrive.expires_at": {"$lte": now},
                    "reviewState": {"$in": [str(ReviewState.REPLAYED), str(ReviewState.CLOSED), PRUNED]},
                }
                found = await self.letters.find(wanted, SUMMARY_FIELDS).limit(limit).to_list()
            else:
                found = await self._prunable(selection, limit)
            return await self._prune(found, at=now, is_open_too=selection is not None)

    async def _prunable(self, selection: Selection, limit: int) -> list[Document]:
        """The oldest selected that no job holds."""
        free: list[Document] = []
        page: list[Document] = []

        async def sift() -> None:
            held = await self.holders([each["_id"] for each in page])
            free.extend(each for each in page if each["_id"] not in held)
            page.clear()

        async for document in self.walk(selection):
            page.append(document)
            if len(page) >= PAGE:
                await sift()
            if len(free) >= limit:
                break
        await sift()
        return free[:limit]

    async def _prune(self, found: Sequence[Document], *, at: UnixMs, is_open_too: bool) -> int:
        marks, marked = [], []
        for document in found:
            trail = await self._trail(document["redrive"]["life"])
            state = trail[-1]["to"] if trail else document["reviewState"]
            if state == PRUNED:
                await self._remove([document])
            elif is_open_too or ReviewState(state) not in OPEN_STATES:
                change = ReviewChange(letter_id="", to=ReviewState.CLOSED, actor="redrive", at=at)
                marks.append({**_move(document, trail, (), change=change), "to": PRUNED})
                marked.append(document)
        lost = await insert_new(self._moves, marks)
        # A job that took a letter meanwhile looks whether it is pruned only after its hold is there; so does this.
        held = await self.holders([each["_id"] for each in marked])
        gone = []
        for place, (mark, document) in enumerate(zip(marks, marked, strict=True)):
            if place in lost:
                continue
            if document["_id"] in held:
                await self._moves.delete_one({"_id": mark["_id"]})
            else:
                gone.append(document)
        if gone:
            fingerprints = await self.groups.removing([text_out(each["redrive"]["id"]) for each in gone])
            await self._remove(gone)
            await self.groups.removed(fingerprints)
        return len(gone)

    async def _remove(self, documents: Sequence[Document]) -> None:
        lives = [document["redrive"]["life"] for document in documents]
        if not lives:
            return
        for document in documents:
            if document["redrive"].get("pieces"):
                await self._drop_pieces(document["redrive"]["life"], document["redrive"]["pieces"])
        if self._link.is_scanned:
            await self._remove_scanned(documents)
            return
        ids = [document["_id"] for document in documents]
        await self.letters.delete_many({"_id": {"$in": ids}, "redrive.life": {"$in": lives}})
        await self._moves.delete_many({"life": {"$in": lives}})

    async def _remove_scanned(self, documents: Sequence[Document]) -> None:
        """The letters, then their entries, then their moves: killed in between, the next prune finds them again."""
        whole = await self._by_ids(self.letters, [each["_id"] for each in documents], SUMMARY_FIELDS)
        for document in documents:
            life, name = document["redrive"]["life"], document["_id"]
            if name in whole and whole[name]["redrive"]["life"] == life:
                await self.letters.delete_one({"_id": name})
        await self._list.remove(documents)
        for document in documents:
            trail = await self._trail(document["redrive"]["life"])
            for move in reversed(trail):
                await self._moves.delete_one({"_id": move["_id"]})

    async def is_gone(self, ids: Sequence[str]) -> set[str]:
        """Those of these `_id`s that are no letters, or being pruned."""
        return set(ids) - await self._alive(ids)

    async def write_hold(self, ids: Sequence[str], job_id: str) -> set[str]:
        """Hold letters for a job; those that are held by another, or gone. Of two jobs one gets a letter."""
        taken = await insert_new(self.holds, [{"_id": each, "job": job_id} for each in ids])
        refused = {ids[place] for place in taken}
        refused -= {name for name, job in (await self.holders(list(refused))).items() if job == job_id}
        return refused


def _scope(document: Document) -> tuple[str, str]:
    return document["redrive"]["queue"], document["redrive"]["key"]


def _moved_on(listed: Document, move: Document) -> Document:
    """The letter after this move, of which only the last state before is known."""
    own = listed["redrive"]
    before = [listed["reviewState"]] if own["moves"] else []
    replays, sent_closed = sends_in([{"steps": [*before, *move["steps"]]}])
    replays -= before.count(str(ReviewState.REPLAYED))
    after = {
        "moves": move["n"],
        "replays": own["replays"] + replays,
        "sent_closed": own["sent_closed"] + sent_closed,
    }
    return {**listed, "reviewState": move["to"], "redrive": {**own, **after}}


def _clean(document: Document) -> Document:
    own = {name: value for name, value in document["redrive"].items() if name not in ("again", "bare")}
    return {**document, "redrive": own}


def _are_bare(documents: Sequence[Document], places: Collection[int]) -> bool:
    """Whether one of these was refused although there was nothing in it to refuse."""
    return any("bare" in documents[place]["redrive"] for place in places)


def _move(
    document: Document, trail: Sequence[Document], steps: Sequence[ReviewState], *, change: ReviewChange
) -> Document:
    number = 1 + max(document["redrive"]["moves"], trail[-1]["n"] if trail else 0)
    life = document["redrive"]["life"]
    return {
        "_id": f"{life}-{number}",
        "life": life,
        "n": number,
        "at": change.at,
        "actor": clean(change.actor),
        "note": clean(change.note),
        "steps": [str(step) for step in steps],
        "to": str(steps[-1]) if steps else "",
    }
