"""Collector: takes what lies in a broker's dead-letter queue into the letter store, whoever made it.

Each batch: take, make letters, store them, then acknowledge. Killed right there, what is true?

- after the take: the messages lie in the queue again (their connection or lease is gone).
- after the store, before the acknowledgement: they are handed over once more, and are the same letters, by their ids.
- after the acknowledgement: the letter is all there is.

What stays the same however often a message is handed over makes its id (core/letters/foreign.py), so that nothing is
stored twice. Messages that are alike in everything, an id they do not have included, each get a number. Of those, which
one is handed over once more, and which one for the first time? A broker says of a message only that somebody had it
before, also where that was a buffer. So the collector counts what it has stored and certainly not acknowledged: as many
of them are known when they come again. What was acknowledged as a connection was lost, or stored by one that was
killed, nobody can count. Then, until the queue is empty (`is_after_loss`), the first that is handed over again is the
one that is stored; of more like it, each is stored again: rather twice than not at all. Weak spot: of two such
messages, one stored and acknowledged, the other alone in hand at a loss and not stored yet, the second is taken for the
first. They differ in nothing.

A message with an id is the one that is stored, where somebody had it before. Handed over for the first time it cannot
be: it died again, and is a letter of its own.

A message the store cannot hold, alone of its batch: it is kept in hand, unsettled, so that those behind it are reached,
and lies in its queue again once this collector lets go of it or is gone. It is counted as left.

A store that is away: the batch is given back, and the collector tries again with growing pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from redrive.core import settlement
from redrive.core.letters.foreign import found_id, found_letter
from redrive.core.letters.letter import Letter
from redrive.core.letters.selection import Selection
from redrive.core.ports import Clock, Lease, LetterStore, Received, Settle
from redrive.core.settlement import Reason
from redrive.core.units import Millis
from redrive.errors import BrokerUnavailableError, InvalidMessageError, NotFoundError, RedriveError
from redrive.runtime.backend import Backend
from redrive.runtime.events import Events

BATCH: Final = 100
LEASE_MS: Final[Millis] = 60_000
WAIT_MS: Final[Millis] = 1_000
"""How long a take waits for a message; after one without any the queue counts as empty."""
PAUSE_INITIAL_MS: Final[Millis] = 500
PAUSE_MAX_MS: Final[Millis] = 30_000
COPY_BITS: Final = 63
"""Of the number that tells apart messages that are alike in everything."""
MAX_LEFT: Final = 1_000
"""Messages in hand that the store cannot hold; with so many a run ends."""
NOT_STORABLE: Final = "the store cannot hold it"
"""Why they are left."""
GIVEN_BACK: Final = Reason(code="NOT_STORED", text="the collector could not store it")


@dataclass(slots=True)
class Collected:
    """What a collector has done: messages taken, letters that were new, and the new ones by where they came from and
    by problem (fingerprint). `left`: what its last look left where it lies, by why.
    """

    taken: int = 0
    new: int = 0
    left: Counter[str] = field(default_factory=Counter)
    by_queue: Counter[str] = field(default_factory=Counter)
    by_group: Counter[str] = field(default_factory=Counter)


OnCollected: TypeAlias = Callable[[Collected], None]
Fresh: TypeAlias = tuple[Received, Letter]
"""A message and the letter it becomes."""


class Collector:
    """Drains a dead-letter queue of one backend, as the only one there (`collecting.Turn` sees to that). `as_queue`:
    where messages came from that do not say it.
    """

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        events: Events,
        *,
        system: str,
        worker: str,
        as_queue: str | None = None,
        ttl_ms: Millis | None = None,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._events = events
        self._system = system
        self._worker = worker
        self._as_queue = as_queue
        self._ttl_ms = ttl_ms
        self.is_after_loss = False
        """Whether there may be something in the queue that is stored and nobody counted: the collector before this one
        was killed, or a connection was lost.
        """
        # After a loss: of what is handed over again, what was stored before, once each; and what was not.
        self._met: set[str] = set()
        self._unsettled: Counter[str] = Counter()
        # What the store cannot hold, by the ids of their letters.
        self._left: dict[str, Received] = {}

    @property
    def is_clean(self) -> bool:
        """Whether all that was stored is acknowledged."""
        return not self._unsettled and not self.is_after_loss

    def forget(self) -> None:
        """What it counted is of no use any more: another may have collected since, or the queue was empty."""
        self._met.clear()
        self._unsettled.clear()

    async def let_go(self) -> None:
        """Give back what the store cannot hold. Killed right here, it lies in its queue all the same."""
        left, self._left = list(self._left.values()), {}
        if left:
            await self._give_back(left)

    async def run(
        self,
        queue: str,
        *,
        once: bool,
        limit: int | None = None,
        on_collected: OnCollected | None = None,
        done: Collected | None = None,
    ) -> Collected:
        """Until the queue is empty (`once`), `limit` messages were taken, or it is cancelled: what is in hand then is
        given back. `done`: what came before, added to. What the store cannot hold stays in hand until `let_go`; with
        `MAX_LEFT` of those it ends.
        Raises `NotFoundError` where there is no such queue; `once`, also `BrokerUnavailableError`.
        """
        await refuse_unknown(self._backend, queue)
        done = Collected() if done is None else done
        done.left = self._count_left()
        pause_ms = PAUSE_INITIAL_MS
        while (limit is None or done.taken < limit) and len(self._left) < MAX_LEFT:
            size = BATCH if limit is None else min(BATCH, limit - done.taken)
            try:
                taken = await self._take(queue, size)
                if not taken:
                    self.is_after_loss = False
                    self.forget()
                if not taken and once:
                    break
                await whole(self._keep(queue, taken, done))
                pause_ms = PAUSE_INITIAL_MS
            except BrokerUnavailableError:
                self._lose()
                if once:
                    raise
                await self._clock.sleep(pause_ms)
                pause_ms = min(pause_ms * 2, PAUSE_MAX_MS)
            if on_collected is not None:
                on_collected(done)
        return done

    def _lose(self) -> None:
        self.is_after_loss = True
        self._met.clear()
        self._left.clear()

    async def _take(self, queue: str, limit: int) -> list[Received]:
        return await self._backend.broker.receive(
            queue, limit=limit, lease_ms=LEASE_MS, worker=self._worker, wait_ms=WAIT_MS
        )

    async def _keep(self, queue: str, taken: Sequence[Received], done: Collected) -> None:
        if not taken:
            return
        try:
            letters = [self._letter(queue, each) for each in taken]
            fresh = await self._fresh(queue, taken, letters)
        except BaseException:
            await self._give_back(taken)
            raise
        try:
            refused = await put_all(self._backend.letters, [letter for _, letter in fresh])
        except BaseException:
            # It may have stored them.
            self._unsettled.update(letter.id for letter in letters)
            await self._give_back(taken)
            raise
        bad = self._keep_aside(fresh, refused, done)
        kept = [pair for pair in zip(taken, letters, strict=True) if pair[0].lease not in bad]
        new = [letter for _, letter in fresh if letter.id not in refused]
        is_settled = await self._backend.broker.settle(
            [Settle(lease=received.lease, settlement=settlement.ACK) for received, _ in kept]
        )
        self._unsettled.update(letter.id for (_, letter), gone in zip(kept, is_settled, strict=True) if not gone)
        done.taken += len(kept)
        done.new += len(new)
        done.by_queue.update(letter.queue for letter in new)
        done.by_group.update(letter.fingerprint for letter in new)
        if kept:
            self._events.emit("letters.collected", queue=queue, taken=len(kept), new=len(new))

    def _keep_aside(self, fresh: Sequence[Fresh], refused: set[str], done: Collected) -> list[Lease]:
        """Count what the store refused as left; the leases of it, that stay as they are."""
        bad = {letter.id: received for received, letter in fresh if letter.id in refused}
        self._left.update(bad)
        done.left = self._count_left()
        return [received.lease for received in bad.values()]

    def _count_left(self) -> Counter[str]:
        return Counter({NOT_STORABLE: len(self._left)} if self._left else ())

    def _letter(self, queue: str, received: Received) -> Letter:
        return found_letter(
            received.message,
            dead_letter_queue=queue,
            system=self._system,
            now=self._clock.now(),
            as_queue=self._as_queue,
            ttl_ms=self._ttl_ms,
        )

    async def _fresh(self, queue: str, taken: Sequence[Received], letters: Sequence[Letter]) -> list[Fresh]:
        """Those that are not stored yet, each under an id of its own. One look into the store for the batch."""
        stored = await self._stored([letter.id for letter in letters])
        fresh: list[Fresh] = []
        used: set[str] = set()
        for name in {letter.id for letter in letters} - stored:
            # A put that failed has stored nothing.
            self._unsettled.pop(name, None)
        for received, letter in zip(taken, letters, strict=True):
            made = letter
            if letter.id in used or letter.id in stored:
                if self._was_stored(received, letter, used) or not _is_another(queue, received, letter):
                    continue
                copy = secrets.randbits(COPY_BITS)
                made = replace(letter, id=found_id(received.message, dead_letter_queue=queue, copy=copy))
            elif self.is_after_loss and received.message.key is None:
                # Nothing like it was stored before, so what is like it in a later batch is another one.
                self._met.add(letter.id)
            used.add(made.id)
            fresh.append((received, made))
        return fresh

    def _was_stored(self, received: Received, letter: Letter, used: set[str]) -> bool:
        """Whether this one, of messages that are alike in everything, is one that was stored before."""
        if not received.redelivered:
            return False
        if self._unsettled[letter.id]:
            self._unsettled -= Counter([letter.id])
            return True
        if self.is_after_loss and letter.id not in used and letter.id not in self._met:
            self._met.add(letter.id)
            return True
        return False

    async def _stored(self, letter_ids: Sequence[str]) -> set[str]:
        ids = tuple(dict.fromkeys(letter_ids))
        page = await self._backend.letters.find(Selection(ids=ids), limit=max(1, len(ids)))
        return {letter.id for letter in page.letters}

    async def _give_back(self, taken: Sequence[Received]) -> None:
        now = self._clock.now()
        back = settlement.Requeue(due_at=now, reason=GIVEN_BACK)
        with contextlib.suppress(RedriveError):
            await self._backend.broker.settle([Settle(lease=each.lease, settlement=back) for each in taken])


async def whole(work: Coroutine[None, None, None]) -> None:
    """Whoever is cancelled in here goes once it is done."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(RedriveError):
            await task
        raise


async def put_all(store: LetterStore, letters: Sequence[Letter]) -> set[str]:
    """Store them; one by one where the store cannot hold one of them. The ids of those it cannot hold. Killed in
    between: some are stored, and storing them again is harmless.
    """
    try:
        await store.put(letters)
    except InvalidMessageError:
        refused = set()
        for letter in letters:
            try:
                await store.put([letter])
            except InvalidMessageError:
                refused.add(letter.id)
        return refused
    return set()


async def refuse_unknown(backend: Backend, queue: str) -> None:
    """Raises `NotFoundError` where the broker has no such queue."""
    if queue not in {depth.queue for depth in await backend.broker.depths([queue])}:
        raise NotFoundError(f'There is no queue "{queue}". Nothing was taken.', hint="See: redrive queues list")


def _is_another(queue: str, received: Received, letter: Letter) -> bool:
    """Whether a message with the id of a known letter may be another message: one that has no id of its own, or that
    nobody had in hand before. Never one whose letter redrive made.
    """
    if received.message.key is not None and received.redelivered:
        return False
    own, copy = (found_id(received.message, dead_letter_queue=queue, copy=number) for number in (0, 1))
    return letter.id == own != copy
