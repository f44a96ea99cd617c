"""Starts: what the ledger knows of starts that never ended, where the broker itself does not count them.

A message with a key has its claim: the record tells of the start before. One without is counted by its queue and the
digest of what it says, which survives the worker; that counts crashes and nothing else, so that a message that kills
its worker ends as WORKER_LOST. Copies that say the same are told apart only while they run: each takes the first
number that is free, and a copy whose start was lost is found again under its number. Such a record keeps no message
from being handled: where the numbers nearby are taken, the start is not counted. Only while a worker that had such a
copy is about to be taken for dead, copies of it wait: one of them may be what killed it.

Who holds a claim and is gone: the broker says whose connection is over. A worker that lost its connection is back
within moments and goes on, so only one that stays away for `GONE_AFTER_MS` is taken for dead; until then its messages
wait. A broker with leases has waited itself: what it calls gone has lost them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from redrive.core import settlement
from redrive.core.attempts import failed_by_headers
from redrive.core.idempotency import Acquired, ClaimRef, ClaimState, InProgress, Verdict
from redrive.core.letters.letter import Attempt, AttemptOutcome
from redrive.core.message import Message, user_headers
from redrive.core.ports import Broker, ClaimEnd, ClaimStore, Clock, End, Received, Taken
from redrive.core.units import Millis, UnixMs

GONE_AFTER_MS: Final[Millis] = 3_000
"""How long a worker may stay unknown to the broker before its claims are taken over."""

NUMBERS_TRIED: Final = 3
"""Numbers of one digest that are tried before a start goes uncounted."""

MAX_IN_HAND: Final = 100_000
"""Digests remembered; beyond, the memory of those that were lost and never ended is thrown away with the rest."""

RELEASED_MS: Final[Millis] = 86_400_000
"""How long a count is kept whose delivery was handed back."""

_PREFIX: Final = "redrive:copy:"
_Pair: TypeAlias = tuple[str, str]


class Starts:
    """Claims for one ledger over a broker that does not count starts. `spared`: owners that are no workers."""

    def __init__(self, broker: Broker, claims: ClaimStore, *, clock: Clock, spared: frozenset[str]) -> None:
        self._broker = broker
        self._claims = claims
        self._clock = clock
        self._spared = spared
        self._gone_after_ms = 0 if broker.features.leases else GONE_AFTER_MS
        self._missing_ms: dict[str, float] = {}
        # Numbers this process has in hand: (queue, digest) to the numbers.
        self._numbers: dict[_Pair, set[int]] = {}

    async def claim(self, pairs: Sequence[_Pair], *, lease_ms: Millis, owner: str) -> list[Verdict]:
        """As `ClaimStore.claim`, taking over what is held by workers that are gone."""
        verdicts = await self._claims.claim(pairs, lease_ms=lease_ms, owner=owner)
        holders = {verdict.owner for verdict in verdicts if type(verdict) is InProgress and verdict.owner}
        gone = await self._gone(holders - self._spared - {owner}) if holders else frozenset()
        verdicts = [self._until_gone(verdict) for verdict in verdicts] if self._missing_ms else verdicts
        if not gone:
            return verdicts
        places = [
            place for place, verdict in enumerate(verdicts) if type(verdict) is InProgress and verdict.owner in gone
        ]
        again = await self._claims.claim([pairs[place] for place in places], lease_ms=lease_ms, owner=owner, gone=gone)
        for place, verdict in zip(places, again, strict=True):
            verdicts[place] = verdict
        return verdicts

    def _until_gone(self, verdict: Verdict) -> Verdict:
        """What a worker holds that is away is looked at again when that worker will be taken for dead."""
        if type(verdict) is not InProgress or verdict.owner not in self._missing_ms:
            return verdict
        away_ms = self._clock.monotonic_ms() - self._missing_ms[verdict.owner]
        dead_at = self._clock.now() + max(0, math.ceil(self._gone_after_ms - away_ms))
        return replace(verdict, lease_until=min(verdict.lease_until, dead_at))

    async def _gone(self, holders: set[str]) -> frozenset[str]:
        """Those that have been away for long enough."""
        missing = await self._broker.gone(holders) if holders else set()
        now_ms = self._clock.monotonic_ms()
        for name in holders - missing:
            self._missing_ms.pop(name, None)
        for name in missing:
            self._missing_ms.setdefault(name, now_ms)
        return frozenset(name for name in missing if now_ms - self._missing_ms[name] >= self._gone_after_ms)

    # ------------------------------------------------------------------------------------------- without a verdict

    async def count(self, received: Sequence[Received], *, lease_ms: Millis, worker: str) -> list[Taken]:
        """Each as taken without a verdict: `starts` says how many there were, a lost one stands in the history."""
        scopes = [(each.lease.queue, digest_of(each.message)) for each in received]
        counted: dict[int, Verdict] = {}
        tried: dict[_Pair, set[int]] = {}
        waiting = list(range(len(received)))
        for _ in range(NUMBERS_TRIED):
            numbers = [self._free_number(scopes[place], tried) for place in waiting]
            pairs = [_numbered(scopes[place], number) for place, number in zip(waiting, numbers, strict=True)]
            verdicts = await self.claim(pairs, lease_ms=lease_ms, owner=worker) if pairs else []
            for place, number, verdict in zip(waiting, numbers, verdicts, strict=True):
                if isinstance(verdict, Acquired):
                    counted[place] = verdict
                    self._hold(scopes[place], number)
                elif _owner(verdict) in self._missing_ms:
                    counted[place] = verdict
            waiting = [place for place in waiting if place not in counted]
        return [_counted(each, counted.get(place)) for place, each in enumerate(received)]

    def _free_number(self, scope: _Pair, tried: dict[_Pair, set[int]]) -> int:
        """The lowest number that neither this process uses nor this call has tried."""
        taken = self._numbers.get(scope, set()) | tried.setdefault(scope, set())
        number = next(number for number in range(len(taken) + 1) if number not in taken)
        tried[scope].add(number)
        return number

    def _hold(self, scope: _Pair, number: int) -> None:
        if len(self._numbers) >= MAX_IN_HAND:
            self._numbers.clear()
        self._numbers.setdefault(scope, set()).add(number)

    def ended(self, refs: Iterable[ClaimRef]) -> None:
        """The starts counted under these are over."""
        for ref in refs:
            digest, _, number = ref.key.removeprefix(_PREFIX).rpartition("#")
            used = self._numbers.get((ref.queue, digest))
            if used is not None:
                used.discard(int(number))
                if not used:
                    del self._numbers[ref.queue, digest]


def count_end(ref: ClaimRef, end: End, now: UnixMs) -> ClaimEnd:
    """How a count ends: with any end of the handler it begins anew; a hand-back takes its start back and leaves what
    was lost before.
    """
    if isinstance(end.settlement, settlement.Requeue):
        return ClaimEnd(ref=ref, state=ClaimState.RECEIVED, expires_at=now + RELEASED_MS)
    return ClaimEnd(ref=ref, state=ClaimState.PROCESSED, expires_at=now)


def digest_of(message: Message) -> str:
    """Names what a message says: the same for every hand-over of one copy."""
    properties = message.properties
    says = (
        *sorted((name, repr(value)) for name, value in user_headers(message.headers).items()),
        properties.type,
        properties.correlation_id,
        properties.reply_to,
        properties.app_id,
        properties.timestamp,
        message.content_type,
        message.tenant,
    )
    digest = hashlib.sha256(message.body)
    digest.update(repr(says).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def with_lost(received: Received, verdict: Acquired) -> Received:
    """The delivery with the start before it in its history, where that one never ended."""
    lost = verdict.lost
    if lost is None or (received.history and received.history[-1].at == lost.at):
        return received
    entry = Attempt(
        attempt=max(1, verdict.attempts - 1), outcome=AttemptOutcome.INTERRUPTED, at=lost.at, worker=lost.worker or None
    )
    return replace(received, history=(*received.history, entry))


def _numbered(scope: _Pair, number: int) -> _Pair:
    return scope[0], f"{_PREFIX}{scope[1]}#{number}"


def _owner(verdict: Verdict) -> str | None:
    return verdict.owner if isinstance(verdict, InProgress) else None


def _counted(received: Received, verdict: Verdict | None) -> Taken:
    if isinstance(verdict, InProgress):
        return Taken(received=received, verdict=verdict)
    failed = failed_by_headers(received.message.headers, queue=received.lease.queue).failed
    if not isinstance(verdict, Acquired):
        return Taken(received=replace(received, starts=failed + 1), verdict=None)
    # The header counted what had failed before this copy was made; the record what was lost since.
    known = replace(verdict, attempts=verdict.attempts + failed)
    found = with_lost(replace(received, starts=known.attempts), known)
    return Taken(received=found, verdict=None, counted=verdict.ref)
