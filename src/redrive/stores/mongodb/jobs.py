"""MongoJobStore: redrive jobs and their items, over the letters of one `MongoLetterStore`.

    {prefix}_jobs         one record per job (`versions.py`): its token moves on by an insert that one runner can make
    {prefix}_job_keys     the job that a request key made, stored before the job: whoever finds it there alone makes it
    {prefix}_job_items    one letter of a job by position: inserted once
    {prefix}_job_ends     how an item ended: inserted once, so that an item moves once, whoever tells of it

Authoritative are the ends; an item's own `state` and the job's counts follow them. Killed in between, they are behind
until the next call that writes them. The holds (`letters.py`) are inserts too: a letter is in one job's hand.

A runner that has lost its job meanwhile may still tell that an item was sent. It was: its copies are durable.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pymongo import UpdateOne
from pymongo.asynchronous.collection import AsyncCollection

from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import Place, Selection
from redrive.core.ports import Clock
from redrive.core.redrive import (
    JOB_TRANSITIONS,
    Item,
    ItemState,
    Job,
    JobCounts,
    JobEvent,
    JobState,
    Outcomes,
    refusal,
    runner_lost,
)
from redrive.core.units import Millis, UnixMs
from redrive.core.wire import options_document, options_from_document, selection_document, selection_from_document
from redrive.errors import BrokerUnavailableError
from redrive.stores.mongodb.failures import translated
from redrive.stores.mongodb.letter_documents import id_in, summary_in, text_in, text_out
from redrive.stores.mongodb.letter_query import place_in
from redrive.stores.mongodb.letters import MongoLetterStore
from redrive.stores.mongodb.link import Document, Link, insert_new
from redrive.stores.mongodb.versions import Versions, generation_in, scope_of

PAGE: Final = 500
MAX_WAITING: Final = 1_000
"""Jobs looked at for one that is free."""
MAX_TRIES: Final = 20
"""Tries to stage one batch while another runner stages too."""
_PLAIN: Final = (
    "id", "actor", "note", "request_key", "is_staged", "created_at", "updated_at", "error", "progress", "token",
    "owner", "lease_until",
)  # fmt: skip
_OPEN: Final = (JobState.STAGED, JobState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A stored job. `last_letter`: the newest letter when it was made; `staged_to`: the place of the last letter that
    is an item; `order`: among jobs made in the same millisecond.
    """

    job: Job
    last_letter: int
    order: int
    staged_to: Place | None = None


class MongoJobStore:
    """A `JobStore` in MongoDB. Opened and closed with its letters."""

    def __init__(self, link: Link, letters: MongoLetterStore, *, clock: Clock) -> None:
        self._link = link
        self._letters = letters
        self._clock = clock
        self._rows = Versions(link, link.own("jobs"))
        self._last_order = 0

    @property
    def _items(self) -> AsyncCollection[Document]:
        return self._link.collection(self._link.own("job_items"))

    @property
    def _ends(self) -> AsyncCollection[Document]:
        return self._link.collection(self._link.own("job_ends"))

    @property
    def _keys(self) -> AsyncCollection[Document]:
        return self._link.collection(self._link.own("job_keys"))

    async def create(self, job: Job) -> Job:
        """See `JobStore.create`. Killed in here: the next call with this request key makes the same job."""
        with translated(self._link.where, fate="The job may be stored; made again with its request key it is one."):
            await self._make_indexes()
            self._last_order = max(self._last_order + 1, self._clock.now() * 1_000)
            row = _Row(job=job, last_letter=await self._letters.newest_number(), order=self._last_order)
            if job.request_key is not None:
                key = {"_id": scope_of(job.request_key)}
                if await insert_new(self._keys, [{**key, "row": _row_text(row)}]):
                    row = _row_from((await self._keys.find_one(key) or {})["row"])
        stored = row

        def keep(before: _Row | None) -> _Row | None:
            nonlocal stored
            stored = row if before is None else before
            return row if before is None else None

        await self._change(row.job.id, keep)
        return stored.job

    async def _make_indexes(self) -> None:
        await self._rows.open()
        for collection in (self._items, self._ends):
            await collection.create_index([("job", 1), ("position", 1)], name="redrive_items")

    async def get(self, job_id: str) -> Job | None:
        """See `JobStore.get`."""
        row = await self._row(job_id)
        return None if row is None else row.job

    async def list(self, *, limit: int = 50) -> builtins.list[Job]:
        """See `JobStore.list`."""
        with translated(self._link.where):
            newest = [("redrive.created_at", -1), ("redrive.order", -1)]
            found = await self._rows.collection.find().sort(newest).limit(2 * limit).to_list()
        return [row.job for row in _latest(found)][:limit]

    async def acquire(self, job_id: str | None, *, owner: str, lease_ms: Millis) -> Job | None:
        """See `JobStore.acquire`. Killed in here: the job is held until its lease ends, some of its letters not."""
        for each in [job_id] if job_id is not None else await self._waiting():
            taken = await self._acquire(each, owner=owner, lease_ms=lease_ms)
            if taken is not None:
                await self._hold_again(taken)
                return taken
        return None

    async def _waiting(self) -> builtins.list[str]:
        oldest = [("redrive.created_at", 1), ("redrive.order", 1)]
        states = {"redrive.state": {"$in": [str(state) for state in _OPEN]}}
        with translated(self._link.where):
            found = await self._rows.collection.find(states).sort(oldest).limit(MAX_WAITING).to_list()
        return [row.job.id for row in _latest(found)]

    async def _acquire(self, job_id: str, *, owner: str, lease_ms: Millis) -> Job | None:
        taken: Job | None = None

        def take(row: _Row | None) -> _Row | None:
            nonlocal taken
            taken = None
            now = self._clock.now()
            if row is None or JobEvent.START not in JOB_TRANSITIONS[row.job.state]:
                return None
            until = row.job.lease_until
            if row.job.state is JobState.RUNNING and until is not None and until > now:
                return None
            taken = replace(
                row.job, state=JobState.RUNNING, error=None, token=row.job.token + 1, owner=owner,
                lease_until=now + lease_ms, updated_at=now,
            )  # fmt: skip
            return replace(row, job=taken)

        await self._change(job_id, take)
        return taken

    async def _hold_again(self, job: Job) -> None:
        """A letter that another job has taken meanwhile stays with it."""
        after = -1
        while items := await self.items(job.id, state=ItemState.PENDING, limit=PAGE, after=after):
            with translated(self._link.where):
                await self._letters.write_hold([id_in(item.letter_id) for item in items], job.id)
            after = items[-1].position

    # ------------------------------------------------------------------------------------------------- staging

    async def stage(self, job: Job, *, limit: int) -> Job:
        """See `JobStore.stage`. Raises `LeaseLostError`, staging nothing, where `job.token` is stale. Killed in here:
        items may be there that the job does not count yet; the next runner takes them over.
        """
        for _ in range(MAX_TRIES):
            row = await self._row(job.id)
            if row is None or row.job.token != job.token:
                raise runner_lost(job, "Nothing was staged.")
            with translated(self._link.where, fate="Nothing is known to have been staged."):
                room = limit
                if row.job.options.limit is not None:
                    room = max(0, min(limit, row.job.options.limit - row.job.counts.selected))
                staged, is_all = await self._left_by_another(row), False
                if not staged:
                    staged, is_all = await self._stage_more(row, room)
            if staged is None:
                continue
            return await self._count_staged(job, staged, is_all=is_all)
        raise BrokerUnavailableError(f"Job {job.id} is being staged by another runner. Nothing was staged by this one.")

    async def _left_by_another(self, row: _Row) -> builtins.list[Document] | None:
        first = row.job.counts.selected
        scope = scope_of(row.job.id)
        wanted = {"job": scope, "position": {"$gte": first}}
        found = await self._items.find(wanted).sort([("job", 1), ("position", 1)]).limit(PAGE).to_list()
        whole = [each for place, each in enumerate(found, first) if each["position"] == place]
        if found and not whole:
            # What lies behind a gap nobody has counted, and nobody will: it is staged anew.
            await self._items.delete_many(wanted)
        return whole

    async def _stage_more(self, row: _Row, room: int) -> tuple[builtins.list[Document] | None, bool]:
        walk = self._letters.walk(row.job.selection, after=row.staged_to, limit=room + 1, up_to=row.last_letter)
        found = [document async for document in walk]
        jobs = await self._letters.holders([each["_id"] for each in found])
        whys: dict[str, str | None] = {}
        for each in found[:room]:
            letter = summary_in(each, job=jobs.get(each["_id"]))
            whys[each["_id"]] = refusal(letter, row.job.options, job_id=row.job.id, at=row.job.created_at)
        await self._hold(row.job.id, whys)
        scope = scope_of(row.job.id)
        items = [
            _item_document(scope, position, each, why=whys[each["_id"]])
            for position, each in enumerate(found[:room], row.job.counts.selected)
        ]
        taken = await insert_new(self._items, items)
        if taken:
            # Another runner stages too: one of us has lost the job. What he has is looked at first.
            mine = [each["_id"] for place, each in enumerate(items) if place not in taken]
            await self._items.delete_many({"_id": {"$in": mine}})
            return None, False
        return items, len(found) <= room

    async def _hold(self, job_id: str, whys: dict[str, str | None]) -> None:
        """Hold the letters that may be sent; of one that cannot be held, why, in its place."""
        wanted = [name for name, why in whys.items() if why is None]
        refused = await self._letters.write_hold(wanted, job_id)
        gone = await self._letters.is_gone(wanted)
        if gone:
            await self._letters.holds.delete_many({"_id": {"$in": sorted(gone)}, "job": job_id})
        jobs = await self._letters.holders(sorted(refused))
        for name in refused:
            whys[name] = f"it is in progress in job {jobs.get(name, 'that has just ended')}"
        for name in gone:
            whys[name] = "it no longer exists"

    async def _count_staged(self, job: Job, staged: Sequence[Document], *, is_all: bool) -> Job:
        counts = await self._counts(job.id)
        after: Job | None = None

        def count(row: _Row | None) -> _Row | None:
            nonlocal after
            after = None
            if row is None or row.job.token != job.token:
                return None
            most = row.job.options.limit
            is_full = most is not None and counts.selected >= most
            after = replace(row.job, counts=counts, is_staged=is_all or is_full, updated_at=self._clock.now())
            place = (staged[-1]["place"][0], staged[-1]["place"][1]) if staged else row.staged_to
            return replace(row, job=after, staged_to=place)

        await self._change(job.id, count)
        if after is None:
            raise runner_lost(job, "What it staged is taken over by the next runner.")
        return after

    # ------------------------------------------------------------------------------------------------- items

    async def items(self, job_id: str, *, state: str | None, limit: int, after: int = -1) -> builtins.list[Item]:
        """See `JobStore.items`."""
        items: builtins.list[Item] = []
        scope = scope_of(job_id)
        with translated(self._link.where):
            while len(items) < limit:
                wanted: Document = {"job": scope, "position": {"$gt": after}}
                if state is not None:
                    # An item whose end is not written into it yet still says pending.
                    wanted["state"] = {"$in": sorted({str(state), str(ItemState.PENDING)})}
                size = limit if state in (None, ItemState.PENDING) else PAGE
                found = await self._items.find(wanted).sort([("job", 1), ("position", 1)]).limit(size).to_list()
                ends = await self._ends_of(found)
                read = [_item(job_id, each, ends.get(each["_id"])) for each in found]
                items += [item for item in read if state is None or item.state == state]
                if len(found) < size:
                    break
                after = found[-1]["position"]
        return items[:limit]

    async def _ends_of(self, items: Sequence[Document]) -> dict[str, Document]:
        pending = [each["_id"] for each in items if each["state"] == ItemState.PENDING]
        if not pending:
            return {}
        return {each["_id"]: each async for each in self._ends.find({"_id": {"$in": pending}})}

    async def record(self, job: Job, batch: Sequence[Item]) -> bool:
        """See `JobStore.record`. Killed in here: some items have ended; the counts and holds follow with the next."""
        row = await self._row(job.id)
        if row is None or row.job.token != job.token:
            return False
        scope = scope_of(job.id)
        ended = [item for item in batch if item.state is not ItemState.PENDING]
        with translated(self._link.where, fate="Some items may be recorded; recording them again is safe."):
            ids = [_item_id(scope, item.position) for item in ended]
            there = {each["_id"]: each async for each in self._items.find({"_id": {"$in": ids}})} if ids else {}
            pending = [each for each in ended if there[_item_id(scope, each.position)]["state"] == ItemState.PENDING]
            ends = [
                {"_id": _item_id(scope, each.position), "job": scope, "position": each.position,
                 "state": str(each.state), "why": None if each.why is None else text_in(each.why)}
                for each in pending
            ]  # fmt: skip
            await insert_new(self._ends, ends)
            written = await self._ends_of(builtins.list(there.values()))
            if written:
                await self._items.bulk_write(
                    [
                        UpdateOne({"_id": name}, {"$set": {"state": end["state"], "why": end["why"]}})
                        for name, end in written.items()
                    ],
                    ordered=False,
                )
                letters = [there[name]["letter"] for name in written]
                await self._letters.holds.delete_many({"_id": {"$in": letters}, "job": job.id})
            counts = await self._counts(job.id)

        def count(row: _Row | None) -> _Row | None:
            if row is None or row.job.token != job.token:
                return None
            return replace(row, job=replace(row.job, counts=counts, updated_at=self._clock.now()))

        await self._change(job.id, count)
        return True

    async def _counts(self, job_id: str) -> JobCounts:
        scope = scope_of(job_id)
        by_state = {
            state: await self._items.count_documents({"job": scope, "state": str(state)}) for state in ItemState
        }
        return JobCounts(
            selected=sum(by_state.values()),
            pending=by_state[ItemState.PENDING],
            sent=by_state[ItemState.SENT],
            skipped=by_state[ItemState.SKIPPED],
        )

    async def save(self, job: Job, *, lease_ms: Millis) -> bool:
        """See `JobStore.save`. Killed in here: a job that ended may hold letters until it is saved or resumed again."""
        is_over = job.state not in _OPEN
        saved = False

        def write(row: _Row | None) -> _Row | None:
            nonlocal saved
            saved = row is not None and row.job.token == job.token
            if row is None or not saved:
                return None
            now = self._clock.now()
            after = replace(
                row.job,
                state=job.state,
                error=job.error,
                progress=job.progress,
                # Whoever ended it, its runner may not go on: see the port.
                token=row.job.token + is_over,
                owner=None if is_over else row.job.owner,
                lease_until=None if is_over else now + lease_ms,
                updated_at=now,
            )
            return replace(row, job=after)

        await self._change(job.id, write)
        if saved and is_over and job.state is not JobState.PAUSED:
            with translated(self._link.where, fate="The job is saved; it may still hold letters."):
                await self._letters.holds.delete_many({"job": job.id})
        return saved

    async def outcomes(self, job_id: str, *, positions: Sequence[int] | None = None) -> Outcomes:
        """See `JobStore.outcomes`."""
        job = await self.get(job_id)
        if job is None:
            return Outcomes()
        wanted: Document = {"job": scope_of(job_id), "state": str(ItemState.SENT)}
        if positions is not None:
            wanted["position"] = {"$in": [int(position) for position in positions]}
        sent = succeeded = failed_again = 0
        with translated(self._link.where):
            found = await self._items.find(wanted).to_list()
            for start in range(0, len(found), PAGE):
                page = found[start : start + PAGE]
                names = [each["name"] for each in page]
                again, done = await self._fates(names, [each["letter"] for each in page], since=job.created_at)
                sent += len(page)
                failed_again += sum(name in again for name in names)
                succeeded += sum(each["letter"] in done and each["name"] not in again for each in page)
        return Outcomes(sent=sent, succeeded=succeeded, failed_again=failed_again)

    async def _fates(self, names: Sequence[str], letters: Sequence[str], *, since: UnixMs) -> tuple[set[str], set[str]]:
        """Those of these names that later letters come from; those of these letters that are closed."""
        if self._link.is_scanned:
            listed = [each async for each in self._letters.walk(Selection())]
            later = (each["redrive"] for each in listed if each["redrive"]["dead_lettered_at"] >= since)
            closed = {each["_id"] for each in listed if each["reviewState"] == ReviewState.CLOSED}
            return {each["previous"] for each in later} & set(names), closed & set(letters)
        died = {"redrive.previous": {"$in": list(names)}, "redrive.dead_lettered_at": {"$gte": since}}
        again = {each["redrive"]["previous"] async for each in self._letters.letters.find(died)}
        done = {"_id": {"$in": list(letters)}, "reviewState": str(ReviewState.CLOSED)}
        return again, {each["_id"] async for each in self._letters.letters.find(done, {"_id": 1})}

    # ------------------------------------------------------------------------------------------------- rows

    async def _row(self, job_id: str) -> _Row | None:
        scope = scope_of(job_id)
        found = await self._rows.get(scope)
        return _row_from(found[scope]["redrive"]["row"]) if scope in found else None

    async def _change(self, job_id: str, step: Callable[[_Row | None], _Row | None]) -> None:
        def change(document: Document | None) -> Document | None:
            after = step(None if document is None else _row_from(document["redrive"]["row"]))
            return None if after is None else _row_document(after)

        await self._rows.change({scope_of(job_id): change})


def _latest(documents: Sequence[Document]) -> builtins.list[_Row]:
    """One row per job, in the order they came in."""
    latest: dict[str, Document] = {}
    for document in documents:
        scope = document["redrive"]["scope"]
        if scope not in latest or generation_in(document) > generation_in(latest[scope]):
            latest[scope] = document
    return [_row_from(document["redrive"]["row"]) for document in latest.values()]


def _row_document(row: _Row) -> Document:
    return {
        "redrive": {
            "state": str(row.job.state),
            "created_at": row.job.created_at,
            "order": row.order,
            "row": _row_text(row),
        }
    }


def _row_text(row: _Row) -> str:
    job = row.job
    counts = job.counts
    return json.dumps(
        {
            **{name: getattr(job, name) for name in _PLAIN},
            "state": str(job.state),
            "selection": selection_document(job.selection),
            "options": options_document(job.options),
            "counts": [counts.selected, counts.pending, counts.sent, counts.skipped],
            "last_letter": row.last_letter,
            "order": row.order,
            "staged_to": row.staged_to,
        }
    )


def _row_from(text: str) -> _Row:
    found = json.loads(text)
    selected, pending, sent, skipped = found["counts"]
    job = Job(
        **{name: found[name] for name in _PLAIN},
        state=JobState(found["state"]),
        selection=selection_from_document(found["selection"]),
        options=options_from_document(found["options"]),
        counts=JobCounts(selected=selected, pending=pending, sent=sent, skipped=skipped),
    )
    place: Any = found["staged_to"]
    staged_to = None if place is None else (place[0], place[1])
    return _Row(job=job, last_letter=found["last_letter"], order=found["order"], staged_to=staged_to)


def _item_id(scope: str, position: int) -> str:
    return f"{scope}-{position}"


def _item_document(scope: str, position: int, letter: Document, *, why: str | None) -> Document:
    return {
        "_id": _item_id(scope, position),
        "job": scope,
        "position": position,
        "letter": letter["_id"],
        "name": letter["redrive"]["id"],
        "place": list(place_in(letter)),
        "state": str(ItemState.PENDING if why is None else ItemState.SKIPPED),
        "why": None if why is None else text_in(why),
    }


def _item(job_id: str, document: Document, end: Document | None) -> Item:
    told = document if end is None else end
    why = told["why"]
    return Item(
        job_id=job_id,
        position=document["position"],
        letter_id=text_out(document["name"]),
        state=ItemState(told["state"]),
        why=None if why is None else text_out(why),
    )
