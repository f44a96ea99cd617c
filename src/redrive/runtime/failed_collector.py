"""Collector of failed jobs: takes what a broker's other workers gave up, and the broker keeps, into the letter store.

Each page: look, make letters, store them, then take the jobs out, each only if it is still as it was seen. Killed right
there, what is true?

- after the look: nothing happened.
- after the store, before they are taken out: they are seen again, and are the same letters, by their ids.
- after they are taken out: the letter is all there is.

A person may retry a job in a dashboard at the same moment. One that was seen failed and is no longer so, is not taken;
its letter, stored an instant before, is closed, for the job is alive. Weak spot: where the collector is killed in
between, that letter stays open beside a job that runs; rather twice than not at all. Found later as it was at first
(edited, and edited back), its letter is opened again before the job is taken out.

A job whose letter the store cannot hold stays where it is, and is counted as left.

Several collectors may go through one queue: they store the same letters, and a job is taken out once. A store or broker
that is away: the collector tries again with growing pauses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from redrive.core.letters.failed import failed_letter
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.ports import Clock, FailedJob, FailedJobs, FailedPage, ReviewChange, Taking
from redrive.core.units import Millis
from redrive.errors import BrokerUnavailableError
from redrive.runtime.backend import Backend
from redrive.runtime.collector import (
    BATCH,
    NOT_STORABLE,
    PAUSE_INITIAL_MS,
    PAUSE_MAX_MS,
    Collected,
    OnCollected,
    put_all,
    refuse_unknown,
    whole,
)
from redrive.runtime.events import Events

LOOK_EVERY_MS: Final[Millis] = 2_000
"""Between two walks through a failed set by who follows it."""
OWN: Final = "redrive's own, stored already"
"""Why those are left that redrive's own workers gave up."""
ACTOR: Final = "redrive (collector)"
HELD: Final = "the broker does not let go of it now"
"""Why they are left that are stored, and not taken out yet."""
REOPENED: Final = "the job was found as it was at first, and is taken"
NOTE: Final = "the job was retried or changed where it lies, and was not taken"


class FailedCollector:
    """Drains the failed jobs of one backend's queues. `failed`: the backend's."""

    def __init__(
        self,
        backend: Backend,
        failed: FailedJobs,
        clock: Clock,
        *,
        events: Events,
        system: str,
        ttl_ms: Millis | None = None,
    ) -> None:
        self._backend = backend
        self._failed = failed
        self._clock = clock
        self._events = events
        self._system = system
        self._ttl_ms = ttl_ms
        self.is_after_loss = False
        self.is_clean = True
        """Always: a job has an id, so nothing has to be counted (as `Collector` does)."""

    def forget(self) -> None:
        """Nothing: see `is_clean`."""

    async def let_go(self) -> None:
        """Nothing: a look takes nothing in hand."""

    async def run(
        self,
        queue: str,
        *,
        once: bool,
        limit: int | None = None,
        on_collected: OnCollected | None = None,
        done: Collected | None = None,
    ) -> Collected:
        """One walk through what has failed (`once`), or for ever, until `limit` jobs were taken or it is cancelled.
        `done`: what came before, added to.
        Raises `NotFoundError` where there is no such queue; `once`, also `BrokerUnavailableError`.
        """
        await refuse_unknown(self._backend, queue)
        done = Collected() if done is None else done
        pause_ms: float = PAUSE_INITIAL_MS
        while True:
            try:
                await self._walk(queue, done, limit=limit, tell=on_collected)
                if once or _is_enough(done, limit):
                    return done
                pause_ms = PAUSE_INITIAL_MS
                await self._clock.sleep(LOOK_EVERY_MS)
            except BrokerUnavailableError:
                if once:
                    raise
                await self._clock.sleep(pause_ms)
                pause_ms = min(pause_ms * 2, PAUSE_MAX_MS)

    async def look(self, queue: str, *, limit: int) -> tuple[list[Letter], Counter[str]]:
        """What the first failed jobs would become, and how many before them would be left alone, by why. Nothing is
        taken. Raises `NotFoundError`.
        """
        await refuse_unknown(self._backend, queue)
        letters: list[Letter] = []
        left: Counter[str] = Counter()
        cursor = None
        while len(letters) < limit:
            page = await self._failed.look(queue, limit=limit - len(letters), cursor=cursor)
            letters += [self._letter(queue, job) for job in page.jobs]
            left.update(_left(page))
            cursor = page.cursor
            if cursor is None:
                break
        return letters, left

    async def _walk(self, queue: str, done: Collected, *, limit: int | None, tell: OnCollected | None) -> None:
        """Through all that has failed by now."""
        cursor = None
        left: Counter[str] = Counter()
        while not _is_enough(done, limit):
            size = BATCH if limit is None else min(BATCH, limit - done.taken)
            page = await self._failed.look(queue, limit=size, cursor=cursor)
            left.update(_left(page))
            if page.jobs:
                # Cut off between the store and its end, nothing is lost; but a letter may stay open that was to close.
                await whole(self._keep(queue, page.jobs, done, left=left))
            done.left = left.copy()
            cursor = page.cursor
            if tell is not None:
                tell(done)
            if cursor is None:
                return

    async def _keep(self, queue: str, jobs: Sequence[FailedJob], done: Collected, *, left: Counter[str]) -> None:
        """Killed before the store: nothing happened. After it: the jobs are seen again, as the same letters."""
        letters = [self._letter(queue, job) for job in jobs]
        stored = await self._stored([letter.id for letter in letters])
        fresh = [letter for letter in letters if letter.id not in stored]
        refused = await put_all(self._backend.letters, fresh)
        pairs = [(job, letter) for job, letter in zip(jobs, letters, strict=True) if letter.id not in refused]
        await self._open_again([letter for _, letter in pairs if letter.id in stored])
        ends = await self._failed.take(queue, [job for job, _ in pairs])
        letters = [letter for _, letter in pairs]
        left.update(
            {why: count for why, count in ((HELD, ends.count(Taking.HELD)), (NOT_STORABLE, len(refused))) if count}
        )
        changed = [letter for letter, end in zip(letters, ends, strict=True) if end is Taking.CHANGED]
        await self._close(changed)
        alive = {letter.id for letter in changed}
        new = [letter for letter in fresh if letter.id not in alive | refused]
        taken = ends.count(Taking.TAKEN)
        done.taken += taken
        done.new += len(new)
        done.by_queue.update(letter.queue for letter in new)
        done.by_group.update(letter.fingerprint for letter in new)
        if taken or new:
            self._events.emit("letters.collected", queue=queue, taken=taken, new=len(new))

    def _letter(self, queue: str, job: FailedJob) -> Letter:
        return failed_letter(job, queue=queue, system=self._system, now=self._clock.now(), ttl_ms=self._ttl_ms)

    async def _stored(self, letter_ids: Sequence[str]) -> set[str]:
        page = await self._backend.letters.find(Selection(ids=tuple(letter_ids)), limit=len(letter_ids))
        return {letter.id for letter in page.letters}

    async def _open_again(self, letters: Sequence[Letter]) -> None:
        """Those that a collector closed, for their jobs had changed. What a person has closed stays so."""
        if not letters:
            return
        selection = Selection(ids=tuple(letter.id for letter in letters), states=frozenset({ReviewState.CLOSED}))
        page = await self._backend.letters.find(selection, limit=len(letters))
        found = [await self._backend.letters.get(letter.id) for letter in page.letters]
        at = self._clock.now()
        changes = [
            ReviewChange(letter_id=each[0].id, to=ReviewState.PENDING, actor=ACTOR, at=at, note=REOPENED)
            for each in found
            if each is not None and each[1] and each[1][-1].actor == ACTOR
        ]
        if changes:
            await self._backend.letters.review(changes)

    async def _close(self, letters: Sequence[Letter]) -> None:
        """Letters of jobs that live on. One that a person has sent back or closed already stays as it is."""
        if not letters:
            return
        at = self._clock.now()
        page = await self._backend.letters.find(
            Selection(ids=tuple(letter.id for letter in letters), states=frozenset({ReviewState.PENDING})),
            limit=len(letters),
        )
        await self._backend.letters.review(
            [
                ReviewChange(letter_id=letter.id, to=ReviewState.CLOSED, actor=ACTOR, at=at, note=NOTE)
                for letter in page.letters
                if letter.outstanding_job is None
            ]
        )


def _left(page: FailedPage) -> dict[str, int]:
    return {**page.left, OWN: page.own} if page.own else dict(page.left)


def _is_enough(done: Collected, limit: int | None) -> bool:
    return limit is not None and done.taken >= limit
