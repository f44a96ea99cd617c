"""The canary of one run of a redrive job: chosen, sent first, watched; and the watch over the rest.

`redrive.core.letters.canary` decides; this asks the stores what became of the letters. What was chosen, how much of
each stratum went, and whether the canary is over stand in the job (`Job.progress`), written before anything of it is
sent and after each batch. Killed between a batch and that: the next runner counts a batch less as sent, which makes it
a little more careful, never less.

A canary that has stopped the job is over with it: whoever resumes the job chooses another one among the letters that
are left, and what was sent before that says nothing of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from redrive.core.letters.canary import (
    Choice,
    Progress,
    Stratum,
    StratumName,
    Verdict,
    progress_from_json,
    progress_json,
    share,
    verdict,
)
from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.message import HEADER_REDRIVEN_AT, HEADER_REDRIVEN_BATCH, Headers
from redrive.core.ports import LetterSummary
from redrive.core.redrive import Item, ItemState, Job
from redrive.core.units import Millis, UnixMs, parse_instant
from redrive.errors import ConfigurationError
from redrive.runtime.backend import Backend

PAGE = 500
LOOK_MS: Millis = 1_000
"""Between two looks at what became of the letters."""
MAX_PAGES = 20
"""Pages of letters that died since, in one look; the next one goes on from there."""
OVERLAP_MS: Millis = 60_000
"""The clocks of hosts differ: who has read to the end starts again so long before the newest letter."""
KNOWN_PART = 0.5
"""Of the canary, the part whose fate has to be known before the rest may go."""


class Canary:
    """The canary of a job that has one. Made anew by each runner, from what the job keeps."""

    def __init__(self, backend: Backend, job: Job) -> None:
        self._backend = backend
        self._job = job
        self._progress = progress_from_json(job.progress)
        self._failed: Counter[StratumName] = Counter()
        self._items: dict[int, Item] = {}
        self._returned: set[str] = set()
        self._looked_at: dict[str, UnixMs] = {}
        self._newest: UnixMs = 0
        self._since: UnixMs = 0
        self._cursor: str | None = None

    @property
    def is_chosen(self) -> bool:
        """Whether the job says already who goes first. Not where that one has stopped the job, which now goes on."""
        return self._progress is not None and not self._progress.is_stopped

    @property
    def is_over(self) -> bool:
        """Whether the rest may go."""
        return self._progress is not None and self._progress.is_over

    @property
    def is_behind(self) -> bool:
        """Whether the last look ended before the newest letter: more may have died again than is known."""
        return self._cursor is not None

    async def choose(self, *, now: UnixMs) -> str:
        """Look at every letter of the job once and choose; the job's `progress`, to be stored before any is sent.

        Killed before it is stored: nothing of it was sent, and the next runner chooses anew.
        """
        count = self._job.options.canary
        assert count is not None, "only a job with a canary has one"
        choice = Choice(self._job.id, count)
        after = -1
        while items := await self._backend.jobs.items(self._job.id, state=ItemState.PENDING, limit=PAGE, after=after):
            summaries = await self._summaries([item.letter_id for item in items])
            for item in items:
                letter = summaries.get(item.letter_id)
                if letter is not None:
                    choice.show(item.position, item.letter_id, _name(letter))
            after = items[-1].position
        chosen = await self._at(sorted(choice.chosen()))
        first = await self._firsts(list(chosen.values()))
        positions = tuple(position for position, item in chosen.items() if item.letter_id in first)
        since = 0 if self._progress is None else now
        self._progress = Progress(positions=positions, sizes=choice.sizes, sent={}, since=since)
        return progress_json(self._progress)

    async def waiting(self, limit: int) -> list[Item]:
        """The next of the canary that are not sent yet."""
        return [item for item in (await self._canary_items()).values() if item.state is ItemState.PENDING][:limit]

    async def went(self, items: Sequence[Item]) -> str:
        """These were sent, or skipped, as their state says; the job's `progress`, to be stored."""
        assert self._progress is not None
        self._items.update({item.position: item for item in items if item.position in self._items})
        summaries = await self._summaries([item.letter_id for item in items if item.state is ItemState.SENT])
        sent = Counter(self._progress.sent)
        sent.update(self._stratum(_name(letter)) for letter in summaries.values())
        self._progress = replace(self._progress, sent=sent)
        return progress_json(self._progress)

    def over(self) -> str:
        """The canary is known and the rest may go; the job's `progress`, to be stored."""
        assert self._progress is not None
        self._progress = replace(self._progress, is_over=True)
        return progress_json(self._progress)

    def stopped(self) -> str:
        """The job stops; its `progress`, to be stored with that."""
        assert self._progress is not None
        return progress_json(replace(self._progress, is_stopped=True))

    async def look(self, *, is_over: bool) -> tuple[Verdict, int, int]:
        """(what to do, canary letters whose fate is known, canary letters sent). `is_over`: no more will be known."""
        assert self._progress is not None
        await self._look_for_returns()
        if self._progress.is_over:
            known = Counter(self._progress.sent)
            return self._verdict(known, is_over=False), 0, 0
        known, sent = await self._known_of_canary()
        return self._verdict(known, is_over=is_over), known.total(), sent

    def told(self) -> str:
        """Why the job stops, for a person."""
        strata = self._strata(Counter(self._progress.sent if self._progress is not None else {}))
        failed, sent = sum(self._failed.values()), sum(each.known for each in strata)
        return f"stopped by its canary: {failed} of {sent} sent failed again (about {share(strata):.1%} of all would)"

    def _verdict(self, known: Counter[StratumName], *, is_over: bool) -> Verdict:
        return verdict(self._strata(known), is_over=is_over)

    def _strata(self, known: Counter[StratumName]) -> list[Stratum]:
        assert self._progress is not None
        return [
            Stratum(size=size, known=max(known[name], self._failed[name]), failed=self._failed[name])
            for name, size in self._progress.sizes.items()
        ]

    async def _known_of_canary(self) -> tuple[Counter[StratumName], int]:
        items = (await self._canary_items()).values()
        ids = [item.letter_id for item in items if item.state is ItemState.SENT]
        known = Counter(
            self._stratum(_name(letter))
            for letter in (await self._summaries(ids)).values()
            if letter.state is ReviewState.CLOSED or letter.id in self._returned
        )
        return known, len(ids)

    async def _canary_items(self) -> dict[int, Item]:
        assert self._progress is not None
        if not self._items:
            self._items = await self._at(self._progress.positions)
        return self._items

    async def _at(self, positions: Sequence[int]) -> dict[int, Item]:
        found = {}
        for position in positions:
            for item in await self._backend.jobs.items(self._job.id, state=None, limit=1, after=position - 1):
                found[position] = item
        return found

    async def _look_for_returns(self) -> None:
        """Letters that died since the job was made and that are copies it sent. Where many die, of whatever job or
        queue, one look does not get to the end; the next one goes on.
        """
        assert self._progress is not None
        if not self.is_behind:
            self._since = max(self._job.created_at, self._progress.since - OVERLAP_MS, self._newest - OVERLAP_MS)
            self._looked_at = {letter_id: at for letter_id, at in self._looked_at.items() if at >= self._since}
        for _ in range(MAX_PAGES):
            page = await self._backend.letters.find(Selection(since=self._since), limit=PAGE, cursor=self._cursor)
            fresh = [each for each in page.letters if each.id not in self._looked_at]
            for each in fresh:
                self._looked_at[each.id] = each.dead_lettered_at
                self._newest = max(self._newest, each.dead_lettered_at)
                if each.previous is not None and each.previous not in self._returned:
                    await self._count(each.id, each.previous)
            self._cursor = page.cursor
            if not self.is_behind:
                return

    async def _count(self, letter_id: str, previous: str) -> None:
        found = await self._backend.letters.get(letter_id)
        if found is None or not self._is_ours(found[0].message.headers):
            return
        before = (await self._summaries([previous])).get(previous)
        if before is not None:
            self._returned.add(previous)
            self._failed[self._stratum(_name(before))] += 1

    def _is_ours(self, headers: Headers) -> bool:
        """Whether this job sent it, and not before its canary was chosen."""
        assert self._progress is not None
        return headers.get(HEADER_REDRIVEN_BATCH) == self._job.id and (
            self._progress.since == 0 or _sent_at(headers) >= self._progress.since
        )

    async def _summaries(self, ids: Sequence[str]) -> dict[str, LetterSummary]:
        found: dict[str, LetterSummary] = {}
        for start in range(0, len(ids), PAGE):
            some = tuple(ids[start : start + PAGE])
            page = await self._backend.letters.find(Selection(ids=some), limit=PAGE)
            found.update({letter.id: letter for letter in page.letters})
        return found

    async def _firsts(self, items: Sequence[Item]) -> set[str]:
        """Those that no earlier open letter of their key stands before: a letter that goes early overtakes none."""
        found = set()
        for letter in (await self._summaries([item.letter_id for item in items])).values():
            if letter.key is not None:
                earlier = Selection(queue=letter.queue, key=letter.key, states=OPEN_STATES)
                page = await self._backend.letters.find(earlier, limit=1)
                if page.letters and page.letters[0].id != letter.id:
                    continue
            found.add(letter.id)
        return found

    def _stratum(self, name: StratumName) -> StratumName:
        assert self._progress is not None
        return name if name in self._progress.sizes else ("", "")


def _name(letter: LetterSummary) -> StratumName:
    return letter.fingerprint, letter.tenant or ""


def _sent_at(headers: Headers) -> UnixMs:
    try:
        return parse_instant(str(headers.get(HEADER_REDRIVEN_AT)))
    except ConfigurationError:
        # Somebody has written over it: rather as sent before.
        return 0
