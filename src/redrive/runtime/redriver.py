"""Carries out redrive jobs: stage a chunk, send its items in bounded batches, at the wanted pace, until done.

Authoritative are the job and its items in the store. A runner holds a job by a lease with a fencing token and may be
killed at any point:

- while staging: the chunk is one commit, the next runner stages on from `staged_to`; what is refused of it
  (refusals.py) is looked for after that, and again before it is sent;
- while sending: on the embedded broker copy, item and letter move in one commit; elsewhere a copy may be sent again
  after a kill between the confirm and its record, under the same message id and redrive id, and has no second effect;
- between batches: the lease ends, and whoever asks next (a worker's upkeep, `redrive dlq resume`) takes the job over.

A job with a canary stages all of its letters first, sends a few and watches them; see canary.py.

A person's abort or pause is seen before every batch and at least every `CHECK_MS` while pacing. A letter that dies
again while the job runs is a new letter, died after the job was created, and is never part of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, TypeAlias

from redrive.core.json_patch import Patch, PatchRefused, parse_patch
from redrive.core.letters.canary import Verdict
from redrive.core.letters.letter import Letter
from redrive.core.letters.redriven import redriven_message
from redrive.core.letters.selection import Selection
from redrive.core.ports import AuditEntry, Clock, Forward, Outgoing
from redrive.core.redrive import (
    JOB_TRANSITIONS,
    Item,
    ItemState,
    Job,
    JobCounts,
    JobEvent,
    JobState,
    pace_ms,
    refusal,
    runner_lost,
)
from redrive.core.units import Millis, UnixMs
from redrive.errors import BrokerUnavailableError, LeaseLostError, QueueNotFoundError, RedriveError
from redrive.runtime.backend import Backend
from redrive.runtime.canary import KNOWN_PART, LOOK_MS, Canary
from redrive.runtime.consumer import Consumer
from redrive.runtime.events import Events
from redrive.runtime.forwarding import was_sent
from redrive.runtime.refusals import Asked, Refusals, asked

STAGE_CHUNK: Final = 500
SEND_BATCH: Final = 100
LEASE_MS: Final[Millis] = 30_000
CHECK_MS: Final[Millis] = 500
"""A paced job looks for an abort this often; a person's stop holds within two seconds."""
STORE_TRIES: Final = 3
STORE_PAUSE_MS: Final[Millis] = 500
RETURN_WINDOW_MS: Final[Millis] = 60_000
MAX_RETURNS_LOOKED_AT: Final = 10_000
PAGE: Final = 500
NO_CONSUMERS: Final[Mapping[str, Consumer]] = MappingProxyType({})

OnProgress: TypeAlias = Callable[[Job], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """Of the letters a job sent, how many died again within the last minute. `percent` is of `sent`, rounded."""

    sent: int
    came_back: int
    percent: int


class Redriver:
    """Runs jobs on one backend. Several may run on several hosts; a job belongs to one of them at a time."""

    def __init__(
        self, backend: Backend, clock: Clock, events: Events, *, consumers: Mapping[str, Consumer] = NO_CONSUMERS
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._events = events
        self._refusals = Refusals(backend, clock, consumers)

    async def run(self, job_id: str | None, *, owner: str, on_progress: OnProgress | None = None) -> Job | None:
        """Take over this job, or (None) the oldest that waits for a runner, and carry it to its end.

        Returns the job as it ended (done, failed, or aborted by a person), None where there was none to run. Cut
        off in between (cancelled, killed), everything sent is on record and the next runner goes on from there.
        Raises `BrokerUnavailableError` where the store is away for so long that not even that can be written. What
        nobody foresaw is raised, too: the job has failed then, and says of what; a resume goes on with it.
        """
        job = await self._backend.jobs.acquire(job_id, owner=owner, lease_ms=LEASE_MS)
        if job is None:
            return None
        tell_job(self._events, job, actor=job.actor)
        on_progress = on_progress or _silent
        on_progress(job)
        run = _Run(self._backend, self._clock, self._events, refusals=self._refusals, on_progress=on_progress)
        try:
            ended = await run.to_the_end(job)
        except asyncio.CancelledError:
            await asyncio.shield(self._release(job))
            raise
        except BrokerUnavailableError:
            raise
        except Exception as error:
            # Left running it would be taken over, and meet the same again, every time its lease is over.
            await run.fail(job, error)
            raise
        if run.has_ended:
            tell_job(self._events, ended, actor=job.actor)
        if ended.state is JobState.DONE:
            await self._warn_of_returns(ended)
        return ended

    async def _release(self, job: Job) -> None:
        """Let the next runner have it at once instead of after the lease; where that fails, after the lease."""
        with contextlib.suppress(RedriveError):
            # As it stands there: what it keeps of its canary has moved on since it was taken.
            stored = await self._backend.jobs.get(job.id)
            if stored is not None and stored.token == job.token:
                await self._backend.jobs.save(stored, lease_ms=0)

    async def _warn_of_returns(self, job: Job) -> None:
        returned = await came_back(self._backend, job, now=self._clock.now())
        if returned.came_back:
            self._events.emit(
                "redrive.came_back",
                job_id=job.id,
                sent=returned.sent,
                came_back=returned.came_back,
                percent=returned.percent,
            )


def tell_job(events: Events, job: Job, *, actor: str) -> None:
    """That a job was made or has changed, and by whom."""
    counts = job.counts
    events.emit(
        "redrive.job_changed",
        job_id=job.id,
        state=str(job.state),
        sent=counts.sent,
        skipped=counts.skipped,
        pending=counts.pending,
        error_text=job.error,
        actor=actor,
    )


class CanaryStopped(Exception):
    """The canary says that the job must not go on. `event`: the job's. `progress`: what it keeps; None: as it is."""

    def __init__(self, text: str, *, event: JobEvent, progress: str | None = None) -> None:
        super().__init__(text)
        self.event = event
        self.progress = progress


class _Run:
    """One runner's work on one job."""

    def __init__(
        self, backend: Backend, clock: Clock, events: Events, *, refusals: Refusals, on_progress: OnProgress
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._events = events
        self._refusals = refusals
        self._on_progress = on_progress
        self._started_ms = clock.monotonic_ms()
        self._sent = 0
        self._failures = 0
        self.has_ended = False
        self._canary: Canary | None = None
        self._patch: Patch = ()
        self._looked_ms: Millis = 0

    async def to_the_end(self, job: Job) -> Job:
        while True:
            try:
                if self._failures:
                    job = await self._stored(job)
                return await self._work(job)
            except QueueNotFoundError as error:
                return await self._end(job, JobEvent.BREAK, error=str(error))
            except CanaryStopped as stop:
                return await self._end(job, stop.event, error=str(stop), progress=stop.progress)
            except LeaseLostError:
                return await self._stored(job)
            except BrokerUnavailableError as error:
                self._failures += 1
                if self._failures >= STORE_TRIES:
                    return await self._end(job, JobEvent.BREAK, error=str(error))
                await self._clock.sleep(STORE_PAUSE_MS * self._failures)

    async def fail(self, job: Job, error: Exception) -> None:
        """End it because of something nobody foresaw. Where that cannot be written it is taken over later."""
        text = str(error) if isinstance(error, RedriveError) else f"a bug ended its runner: {type(error).__name__}"
        with contextlib.suppress(RedriveError):
            ended = await self._end(job, JobEvent.BREAK, error=text)
            if self.has_ended:
                tell_job(self._events, ended, actor=job.actor)

    async def _work(self, job: Job) -> Job:
        self._patch = () if job.options.edit is None else parse_patch(job.options.edit)
        if job.options.canary is not None:
            job = await self._send_canary(await self._stage_all(job))
        while True:
            job = await self._send_pending(job)
            if job.is_staged:
                return await self._end(job, JobEvent.FINISH)
            job = await self._stage(job)

    async def _stage_all(self, job: Job) -> Job:
        """A canary is chosen among all letters."""
        while not job.is_staged:
            job = await self._stage(job)
        return job

    async def _stage(self, job: Job) -> Job:
        await self._keep(job)
        staged = await self._backend.jobs.stage(job, limit=STAGE_CHUNK)
        staged = await self._refuse_staged(staged, after=job.counts.selected - 1)
        self._failures = 0
        self._on_progress(staged)
        return staged

    async def _refuse_staged(self, job: Job, *, after: int) -> Job:
        """Skip what would be refused when its turn comes, so that it is known, and free, at once."""
        items = await self._backend.jobs.items(job.id, state=ItemState.PENDING, limit=STAGE_CHUNK, after=after)
        if not items:
            return job
        page = await self._backend.letters.find(
            Selection(ids=tuple(item.letter_id for item in items)), limit=STAGE_CHUNK
        )
        by_id = {item.letter_id: item for item in items}
        whys = await self._refusals.of_job([asked(letter) for letter in page.letters], job.options, job_id=job.id)
        skipped = [
            replace(by_id[letter.id], state=ItemState.SKIPPED, why=why)
            for letter, why in zip(page.letters, whys, strict=True)
            if why is not None
        ]
        if skipped and not await self._backend.jobs.record(job, skipped):
            raise runner_lost(job)
        return replace(job, counts=_moved(job.counts, sent=0, skipped=len(skipped)))

    async def _send_canary(self, job: Job) -> Job:
        """Send the letters that go first, and wait until enough of them are known. Raises `CanaryStopped`."""
        self._canary = canary = Canary(self._backend, job)
        if not canary.is_chosen:
            job = await self._note(job, await canary.choose(now=self._clock.now()))
        while items := await canary.waiting(_batch_size(job)):
            await self._pace(job)
            job, ended = await self._send(job, items)
            job = await self._note(job, await canary.went(ended))
            self._on_progress(job)
            await self._look(canary, is_over=False)
        if not canary.is_over:
            await self._watch(job, canary)
            job = await self._note(job, canary.over())
        return job

    async def _watch(self, job: Job, canary: Canary) -> None:
        """Until all of the canary is known, or its time is over and every letter that died meanwhile was looked at."""
        until = self._elapsed_ms() + job.options.canary_watch_ms
        while True:
            known, sent = await self._look(canary, is_over=False)
            is_late = self._elapsed_ms() >= until
            if (known >= sent or is_late) and not canary.is_behind:
                break
            await self._keep(job)
            await self._clock.sleep(min(LOOK_MS, max(1, until - self._elapsed_ms())))
        if known < sent * KNOWN_PART:
            raise CanaryStopped(
                f"of {sent} letters of its canary only {known} are known to be processed or dead again after "
                f"{job.options.canary_watch_ms} ms. Is the consumer running? Go on: redrive dlq resume {job.id}. "
                f"One that is not redrive's tells nothing: redrive dlq abort {job.id}, and send without --canary",
                event=JobEvent.PAUSE,
            )
        await self._look(canary, is_over=True)

    async def _look(self, canary: Canary, *, is_over: bool) -> tuple[int, int]:
        self._looked_ms = self._elapsed_ms()
        verdict, known, sent = await canary.look(is_over=is_over)
        if verdict is Verdict.STOP:
            raise CanaryStopped(canary.told(), event=JobEvent.ABORT, progress=canary.stopped())
        return known, sent

    async def _note(self, job: Job, progress: str) -> Job:
        noted = replace(job, progress=progress)
        await self._keep(noted)
        return noted

    async def _send_pending(self, job: Job) -> Job:
        while True:
            items = await self._backend.jobs.items(job.id, state=ItemState.PENDING, limit=_batch_size(job), after=-1)
            if not items:
                return job
            await self._pace(job)
            job, ended = await self._send(job, items)
            if self._canary is not None:
                job = await self._note(job, await self._canary.went(ended))
                if self._elapsed_ms() - self._looked_ms >= LOOK_MS:
                    await self._look(self._canary, is_over=False)
            self._failures = 0
            self._on_progress(job)

    async def _pace(self, job: Job) -> None:
        """Wait for the next batch's turn, seeing an abort on the way; raises `LeaseLostError` for one."""
        await self._keep(job)
        while (wait_ms := pace_ms(job.options, self._sent, self._elapsed_ms())) > 0:
            await self._clock.sleep(min(wait_ms, CHECK_MS))
            await self._keep(job)

    async def _keep(self, job: Job) -> None:
        if not await self._backend.jobs.save(job, lease_ms=LEASE_MS):
            raise runner_lost(job)

    async def _send(self, job: Job, items: Sequence[Item]) -> tuple[Job, list[Item]]:
        """(the job with its counts, the items as they ended)."""
        now = self._clock.now()
        found = await asyncio.gather(*(self._backend.letters.get(item.letter_id) for item in items))
        copies = [self._copy(job, None if kept is None else kept[0], now=now) for kept in found]
        whys = await self._refusals.of_job(
            [_asked(job, *each) for each in zip(found, copies, strict=True)], job.options, job_id=job.id
        )
        batch: list[Forward] = []
        skipped: list[Item] = []
        for item, copy, why in zip(items, copies, whys, strict=True):
            if isinstance(copy, str) or why is not None:
                skipped.append(replace(item, state=ItemState.SKIPPED, why=why))
                continue
            batch.append(
                Forward(item=item, outgoing=copy, actor=job.actor, at=now, keep_attempts=job.options.keep_attempts)
            )
        if skipped and not await self._backend.jobs.record(job, skipped):
            raise runner_lost(job)
        refusals = await self._backend.ledger.forward(job, batch)
        ended = [
            replace(each.item, state=ItemState.SENT if why is None else ItemState.SKIPPED, why=why)
            for each, why in zip(batch, refusals, strict=True)
        ]
        sent = refusals.count(None)
        self._sent += sent
        if sent:
            self._events.emit("redrive.sent", job_id=job.id, count=sent)
        counts = _moved(job.counts, sent=sent, skipped=len(items) - sent)
        return replace(job, counts=counts), [*ended, *skipped]

    def _copy(self, job: Job, letter: Letter | None, *, now: UnixMs) -> Outgoing | str:
        """What to send for this letter, or why nothing is."""
        if letter is None:
            return refusal(None, job.options, job_id=job.id) or ""
        try:
            message = redriven_message(letter, job, now=now, patch=self._patch)
        except PatchRefused as refused:
            return f"the edit does not fit: {refused}"
        return Outgoing(queue=job.options.target_queue or letter.queue, message=message)

    async def _end(self, job: Job, event: JobEvent, *, error: str | None = None, progress: str | None = None) -> Job:
        """Write how the job ended. Where that cannot be written it stays running and is taken over later."""
        stored = await self._stored(job)
        if stored.token != job.token or event not in JOB_TRANSITIONS[stored.state]:
            return stored
        ended = replace(
            stored,
            state=JOB_TRANSITIONS[stored.state][event],
            error=error,
            progress=stored.progress if progress is None else progress,
            updated_at=self._clock.now(),
        )
        self.has_ended = await self._backend.jobs.save(ended, lease_ms=0)
        return await self._stored(job)

    async def _stored(self, job: Job) -> Job:
        stored = await self._backend.jobs.get(job.id)
        assert stored is not None, "a job in hand is never deleted"
        return stored

    def _elapsed_ms(self) -> Millis:
        return int(self._clock.monotonic_ms() - self._started_ms)


def _asked(job: Job, found: tuple[Letter, tuple[AuditEntry, ...]] | None, copy: Outgoing | str) -> Asked:
    why = copy if isinstance(copy, str) else None
    if found is None or was_sent(job, *found):
        # Gone; or sent already, by a runner that was killed before it said so: nothing more to ask.
        return Asked(why=why)
    return asked(found[0], why)


def _silent(_job: Job) -> None:
    """Nobody watches."""


def _batch_size(job: Job) -> int:
    """So many as half a second of the wanted rate, so that a slow job is slow evenly and stops at once."""
    if job.options.rate_per_s is None:
        return SEND_BATCH
    return max(1, min(SEND_BATCH, int(job.options.rate_per_s * CHECK_MS / 1_000)))


def _moved(counts: JobCounts, *, sent: int, skipped: int) -> JobCounts:
    return replace(
        counts,
        pending=counts.pending - sent - skipped,
        sent=counts.sent + sent,
        skipped=counts.skipped + skipped,
    )


async def came_back(backend: Backend, job: Job, *, now: int) -> Returned:
    """How many of the letters this job sent have died again within the last minute.

    Looks at no more than the newest `MAX_RETURNS_LOOKED_AT` letters and items.
    """
    since = max(job.created_at, now - RETURN_WINDOW_MS)
    previous: set[str] = set()
    cursor, looked_at = None, 0
    while looked_at < MAX_RETURNS_LOOKED_AT:
        page = await backend.letters.find(Selection(since=since), limit=PAGE, cursor=cursor)
        previous.update(letter.previous for letter in page.letters if letter.previous is not None)
        looked_at += len(page.letters)
        cursor = page.cursor
        if cursor is None:
            break
    returned = await _sent_among(backend, job, previous) if previous else 0
    sent = job.counts.sent
    return Returned(sent=sent, came_back=returned, percent=round(100 * returned / sent) if sent else 0)


async def _sent_among(backend: Backend, job: Job, letter_ids: set[str]) -> int:
    after, count = max(-1, job.counts.selected - MAX_RETURNS_LOOKED_AT - 1), 0
    while items := await backend.jobs.items(job.id, state=ItemState.SENT, limit=PAGE, after=after):
        count += sum(item.letter_id in letter_ids for item in items)
        after = items[-1].position
    return count
