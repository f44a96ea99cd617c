"""Service: every operation a person can do, once. Surfaces (CLI, admin API, console) only translate to it.

Results are frozen values; nothing here prints, parses options or knows HTTP. Whatever is asked of many letters goes
by a `Selection` and works in bounded pages, so that a million letters need no more memory than fifty.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.policy.control import Control, ControlStore, merged
from redrive.core.policy.standing import Standing, reported
from redrive.core.ports import AuditEntry, LetterStats, LetterSummary, Page, Published, ReviewChange
from redrive.core.redrive import JOB_TRANSITIONS, Item, ItemState, Job, JobEvent, JobOptions, JobState, refusal
from redrive.core.units import Millis, UnixMs
from redrive.errors import ConfigurationError, NotFoundError, TransitionError, UnsupportedError
from redrive.runtime.app import Redrive
from redrive.runtime.archive import Archive
from redrive.runtime.redriver import OnProgress, Redriver, Returned, came_back, tell_job

PAGE: Final = 500
REMOVE_BATCH: Final = 100
"""Whole letters held in memory at once."""
LAST_HOUR_MS: Final[Millis] = 3_600_000
MAX_PAGE: Final = 1_000
MAX_IDS: Final = 10_000
SHOWN: Final = 50
"""Examples named one by one in a result; the numbers beside them are complete."""
FOLLOW_MS: Final[Millis] = 200
ABORT_TRIES: Final = 5
_SEE_LETTERS: Final = "See: redrive dlq list"

Counted: TypeAlias = Callable[[int], None]
"""Called with the number of letters done so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """One queue: what waits in it, what is dead of it, and whether this app consumes it."""

    queue: str
    ready: int
    scheduled: int
    leased: int
    dead: int
    oldest_ready_at: UnixMs | None
    is_consumed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What became of published messages. `duplicates` and `conflicts` enqueued nothing."""

    queue: str
    published: int
    duplicates: int = 0
    conflicts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterView:
    """One letter with its audit trail, oldest first."""

    letter: Letter
    audit: tuple[AuditEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Letters that are one problem. `count` is within the selection; the rest is of its oldest letter."""

    fingerprint: str
    title: str
    count: int
    queue: str
    reason_code: str
    first_failed_at: UnixMs


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlan:
    """What a redrive would do with the letters of one queue."""

    queue: str
    target: str
    send: int
    skip: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """One letter that would not be, or was not, sent, and why."""

    letter_id: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `redrive` would do now, letter by letter. Nothing was changed.

    `letters` are the first that would be sent, `skipped` the first that would not; `send`, `skip` and `queues` count
    all. `takes_ms`: how long it lasts at the wanted rate, None where it goes as fast as it can.
    """

    send: int
    skip: int
    queues: tuple[QueuePlan, ...]
    letters: tuple[LetterSummary, ...]
    skipped: tuple[Skip, ...]
    missing: tuple[str, ...]
    takes_ms: Millis | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A redrive job, the first of the letters it skipped and why, the ids nobody knew, and how many came back."""

    job: Job
    skipped: tuple[Skip, ...] = ()
    missing: tuple[str, ...] = ()
    returned: Returned | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewResult:
    """How many letters moved, how many the rules refused, and the first refused ones with the reason."""

    to: ReviewState
    changed: int
    refused: int
    refusals: tuple[Skip, ...]
    missing: tuple[str, ...] = ()


class Service:
    """The operations on one open app."""

    def __init__(self, app: Redrive) -> None:
        self._app = app
        self._redriver = Redriver(app.backend, app.clock, app.events)

    # ------------------------------------------------------------------------------------------- publish, queues

    async def publish(self, queue: str, messages: Sequence[tuple[Any, Mapping[str, Any]]]) -> Receipt:
        """Send messages, each a payload and its `Redrive.publish` arguments; returns when all are durable."""
        answers: list[Published] = await self._app.publish_many(queue, messages)
        duplicates = sum(answer.duplicate for answer in answers)
        conflicts = sum(answer.conflict for answer in answers)
        published = len(answers) - duplicates - conflicts
        return Receipt(queue=queue, published=published, duplicates=duplicates, conflicts=conflicts)

    @property
    def consumed_queues(self) -> tuple[str, ...]:
        """The queues this app has consumers for; empty where only its broker is known."""
        return tuple(self._app.consumers)

    async def queues(self) -> tuple[QueueView, ...]:
        """Every queue the broker knows, this app consumes, or that has open letters, by name."""
        stats = await self._app.backend.letters.stats(Selection(states=OPEN_STATES), top=MAX_PAGE)
        asked = {*self._app.consumers, *stats.by_queue}
        depths = {depth.queue: depth for depth in await self._app.backend.broker.depths(asked)}
        names = sorted({*depths, *self._app.consumers, *stats.by_queue} - self._dead_letter_names())
        return tuple(self._queue_view(name, depths.get(name), stats) for name in names)

    def _dead_letter_names(self) -> set[str]:
        return {consumer.dead_letter_queue for consumer in self._app.consumers.values()}

    def _queue_view(self, name: str, depth: Any, stats: LetterStats) -> QueueView:
        return QueueView(
            queue=name,
            ready=0 if depth is None else depth.ready,
            scheduled=0 if depth is None else depth.scheduled,
            leased=0 if depth is None else depth.leased,
            dead=stats.by_queue.get(name, 0),
            oldest_ready_at=None if depth is None else depth.oldest_ready_at,
            is_consumed=name in self._app.consumers,
        )

    async def standings(self, queue: str) -> tuple[Standing, ...]:
        """The tenants of a fair queue that wait or did so lately, the longest backlog first."""
        look = self._app.backend.standings
        if look is None:
            raise UnsupportedError(f'"{self._app.backend.url}" does not know where tenants stand.')
        return tuple(reported(await look(queue, MAX_PAGE), self._app.fair.get(queue)))

    async def controls(self) -> tuple[Control, ...]:
        """What people have changed of queues, by queue."""
        return tuple(await self._controls.list())

    async def set_limits(
        self, queue: str, *, batch: int | None, rates: Mapping[str, str], actor: str, note: str = ""
    ) -> Control:
        """Change these limits of a queue and leave the others; running workers follow within seconds. Raises
        `ConfigurationError` for a limit that cannot be.
        """
        known = {control.queue: control for control in await self._controls.list()}
        changed = merged(known.get(queue, Control(queue=queue)), batch=batch, rates=rates)
        return await self._put(replace(changed, actor=actor, note=note, changed_at=self._app.clock.now()))

    async def reset_limits(self, queue: str, *, actor: str, note: str = "") -> Control:
        """Let the consumer's own word hold again."""
        return await self._put(Control(queue=queue, actor=actor, note=note, changed_at=self._app.clock.now()))

    async def _put(self, control: Control) -> Control:
        await self._controls.put(control)
        self._app.events.emit(
            "queue.limits_set",
            queue=control.queue,
            batch=control.batch,
            rates=dict(control.rates),
            actor=control.actor,
            note=control.note,
        )
        return control

    @property
    def has_queues_in_file(self) -> bool:
        """Whether queues lie in the file that `backup` copies, and not on a server."""
        return self._app.backend.broker.features.name == "sqlite"

    @property
    def _controls(self) -> ControlStore:
        store = self._app.backend.controls
        if store is None:
            raise UnsupportedError(f'Limits of "{self._app.backend.url}" cannot be changed while workers run.')
        return store

    # ------------------------------------------------------------------------------------------- looking

    async def letters(self, selection: Selection, *, limit: int = 50, cursor: str | None = None) -> Page:
        """One page of letters, oldest first. Looking changes nothing."""
        if not 1 <= limit <= MAX_PAGE:
            raise ConfigurationError(f"limit is {limit}: a page holds 1 to {MAX_PAGE} letters.")
        return await self._app.backend.letters.find(selection, limit=limit, cursor=cursor)

    async def letter(self, letter_id: str) -> LetterView:
        """One letter with everything. Raises `NotFoundError`."""
        found = await self._app.backend.letters.get(letter_id)
        if found is None:
            raise NotFoundError(f'No dead letter has the id "{letter_id}".', hint=_SEE_LETTERS)
        return LetterView(letter=found[0], audit=found[1])

    async def stats(self, selection: Selection, *, top: int = 20) -> LetterStats:
        """Counts over a selection."""
        return await self._app.backend.letters.stats(selection, top=top)

    async def died_last_hour(self, selection: Selection) -> int:
        """How many of these letters died within the last hour."""
        since = max(self._app.clock.now() - LAST_HOUR_MS, selection.since or 0)
        return (await self.stats(replace(selection, since=since), top=1)).total

    async def groups(self, selection: Selection, *, limit: int = 20) -> tuple[Group, ...]:
        """The problems behind these letters, the largest first."""
        stats = await self.stats(selection, top=limit)
        groups = [await self._group(selection, *entry) for entry in stats.by_group.items()]
        return tuple(group for group in groups if group is not None)

    async def _group(self, selection: Selection, fingerprint: str, count: int) -> Group | None:
        page = await self._app.backend.letters.find(replace(selection, fingerprint=fingerprint), limit=1)
        if not page.letters:
            return None
        oldest = page.letters[0]
        return Group(
            fingerprint=fingerprint,
            title=oldest.group_title or oldest.reason_text,
            count=count,
            queue=oldest.queue,
            reason_code=oldest.reason_code,
            first_failed_at=oldest.first_failed_at,
        )

    # ------------------------------------------------------------------------------------------- redriving

    async def plan(
        self, selection: Selection, options: JobOptions | None = None, *, on_count: Counted | None = None
    ) -> Plan:
        """Exactly what `redrive` would do with these letters now: what it sends where, what it skips and why.
        Raises `NotFoundError` for a queue that is not there.
        """
        await self._refuse_unknown_queue(selection.queue)
        options = JobOptions() if options is None else options
        now = self._app.clock.now()
        sends, skips = Counter[str](), Counter[str]()
        letters: list[LetterSummary] = []
        skipped: list[Skip] = []
        async for letter in self._selected(redrivable(selection), limit=options.limit, on_count=on_count):
            why = refusal(letter, options, job_id="", at=now)
            if why is None:
                sends[letter.queue] += 1
                letters += [letter] if len(letters) < SHOWN else []
            else:
                skips[letter.queue] += 1
                skipped += [Skip(letter_id=letter.id, why=why)] if len(skipped) < SHOWN else []
        queues = tuple(
            QueuePlan(queue=name, target=options.target_queue or name, send=sends[name], skip=skips[name])
            for name in sorted({*sends, *skips})
        )
        send = sends.total()
        takes_ms = None if options.rate_per_s is None else int(send * 1_000 / options.rate_per_s)
        return Plan(
            send=send,
            skip=skips.total(),
            queues=queues,
            letters=tuple(letters),
            skipped=tuple(skipped),
            missing=await self._missing(selection.ids),
            takes_ms=takes_ms,
        )

    async def redrive(
        self,
        selection: Selection,
        options: JobOptions | None = None,
        *,
        actor: str,
        note: str = "",
        request_key: str | None = None,
        run: bool = True,
        on_progress: OnProgress | None = None,
    ) -> JobView:
        """Send these letters back. The job is stored first; `run` False leaves it to any worker and returns at once.

        The same `request_key` gets the job it made the first time, whatever has become of it; nothing is sent twice.
        Raises `NotFoundError` when ids are given and none is known, or a queue that is not.
        """
        missing = await self._missing(selection.ids)
        if selection.ids and len(missing) == len(set(selection.ids)):
            raise NotFoundError(f'No dead letter has the id "{missing[0]}". Nothing was sent.', hint=_SEE_LETTERS)
        await self._refuse_unknown_queue(selection.queue)
        now = self._app.clock.now()
        made = Job(
            id=f"rd_{now:012x}{secrets.token_hex(4)}",
            selection=redrivable(selection),
            options=JobOptions() if options is None else options,
            actor=actor,
            note=note,
            request_key=request_key,
            created_at=now,
            updated_at=now,
        )
        job = await self._app.backend.jobs.create(made)
        if job.id == made.id:
            tell_job(self._app.events, job, actor=actor)
        if on_progress is not None:
            on_progress(job)
        ended = await self._follow(job, on_progress) if run and job.state in _RUNNABLE else job
        return replace(await self._job_view(ended), missing=missing)

    async def resume(self, job_id: str, *, on_progress: OnProgress | None = None) -> JobView:
        """Go on with a job that was aborted, failed, or whose runner died. Nothing already sent is sent again."""
        job = await self._job(job_id)
        if JobEvent.START not in JOB_TRANSITIONS[job.state]:
            raise TransitionError(f"Job {job.id} is {job.state}: there is nothing to resume.")
        return await self._job_view(await self._follow(job, on_progress))

    async def abort(self, job_id: str, *, actor: str, note: str = "") -> JobView:
        """Stop a job. What it sent stays sent; the others are free again. Its runner stops within two seconds."""
        for _ in range(ABORT_TRIES):
            job = await self._job(job_id)
            if JobEvent.ABORT not in JOB_TRANSITIONS[job.state]:
                raise TransitionError(f"Job {job.id} is {job.state} already: there is nothing to stop.")
            text = f"aborted by {actor}" + (f": {note}" if note else "")
            ended = replace(job, state=JobState.ABORTED, error=text, updated_at=self._app.clock.now())
            if await self._app.backend.jobs.save(ended, lease_ms=0):
                stored = await self._job(job_id)
                tell_job(self._app.events, stored, actor=actor)
                return await self._job_view(stored)
        raise TransitionError(f"Job {job_id} passed from runner to runner and could not be stopped. Try again.")

    async def jobs(self, *, limit: int = 50) -> tuple[Job, ...]:
        """Redrive jobs, newest first."""
        return tuple(await self._app.backend.jobs.list(limit=limit))

    async def job(self, job_id: str) -> JobView:
        """One job, with what it skipped and how many of its letters came back. Raises `NotFoundError`."""
        return await self._job_view(await self._job(job_id))

    # ------------------------------------------------------------------------------------------- reviewing

    async def review(
        self,
        selection: Selection,
        to: ReviewState,
        *,
        actor: str,
        note: str = "",
        limit: int | None = None,
        on_count: Counted | None = None,
    ) -> ReviewResult:
        """Move these letters to a review state; each change is audited with who, when and why.

        Letters already there are left alone; an illegal move is refused with the reason and changes nothing.
        """
        changed, refused = 0, 0
        refusals: list[Skip] = []
        batch: list[str] = []

        async def flush() -> None:
            nonlocal changed, refused
            answers = await self._move(batch, to, actor=actor, note=note)
            changed += answers.count(None)
            refused += len(batch) - answers.count(None)
            refusals.extend(Skip(letter_id=id_, why=why) for id_, why in zip(batch, answers, strict=True) if why)
            del refusals[SHOWN:], batch[:]

        async for letter in self._selected(selection, limit=limit, on_count=on_count):
            if letter.state is not to:
                batch.append(letter.id)
            if len(batch) >= PAGE:
                await flush()
        await flush()
        missing = await self._missing(selection.ids)
        return ReviewResult(to=to, changed=changed, refused=refused, refusals=tuple(refusals), missing=missing)

    async def _move(self, letter_ids: Sequence[str], to: ReviewState, *, actor: str, note: str) -> list[str | None]:
        now = self._app.clock.now()
        changes = [ReviewChange(letter_id=id_, to=to, actor=actor, at=now, note=note) for id_ in letter_ids]
        answers = await self._app.backend.letters.review(changes)
        for letter_id, why in zip(letter_ids, answers, strict=True):
            if why is None:
                self._app.events.emit("letter.reviewed", letter_id=letter_id, to=str(to), actor=actor, note=note)
        if to is ReviewState.CLOSED:
            moved = [letter_id for letter_id, why in zip(letter_ids, answers, strict=True) if why is None]
            await self._drop_entries(moved)
        return answers

    async def _drop_entries(self, letter_ids: Sequence[str]) -> None:
        """What people closed leaves the broker's own dead-letter queue, too."""
        drop = self._app.backend.drop_entries
        if drop is None:
            return
        for start in range(0, len(letter_ids), REMOVE_BATCH):
            found = [await self._app.backend.letters.get(id_) for id_ in letter_ids[start : start + REMOVE_BATCH]]
            await drop([each[0] for each in found if each is not None])

    # ------------------------------------------------------------------------------------------- out, in, away

    async def whole(
        self, selection: Selection, *, limit: int | None = None, on_count: Counted | None = None
    ) -> AsyncIterator[Letter]:
        """These letters with everything in them, oldest first. Looking changes nothing."""
        async for summary in self._selected(selection, limit=limit, on_count=on_count):
            found = await self._app.backend.letters.get(summary.id)
            if found is not None:
                yield found[0]

    async def take_in(self, letters: Sequence[Letter]) -> int:
        """Store letters that were exported; how many the store did not have yet. Those it has stay as they are."""
        ids = tuple(letter.id for letter in letters)
        page = await self._app.backend.letters.find(Selection(ids=ids), limit=max(1, len(ids)))
        fresh = [replace(letter, outstanding_job=None) for letter in letters]
        await self._app.backend.letters.put(fresh)
        return len(set(ids)) - len(page.letters)

    async def remove(
        self,
        selection: Selection,
        *,
        actor: str,
        note: str = "",
        archive: Archive | None = None,
        limit: int | None = None,
        on_count: Counted | None = None,
    ) -> int:
        """Remove these letters for good; how many went. Each is in the archive, on disk, before it goes. Killed in
        between, some went and the archive has more than those. What a redrive job holds stays.
        """
        removed = 0
        batch: list[Letter] = []

        async def flush() -> int:
            if archive is not None:
                await asyncio.to_thread(archive.write, batch)
            # Before the letters: an entry whose letter is gone would never be looked for again.
            if self._app.backend.drop_entries is not None:
                await self._app.backend.drop_entries(batch)
            these = replace(selection, ids=tuple(letter.id for letter in batch))
            gone = await self._app.backend.letters.prune(now=self._app.clock.now(), limit=len(batch), selection=these)
            batch.clear()
            return gone

        async for letter in self.whole(selection, limit=limit, on_count=on_count):
            if letter.outstanding_job is None:
                batch.append(letter)
            if len(batch) >= REMOVE_BATCH:
                removed += await flush()
        removed += await flush() if batch else 0
        if removed:
            self._app.events.emit("letters.removed", count=removed, actor=actor, note=note)
        return removed

    # ------------------------------------------------------------------------------------------- backup

    async def backup(self, target: Path) -> None:
        """Copy everything into a new file while others go on working. Raises `UnsupportedError` where the broker is
        no file, `ConfigurationError` where the target exists.
        """
        copy = self._app.backend.backup
        if copy is None:
            raise UnsupportedError(f'"{self._app.backend.url}" is not a file redrive can copy. Nothing was written.')
        if target.exists():  # noqa: ASYNC240 - one look at a local file
            raise ConfigurationError(f'"{target}" exists already. Nothing was written.', hint="Name a new file.")
        await copy(target)

    # ------------------------------------------------------------------------------------------- below

    async def _selected(
        self, selection: Selection, *, limit: int | None, on_count: Counted | None
    ) -> AsyncIterator[LetterSummary]:
        cursor, count = None, 0
        while limit is None or count < limit:
            size = PAGE if limit is None else min(PAGE, limit - count)
            page = await self._app.backend.letters.find(selection, limit=size, cursor=cursor)
            for letter in page.letters:
                yield letter
            count += len(page.letters)
            cursor = page.cursor
            if on_count is not None:
                on_count(count)
            if cursor is None:
                return

    async def _missing(self, ids: Sequence[str]) -> tuple[str, ...]:
        if len(ids) > MAX_IDS:
            raise ConfigurationError(f"{len(ids)} ids are too many at once (maximum {MAX_IDS}). Use a filter.")
        return tuple([id_ for id_ in dict.fromkeys(ids) if await self._app.backend.letters.get(id_) is None])

    async def _refuse_unknown_queue(self, queue: str | None) -> None:
        """Known is what this app consumes, what dead letters came from, and what the broker has."""
        if queue is None or queue in {*self._app.consumers, *self._dead_letter_names()}:
            return
        backend = self._app.backend
        if (await backend.letters.stats(Selection(queue=queue), top=1)).total:
            return
        if queue not in {depth.queue for depth in await backend.broker.depths([queue])}:
            raise NotFoundError(
                f'There is no queue "{queue}", and no dead letter of one. Nothing was sent.',
                hint="See: redrive queues list",
            )

    async def _follow(self, job: Job, on_progress: OnProgress | None) -> Job:
        """Run the job, or watch whoever runs it, until it has ended."""
        owner = runner_name()
        while True:
            ended = await self._redriver.run(job.id, owner=owner, on_progress=on_progress)
            if ended is None:
                ended = await self._job(job.id)
            if on_progress is not None:
                on_progress(ended)
            if ended.state not in (JobState.STAGED, JobState.RUNNING):
                return ended
            await self._app.clock.sleep(FOLLOW_MS)

    async def _job(self, job_id: str) -> Job:
        job = await self._app.backend.jobs.get(job_id)
        if job is None:
            raise NotFoundError(f'No redrive job has the id "{job_id}".', hint="See: redrive dlq jobs")
        return job

    async def _job_view(self, job: Job) -> JobView:
        items: list[Item] = []
        if job.counts.skipped:
            items = await self._app.backend.jobs.items(job.id, state=ItemState.SKIPPED, limit=SHOWN)
        skipped = tuple(Skip(letter_id=item.letter_id, why=item.why or "") for item in items)
        returned = None
        if job.counts.sent:
            returned = await came_back(self._app.backend, job, now=self._app.clock.now())
        return JobView(job=job, skipped=skipped, returned=returned)


_RUNNABLE: Final = frozenset({JobState.STAGED, JobState.RUNNING})


def redrivable(selection: Selection) -> Selection:
    """What a redrive of this selection means: letters named by id as they are (a closed one is then skipped with the
    reason), else only those a person still has to decide about.
    """
    return selection if selection.ids or selection.states else replace(selection, states=OPEN_STATES)


def runner_name() -> str:
    """Who holds a job, as a person can find the process: host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"
