"""Overflow: a consumer's dead letters over their maximum, or over their time. They go into an archive file first, and
only then away.

    a letter is stored ─→ counted (at most once a second) ─→ over the maximum: the oldest open ones into a file of
    JSON lines, on disk ─→ removed ─→ told (`letters.archived`, an error: somebody has to look)

    now and then ─→ open letters whose time is over (`letter_ttl`) into the file ─→ removed ─→ told (`letters.expired`)

Nothing is dropped: `redrive dlq import FILE` puts them back, as often as one likes. Every worker looks after its own
deaths; two that do at once write a letter twice, and loading it twice is loading it once. Killed between writing and
removing, the letter is in both places. Where the file cannot be written the letters stay, over the maximum, and that is
told (`letters.not_archived`) and tried again. What a redrive job holds, or was sent back and is under way, stays too.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.units import Millis
from redrive.errors import RedriveError
from redrive.runtime.archive import Archive
from redrive.runtime.consumer import Consumer
from redrive.runtime.events import Event

if TYPE_CHECKING:
    from redrive.runtime.app import Redrive

COUNTED: Final = OPEN_STATES | {ReviewState.REPLAYED}
"""A letter counts until the message was processed or a person closed it."""

LOOK_MS: Final[Millis] = 1_000
"""Counted no more often than this."""

RETRY_MS: Final[Millis] = 30_000
"""Between two tries to write the file."""

BATCH: Final = 100
"""Whole letters in memory at once."""

MAX_PAGES: Final = 100
"""Of letters looked through for their time in one round, which begins where the last one ended."""

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


class Overflow:
    """The maxima and times of these consumers' letters, in one worker. `run` goes on until it is cancelled; cancelling
    loses nothing.
    """

    def __init__(self, app: Redrive, consumers: Sequence[Consumer], *, owner: str) -> None:
        self._app = app
        self._owner = owner
        self._bounded = {each.dead_letter_queue: each for each in consumers if each.max_letters is not None}
        self._mortal = {each.dead_letter_queue: each for each in consumers if each.letter_ttl_ms is not None}
        self._walked: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._due = set(self._bounded)  # what lies there from before counts, too
        self._changed.set()
        app.events.subscribe(self._hear)

    def _hear(self, event: Event) -> None:
        if event.name == "delivery.dead_lettered" and event.fields["dead_letter_queue"] in self._bounded:
            self._due.add(event.fields["dead_letter_queue"])
            self._changed.set()

    async def run(self) -> None:
        """Look whenever something died, and now and then for what is over its time."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_deaths())
            group.create_task(self._follow_time())

    async def _follow_time(self) -> None:
        while self._mortal:
            await self._app.clock.sleep(self._app.settings.upkeep_interval_ms)
            for queue in sorted(self._mortal):
                await self._carried_out(queue, self.expire)

    async def _follow_deaths(self) -> None:
        while self._bounded:
            await self._changed.wait()
            self._changed.clear()
            due, self._due = self._due, set()
            failed = [queue for queue in sorted(due) if not await self._carried_out(queue, self.look)]
            await self._app.clock.sleep(RETRY_MS if failed else LOOK_MS)
            if failed:
                self._due.update(failed)
                self._changed.set()

    async def _carried_out(self, queue: str, duty: Callable[[str], Awaitable[int]]) -> bool:
        try:
            await duty(queue)
        except OSError as error:
            text = f"{type(error).__name__}: {error}"
            self._app.events.emit("letters.not_archived", queue=queue, file=str(self.file_of(queue)), error_text=text)
            return False
        except RedriveError:
            return False  # the store is away; the pipelines tell of it
        return True

    async def look(self, queue: str) -> int:
        """Archive what this dead-letter queue has over its maximum; how many went. Raises `OSError` where the file
        cannot be written, and `RedriveError` where the store is away: the rest stays as it is.
        """
        limit = self._bounded[queue].max_letters
        assert limit is not None, queue
        letters, file = self._app.backend.letters, self.file_of(queue)
        total = (await letters.stats(Selection(queue=queue, states=COUNTED), top=1)).total
        gone = 0
        while total - gone > limit:
            oldest = await self._oldest(queue, min(BATCH, total - gone - limit))
            removed = await self._archive(file, oldest) if oldest else 0
            if not removed:
                break
            gone += removed
        if gone:
            self._app.events.emit("letters.archived", queue=queue, count=gone, max_letters=limit, file=str(file))
        return gone

    async def expire(self, queue: str) -> int:
        """Archive the open letters of this dead-letter queue whose time is over; how many went. Raises as `look`.

        Those that were redriven or closed have no need of a file; `LetterStore.prune` removes them.
        """
        store, file, gone = self._app.backend.letters, self.file_of(queue), 0
        wanted = Selection(queue=queue, states=OPEN_STATES)
        for _ in range(MAX_PAGES):
            page = await store.find(wanted, limit=BATCH, cursor=self._walked.get(queue))
            now = self._app.clock.now()
            over = [each for each in page.letters if each.expires_at is not None and each.expires_at <= now]
            letters = await self._whole([each.id for each in over if each.outstanding_job is None])
            gone += await self._archive(file, letters) if letters else 0
            if page.cursor is None:
                self._walked.pop(queue, None)
                break
            self._walked[queue] = page.cursor
        if gone:
            self._app.events.emit("letters.expired", queue=queue, count=gone, file=str(file))
        return gone

    def file_of(self, queue: str) -> Path:
        """One file a day, queue and worker: no two processes write into one."""
        day = datetime.fromtimestamp(self._app.clock.now() / 1_000, UTC).strftime("%Y-%m-%d")
        name = "_".join(_UNSAFE.sub("-", part) for part in (queue, day, self._owner))
        return Path(self._app.settings.archive) / f"{name}.jsonl"

    async def _oldest(self, queue: str, limit: int) -> list[Letter]:
        store, cursor = self._app.backend.letters, None
        found: list[Letter] = []
        while len(found) < limit:
            page = await store.find(Selection(queue=queue, states=OPEN_STATES), limit=BATCH, cursor=cursor)
            free = [summary.id for summary in page.letters if summary.outstanding_job is None]
            found += await self._whole(free[: limit - len(found)])
            cursor = page.cursor
            if cursor is None:
                break
        return found

    async def _whole(self, ids: Sequence[str]) -> list[Letter]:
        found = [await self._app.backend.letters.get(letter_id) for letter_id in ids]
        return [each[0] for each in found if each is not None]

    async def _archive(self, file: Path, letters: list[Letter]) -> int:
        """Killed before the removal, they are in the file and in the store; loading the file then adds none."""
        backend = self._app.backend
        await asyncio.to_thread(self._write, file, letters)
        if backend.drop_entries is not None:
            await backend.drop_entries(letters)
        selection = Selection(ids=tuple(letter.id for letter in letters), states=OPEN_STATES)
        return await backend.letters.prune(now=self._app.clock.now(), limit=len(letters), selection=selection)

    @staticmethod
    def _write(path: Path, letters: list[Letter]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with Archive(path) as archive:
            archive.write(letters)
