"""MongoClaimStore: claims in `processed_events`, one document per key of a queue.

What other tools read are the fields of system A (`idempotencyKey`, `queue`, `state`, `attempts`, `updatedAt`,
`expiresAt`); under `redrive` stands what this store decides by, the exact record among it. How of many who claim one
key, or take over one lost lease, exactly one succeeds: `versions.py`. Beside the document of a key an older one may
stand for a moment, and after a crash until the key's next change: the one with the highest `redrive.generation` counts.

Authoritative for time is this process's clock: hosts whose clocks differ by more than a lease take claims over early.
There is no TTL index: `prune` removes what expired, so that retention follows one clock and one rule everywhere.

Failure by failure. The answer of a claim was lost: the next call of this store takes it back, if it was made; a process
that ends before lets its lease run out. The server was away: nothing is known to have happened, the call is good again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from redrive.core.idempotency import (
    Acquired,
    ClaimRecord,
    ClaimRef,
    ClaimState,
    LostStart,
    Verdict,
    claimed,
    conflicts,
    ended,
    is_expired,
    judge,
    lease_end,
    registered,
    renewed,
)
from redrive.core.ports import ClaimEnd, Clock, Published, Registration
from redrive.core.text import cut
from redrive.core.units import Millis, UnixMs, rfc3339
from redrive.stores.mongodb.failures import translated
from redrive.stores.mongodb.link import Document, Link
from redrive.stores.mongodb.versions import Change, Versions, generation_in, scope_of

_PLAIN: Final = ("attempts", "cycle", "token", "owner", "lease_until", "expires_at", "digest", "updated_at")


class MongoClaimStore:
    """A `ClaimStore` in MongoDB. One event loop; `renew` from any thread."""

    def __init__(self, link: Link, *, clock: Clock) -> None:
        self._link = link
        self._clock = clock
        self._records = Versions(link, link.address.claims)

    async def open(self) -> None:
        """Connect. Raises `ConfigurationError` or `BrokerUnavailableError`."""
        await self._link.open(self)
        try:
            await self._records.open()
            with translated(self._link.where):
                await self._records.collection.create_index([("redrive.expires_at", 1)], name="redrive_expiry")
        except BaseException:
            await self._link.close(self)
            raise

    async def close(self) -> None:
        """Disconnect. May be called twice."""
        await self._link.close(self)

    async def register(self, batch: Sequence[Registration]) -> list[Published]:
        """See `ClaimStore.register`. Killed in here: some keys are registered; their messages are, or come again."""
        answers: list[Published] = [Published()] * len(batch)

        def register(record: ClaimRecord | None, places: Sequence[int]) -> ClaimRecord | None:
            for place in places:
                given, now = batch[place], self._clock.now()
                after = registered(
                    record, queue=given.queue, key=given.key, now=now, digest=given.digest, expires_at=given.expires_at
                )
                is_conflict = after is None and record is not None and conflicts(record.digest, given.digest)
                answers[place] = Published(duplicate=after is None, conflict=is_conflict)
                record = record if after is None else after
            return record

        await self._records.change(_changes([(each.queue, each.key) for each in batch], register))
        return answers

    async def claim(
        self, batch: Sequence[tuple[str, str]], *, lease_ms: Millis, owner: str, gone: Collection[str] = ()
    ) -> list[Verdict]:
        """See `ClaimStore.claim`; the round trips of one batch are counted in `versions.py`. Killed in here: some keys
        are claimed by nobody who lives; each costs a lost start once its lease is over.
        """
        answers: list[Any] = [None] * len(batch)

        def claim(record: ClaimRecord | None, places: Sequence[int]) -> ClaimRecord | None:
            taken = False
            for place in places:
                queue, key = batch[place]
                now = self._clock.now()
                verdict = judge(record, queue=queue, key=key, now=now, gone=() if taken else gone)
                answers[place] = verdict
                if isinstance(verdict, Acquired):
                    record = claimed(record, verdict, owner=owner, lease_until=lease_end(now, lease_ms), now=now)
                    taken = True
            return record

        await self._records.change(_changes(batch, claim), takes_back=True)
        return answers

    async def finish(self, batch: Sequence[ClaimEnd]) -> list[bool]:
        """See `ClaimStore.finish`. Killed in here: some claims have ended, the others' leases run out."""
        answers = [False] * len(batch)

        def finish(record: ClaimRecord | None, places: Sequence[int]) -> ClaimRecord | None:
            for place in places:
                end, now = batch[place], self._clock.now()
                after = ended(record, end.state, token=end.ref.token, now=now, expires_at=end.expires_at)
                answers[place] = after is not None
                record = record if after is None else after
            return record

        await self._records.change(_changes([(each.ref.queue, each.ref.key) for each in batch], finish))
        return answers

    def renew(self, batch: Sequence[ClaimRef], *, lease_ms: Millis) -> list[bool]:
        """See `ClaimStore.renew`."""
        answers = [False] * len(batch)

        def renew(record: ClaimRecord | None, places: Sequence[int]) -> ClaimRecord | None:
            until = lease_end(self._clock.now(), lease_ms)
            for place in places:
                after = renewed(record, token=batch[place].token, lease_until=until)
                answers[place] = after is not None
                record = record if after is None else after
            return record

        self._records.change_blocking(_changes([(ref.queue, ref.key) for ref in batch], renew))
        return answers

    async def get(self, queue: str, key: str) -> ClaimRecord | None:
        """See `ClaimStore.get`."""
        scope = scope_of(queue, key)
        found = await self._records.get(scope)
        return record_in(found[scope]) if scope in found else None

    async def prune(self, *, limit: int) -> int:
        """See `ClaimStore.prune`. Killed in here: some are gone."""
        now = self._clock.now()
        with translated(self._link.where):
            expired = self._records.collection.find({"redrive.expires_at": {"$lte": now}}).limit(limit)
            scopes = [document["redrive"]["scope"] async for document in expired]
            if not scopes:
                return 0
            kept = self._records.collection.find({"redrive.scope": {"$in": scopes}})
            by_scope: dict[str, list[Document]] = {}
            async for document in kept:
                by_scope.setdefault(document["redrive"]["scope"], []).append(document)
            ids, gone = [], 0
            for documents in by_scope.values():
                # From below: were the highest to go first, an older one would be the record again.
                documents.sort(key=generation_in)
                is_over = is_expired(record_in(documents[-1]), now)
                gone += is_over
                ids += [{"_id": each["_id"]} for each in (documents if is_over else documents[:-1])]
            await self._records.remove(ids)
        return gone


def _changes(keys: Sequence[tuple[str, str]], step: Any) -> dict[str, Change]:
    """One change for each key of a batch: `step` gets the record and the places in the batch that name it."""
    places: dict[str, list[int]] = {}
    for place, (queue, key) in enumerate(keys):
        places.setdefault(scope_of(queue, key), []).append(place)

    def change(document: Document | None, *, mine: Sequence[int]) -> Document | None:
        before = None if document is None else record_in(document)
        after = step(before, mine)
        return None if after is None or after is before else processed_event(after)

    return {scope: partial(change, mine=mine) for scope, mine in places.items()}


def processed_event(record: ClaimRecord) -> Document:
    """The document of a record: what system A asks for, and under `redrive` what this store decides by."""
    exact: Document = {name: value for name in _PLAIN if (value := getattr(record, name)) is not None}
    exact |= {"queue": record.queue, "key": record.key, "state": str(record.state)}
    if record.lost is not None:
        exact["lost"] = [record.lost.worker, record.lost.at]
    return {
        "idempotencyKey": cut(record.key),
        "queue": cut(record.queue),
        "state": str(record.state),
        "attempts": record.attempts,
        "updatedAt": rfc3339(record.updated_at),
        "expiresAt": None if record.expires_at is None else rfc3339(record.expires_at),
        # ASCII: NUL and lone surrogates, which no server keeps as they are, stand in it escaped.
        "redrive": {"expires_at": record.expires_at, "record": json.dumps(exact)},
    }


def record_in(document: Document) -> ClaimRecord:
    """The record that `processed_event` wrote."""
    exact = json.loads(document["redrive"]["record"])
    lost = exact.get("lost")
    found = ClaimRecord(
        queue=exact["queue"],
        key=exact["key"],
        state=ClaimState(exact["state"]),
        **{name: exact[name] for name in _PLAIN if name in exact},
    )
    return found if lost is None else replace(found, lost=LostStart(worker=lost[0], at=UnixMs(lost[1])))
