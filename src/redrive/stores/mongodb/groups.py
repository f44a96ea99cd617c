"""MongoGroupStore: groups counted from their letters when they are looked at.

    {prefix}_groups    one record per group (`versions.py`): what people wrote, and what pruned letters counted for

A count kept beside the letters would be wrong after every kill between the two; so a list reads all letters' documents,
without bodies, `MAX_LETTERS` at most: good for tens of thousands of letters, and slow for more.

Killed after a letter was stored: a group that it should have reopened is reopened by its next letter. Killed while
letters are pruned: what they counted for may be missing from `seen`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, TypeAlias

from redrive.core.letters.groups import (
    MAX_NAMED,
    REOPENED_BY,
    Group,
    GroupChange,
    GroupEntry,
    GroupState,
    GroupWork,
    Ignored,
    action_of,
    changed,
    cursor_after,
    hour_of,
    place_after,
    reopening,
)
from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.ports import GroupPage, HourCount
from redrive.core.units import UnixMs
from redrive.stores.mongodb.failures import translated
from redrive.stores.mongodb.letter_documents import text_in, text_out
from redrive.stores.mongodb.letter_list import LetterList
from redrive.stores.mongodb.link import Document, Link
from redrive.stores.mongodb.versions import Versions, scope_of

MAX_LETTERS: Final = 1_000_000
MAX_TRAIL: Final = 1_000
"""Entries kept of one group's audit trail."""
PAGE: Final = 500
NO_NAME: Final = "-"
Walk: TypeAlias = Callable[[Selection], AsyncIterator[Document]]
_HEAD: Final = ("group_title", "reason_text", "queue", "dead_letter_queue", "reason_code", "error_type", "error_code")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What is stored of a group. `head`: what its letters have in common, once somebody wrote on it."""

    fingerprint: str
    work: GroupWork = field(default_factory=GroupWork)
    trail: tuple[GroupEntry, ...] = ()
    head: Mapping[str, Any] | None = None
    gone: Mapping[str, int] = field(default_factory=dict)
    gone_hours: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Counted:
    """What its letters count for."""

    head: Mapping[str, Any]
    states: Counter[str] = field(default_factory=Counter)
    hours: Counter[UnixMs] = field(default_factory=Counter)
    tenants: Counter[str] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)
    names: list[str] = field(default_factory=list)
    succeeded_names: list[str] = field(default_factory=list)
    first_seen: UnixMs = 0
    last_seen: UnixMs = 0
    redriven: int = 0


class MongoGroupStore:
    """A `GroupStore` in MongoDB. Made by the letter store whose letters it counts."""

    def __init__(self, link: Link, *, letters: str, walk: Walk, listed: LetterList) -> None:
        self._link = link
        self._name = letters
        self._list = listed
        self._walk = walk
        self._records = Versions(link, link.own("groups"))

    async def open(self) -> None:
        """Make the index that finds a record."""
        await self._records.open()

    async def groups(
        self, *, states: Collection[GroupState] = (), queue: str | None = None, limit: int, cursor: str | None = None
    ) -> GroupPage:
        """See `GroupStore.groups`."""
        after = None if cursor is None else place_after(cursor)
        found = [
            group
            for group, kept, head in await self._all(Selection())
            if queue in (None, head["queue"], head["dead_letter_queue"]) and (not states or kept.work.state in states)
        ]
        found.sort(key=lambda group: (-group.waiting, group.fingerprint))
        later = [group for group in found if after is None or (-group.waiting, group.fingerprint) > after]
        page = later[:limit]
        return GroupPage(groups=tuple(page), cursor=cursor_after(page[-1]) if len(later) > limit and page else None)

    async def group(self, fingerprint: str) -> tuple[Group, tuple[GroupEntry, ...]] | None:
        """See `GroupStore.group`."""
        found = await self._all(Selection(fingerprint=fingerprint))
        return (found[0][0], found[0][1].trail) if found else None

    async def hours(self, fingerprint: str, *, since: UnixMs) -> list[HourCount]:
        """See `GroupStore.hours`."""
        counted = (await self._count(Selection(fingerprint=fingerprint))).get(fingerprint)
        kept = await self._one(fingerprint)
        hours = Counter({int(at): count for at, count in kept.gone_hours.items()})
        hours.update({} if counted is None else counted.hours)
        return [HourCount(at=at, count=hours[at]) for at in sorted(hours) if at >= hour_of(since)]

    async def change(self, batch: Sequence[GroupChange]) -> list[str | None]:
        """See `GroupStore.change`. Killed in here: some changes are made, each with its audit."""
        return [await self._change_one(change) for change in batch]

    async def _change_one(self, change: GroupChange) -> str | None:
        found = await self._all(Selection(fingerprint=change.fingerprint))
        if not found:
            return f'there is no group "{change.fingerprint}"'
        group, _, head = found[0]
        return await self._write(change, head=head, seen=group.seen, note=change.note or "")

    async def recount(self) -> int:
        """See `GroupStore.recount`: nothing is counted but when it is looked at. The list of letters is mended, where
        there is one; how many groups' letters were not in it as they are.
        """
        if not self._list.is_used:
            return 0
        with translated(self._link.where):
            wrong = await self._list.relist(self._link.collection(self._name))
        return len({each["redrive"]["fingerprint"] for each in wrong})

    # ------------------------------------------------------------------------------------------- told by the letters

    async def arrived(self, documents: Sequence[Document]) -> None:
        """Letters were stored: what their failures reopen is reopened."""
        fingerprints = {text_out(each["redrive"]["fingerprint"]) for each in documents}
        kept = await self._kept(fingerprints)
        closed = (GroupState.RESOLVED, GroupState.IGNORED)
        for document in documents:
            own = document["redrive"]
            found = kept.get(text_out(own["fingerprint"]))
            if found is not None and found.work.state in closed:
                await self._reopen(found, own)

    async def _reopen(self, kept: _Kept, own: Document) -> None:
        died_at, bound = own["dead_lettered_at"], kept.work.ignored
        since = died_at - (0 if bound is None or bound.per_ms is None else bound.per_ms)
        seen, lately = await self._deaths(kept.fingerprint, since=since)
        seen += kept.gone.get("seen", 0)
        version = None if own["version"] is None else text_out(own["version"])
        why = reopening(kept.work, version=version, at=died_at, seen=seen, lately=lately)
        if why is not None:
            change = GroupChange(fingerprint=kept.fingerprint, actor=REOPENED_BY, at=died_at, to=GroupState.OPEN)
            await self._write(change, head=kept.head or {}, seen=seen, note=why)

    async def _deaths(self, fingerprint: str, *, since: UnixMs) -> tuple[int, int]:
        """Letters the group has, and those that died after that."""
        with translated(self._link.where):
            if self._list.is_used:
                walk = self._walk(Selection(fingerprint=fingerprint))
                deaths = [each["redrive"]["dead_lettered_at"] async for each in walk]
                return len(deaths), sum(each > since for each in deaths)
            same = {"redrive.fingerprint": text_in(fingerprint)}
            letters = self._link.collection(self._name)
            lately = await letters.count_documents({**same, "redrive.dead_lettered_at": {"$gt": since}})
            return await letters.count_documents(same), lately

    async def removing(self, ids: Sequence[str]) -> list[str]:
        """These letters are about to go: what they count for is kept. The fingerprints they had."""
        counted = await self._count(Selection(ids=tuple(ids)))
        returned = await self._returned([name for each in counted.values() for name in each.names])
        for fingerprint, each in counted.items():
            gone = {
                "seen": len(each.names),
                "redriven": each.redriven,
                "succeeded": sum(name not in returned for name in each.succeeded_names),
                "returned": sum(returned[name] for name in each.names),
            }
            await self._keep_gone(fingerprint, each, gone)
        return sorted(counted)

    async def _keep_gone(self, fingerprint: str, counted: _Counted, gone: Mapping[str, int]) -> None:
        def add(kept: _Kept) -> _Kept:
            hours = Counter(kept.gone_hours)
            hours.update({str(at): count for at, count in counted.hours.items()})
            first = min(counted.first_seen, kept.gone.get("first_seen", counted.first_seen))
            last = max(counted.last_seen, kept.gone.get("last_seen", 0))
            total = {name: count + kept.gone.get(name, 0) for name, count in gone.items()}
            return replace(kept, gone={**total, "first_seen": first, "last_seen": last}, gone_hours=hours)

        await self._change(fingerprint, add)

    async def removed(self, fingerprints: Sequence[str]) -> None:
        """Letters are gone: a group goes with its last one, unless somebody wrote on it."""
        for fingerprint in fingerprints:
            with translated(self._link.where):
                is_empty = True
                async for _ in self._walk(Selection(fingerprint=fingerprint)):
                    is_empty = False
                    break
            if is_empty:
                await self._change(
                    fingerprint, lambda kept: kept if kept.trail else _Kept(fingerprint=kept.fingerprint)
                )

    # ------------------------------------------------------------------------------------------- counting

    async def _all(self, selection: Selection) -> list[tuple[Group, _Kept, Mapping[str, Any]]]:
        """The groups of the selected letters, and those that have none and were written on."""
        counted = await self._count(selection)
        if selection.fingerprint is None:
            kept = await self._written()
            kept |= await self._kept(set(counted) - set(kept))
        else:
            kept = await self._kept({selection.fingerprint})
        returned = await self._returned([name for each in counted.values() for name in each.names])
        found = []
        for fingerprint in counted.keys() | kept.keys():
            each = kept.get(fingerprint, _Kept(fingerprint=fingerprint))
            of_it = counted.get(fingerprint)
            if of_it is None and not each.trail:
                continue
            of_it = of_it or _Counted(head=each.head or {})
            found.append((_group(each, of_it, returned), each, of_it.head))
        return found

    async def _count(self, selection: Selection) -> dict[str, _Counted]:
        counted: dict[str, _Counted] = {}
        read = 0
        with translated(self._link.where):
            async for document in self._walk(selection):
                own = document["redrive"]
                fingerprint = text_out(own["fingerprint"])
                head = counted.get(fingerprint)
                if head is None or own["number"] < head.head["number"]:
                    named = {name: None if own[name] is None else text_out(own[name]) for name in _HEAD}
                    named["number"] = own["number"]
                    counted[fingerprint] = _Counted(head=named) if head is None else head
                    counted[fingerprint].head = named
                _add(counted[fingerprint], document)
                read += 1
                if read >= MAX_LETTERS:
                    break
        return counted

    async def _returned(self, names: Sequence[str]) -> Counter[str]:
        """How many letters name each of these as the one they came from."""
        found: Counter[str] = Counter()
        with translated(self._link.where):
            if self._list.is_used:
                asked = set(names)
                previous = (each["redrive"]["previous"] for each in await self._list.all())
                return Counter(name for name in previous if name in asked)
            letters = self._link.collection(self._name)
            for start in range(0, len(names), PAGE):
                wanted = {"redrive.previous": {"$in": list(names[start : start + PAGE])}}
                async for each in letters.find(wanted, {"redrive.previous": 1}):
                    found[each["redrive"]["previous"]] += 1
        return found

    # ------------------------------------------------------------------------------------------- records

    async def _one(self, fingerprint: str) -> _Kept:
        return (await self._kept({fingerprint})).get(fingerprint, _Kept(fingerprint=fingerprint))

    async def _kept(self, fingerprints: Collection[str]) -> dict[str, _Kept]:
        names = list(fingerprints)
        found: dict[str, _Kept] = {}
        for start in range(0, len(names), PAGE):
            records = await self._records.get(*(scope_of(name) for name in names[start : start + PAGE]))
            found |= {kept.fingerprint: kept for kept in map(_kept_from, records.values())}
        return found

    async def _written(self) -> dict[str, _Kept]:
        """Those that somebody wrote on."""
        with translated(self._link.where):
            scopes = {
                each["redrive"]["scope"] async for each in self._records.collection.find({"redrive.written": True})
            }
        found = await self._records.get(*sorted(scopes)) if scopes else {}
        return {kept.fingerprint: kept for kept in map(_kept_from, found.values())}

    async def _write(self, change: GroupChange, *, head: Mapping[str, Any], seen: int, note: str) -> str | None:
        why: str | None = None

        def write(kept: _Kept) -> _Kept:
            nonlocal why
            work = changed(kept.work, change, seen=seen)
            if isinstance(work, str):
                why = work
                return kept
            why = None
            entry = GroupEntry(
                fingerprint=change.fingerprint, at=change.at, actor=change.actor, action=action_of(change), note=note
            )
            return replace(kept, work=work, trail=(*kept.trail, entry)[-MAX_TRAIL:], head=head)

        await self._change(change.fingerprint, write)
        return why

    async def _change(self, fingerprint: str, step: Callable[[_Kept], _Kept]) -> None:
        def change(document: Document | None) -> Document | None:
            before = _Kept(fingerprint=fingerprint) if document is None else _kept_from(document)
            after = step(before)
            return None if after is before else _kept_document(after)

        await self._records.change({scope_of(fingerprint): change})


def _add(counted: _Counted, document: Document) -> None:
    own = document["redrive"]
    died_at = own["dead_lettered_at"]
    counted.first_seen = min(counted.first_seen, died_at) if counted.names else died_at
    counted.last_seen = max(counted.last_seen, died_at)
    counted.names.append(own["id"])
    counted.states[document["reviewState"]] += 1
    counted.hours[hour_of(died_at)] += 1
    counted.tenants[NO_NAME if own["tenant"] is None else text_out(own["tenant"]) or NO_NAME] += 1
    if own["version"] is not None:
        counted.versions[text_out(own["version"])] += 1
    counted.redriven += own["replays"]
    counted.succeeded_names += [own["id"]] * own["sent_closed"]


def _group(kept: _Kept, counted: _Counted, returned: Counter[str]) -> Group:
    head, gone = counted.head, kept.gone
    deaths = [counted.first_seen] if counted.names else []
    return Group(
        fingerprint=kept.fingerprint,
        title=head["group_title"] or head["reason_text"],
        queue=head["queue"],
        reason_code=head["reason_code"],
        error_type=head["error_type"],
        error_code=head["error_code"],
        count=len(counted.names),
        waiting=sum(counted.states[str(state)] for state in OPEN_STATES),
        seen=len(counted.names) + gone.get("seen", 0),
        first_seen=min([*deaths, *([gone["first_seen"]] if "first_seen" in gone else [])], default=0),
        last_seen=max(counted.last_seen, gone.get("last_seen", 0)),
        redriven=counted.redriven + gone.get("redriven", 0),
        succeeded=sum(name not in returned for name in counted.succeeded_names) + gone.get("succeeded", 0),
        returned=sum(returned[name] for name in counted.names) + gone.get("returned", 0),
        tenants=len(counted.tenants),
        top_tenants=_largest(counted.tenants.items()),
        versions=_largest(counted.versions.items()),
        work=kept.work,
    )


def _largest(counted: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counted, key=lambda each: (-each[1], each[0]))[:MAX_NAMED])


def _kept_document(kept: _Kept) -> Document:
    text = json.dumps(
        {
            "fingerprint": kept.fingerprint,
            "work": asdict(kept.work),
            "trail": [asdict(entry) for entry in kept.trail],
            "head": None if kept.head is None else dict(kept.head),
            "gone": dict(kept.gone),
            "gone_hours": dict(kept.gone_hours),
        }
    )
    return {"redrive": {"written": bool(kept.trail), "group": text}}


def _kept_from(document: Document) -> _Kept:
    found = json.loads(document["redrive"]["group"])
    work = found["work"]
    ignored = None if work["ignored"] is None else Ignored(**work["ignored"])
    return _Kept(
        fingerprint=found["fingerprint"],
        work=GroupWork(**{**work, "state": GroupState(work["state"]), "ignored": ignored}),
        trail=tuple(GroupEntry(**entry) for entry in found["trail"]),
        head=found["head"],
        gone=found["gone"],
        gone_hours=found["gone_hours"],
    )


def sends_in(trail: Sequence[Document]) -> tuple[int, int]:
    """How often a letter was sent, and how often it was closed after that, by its moves."""
    steps = [step for move in trail for step in move["steps"]]
    pairs = pairwise(steps)
    closed = sum(pair == (str(ReviewState.REPLAYED), str(ReviewState.CLOSED)) for pair in pairs)
    return steps.count(str(ReviewState.REPLAYED)), closed
