"""Dead letters in memory, in order of death."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from redrive.core.letters import ages
from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.meant import is_meant
from redrive.core.letters.review import moves
from redrive.core.letters.selection import OPEN_STATES, Place, Selection, cursor_at, place_of
from redrive.core.ports import AuditEntry, LetterStats, LetterSummary, Page, ReviewChange
from redrive.core.units import UnixMs
from redrive.stores.memory.groups import MemoryGroupStore


@dataclass(slots=True, kw_only=True)
class KeptLetter:
    """One stored letter. `number` is its place in the order of arrival."""

    number: int
    letter: Letter
    audit: tuple[AuditEntry, ...] = ()

    @property
    def place(self) -> Place:
        """Its place in the order of death; unique, and never changed."""
        return (self.letter.dead_lettered_at, self.number)


class MemoryLetterStore:
    """A `LetterStore` in memory."""

    def __init__(self) -> None:
        self._kept: dict[str, KeptLetter] = {}
        self._arrivals = 0
        self._named: set[str] = set()
        self.groups = MemoryGroupStore()

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close; the letters stay."""

    async def put(self, batch: Sequence[Letter]) -> None:
        """See `LetterStore.put`."""
        for letter in batch:
            if letter.id not in self._kept:
                self._arrivals += 1
                self._kept[letter.id] = KeptLetter(number=self._arrivals, letter=letter)
                self._named.add(letter.previous or "")
                before = self._kept.get(letter.previous or "")
                self.groups.arrived(letter, previous=None if before is None else before.letter.fingerprint)

    async def get(self, letter_id: str) -> tuple[Letter, tuple[AuditEntry, ...]] | None:
        """See `LetterStore.get`."""
        kept = self._kept.get(letter_id)
        return None if kept is None else (kept.letter, kept.audit)

    async def find(self, selection: Selection, *, limit: int, cursor: str | None = None) -> Page:
        """See `LetterStore.find`."""
        after = None if cursor is None else place_of(cursor)
        found = self.selected(selection, after=after, limit=limit + 1)
        more = len(found) > limit
        page = found[:limit]
        return Page(
            letters=tuple(_summary(kept.letter) for kept in page),
            cursor=cursor_at(page[-1].place) if more and page else None,
        )

    async def stats(
        self, selection: Selection, *, top: int = 20, ages_at: UnixMs | None = None, up_to: int | None = None
    ) -> LetterStats:
        """See `LetterStore.stats`. A letter without a tenant counts as tenant "-"."""
        found = [kept.letter for kept in self.selected(selection)]
        letters = found[:up_to]
        return LetterStats(
            total=len(letters),
            by_state=_largest((str(letter.state) for letter in letters), top),
            by_queue=_largest((letter.queue for letter in letters), top),
            by_reason=_largest((letter.reason.code for letter in letters), top),
            by_group=_largest((letter.fingerprint for letter in letters), top),
            by_tenant=_largest((letter.message.tenant or "-" for letter in letters), top),
            oldest_at=min((letter.dead_lettered_at for letter in letters if letter.state in OPEN_STATES), default=None),
            ages=None if ages_at is None else ages.ages_at(ages_at, (letter.dead_lettered_at for letter in found)),
            is_at_least=len(letters) < len(found),
        )

    async def review(self, batch: Sequence[ReviewChange]) -> list[str | None]:
        """See `LetterStore.review`."""
        return [self._review_one(change) for change in batch]

    async def earlier(self, letter_ids: Sequence[str], *, job_id: str | None) -> dict[str, str]:
        """See `LetterStore.earlier`."""
        asked = [kept for each in letter_ids if (kept := self._kept.get(each)) is not None and kept.letter.message.key]
        scopes = {(kept.letter.queue, kept.letter.message.key) for kept in asked}
        first: dict[tuple[str, str | None], KeptLetter] = {}
        for kept in sorted(self._kept.values(), key=lambda each: each.place):
            scope = (kept.letter.queue, kept.letter.message.key)
            is_held = job_id is not None and kept.letter.outstanding_job == job_id
            if scope in scopes and kept.letter.state in OPEN_STATES and not is_held:
                first.setdefault(scope, kept)
        found = ((kept, first.get((kept.letter.queue, kept.letter.message.key))) for kept in asked)
        return {kept.letter.id: one.letter.id for kept, one in found if one is not None and one.place < kept.place}

    async def prune(self, *, now: UnixMs, limit: int, selection: Selection | None = None) -> int:
        """See `LetterStore.prune`."""
        if selection is None:
            gone = [letter_id for letter_id, kept in self._kept.items() if _may_go(kept.letter, now)][:limit]
        else:
            wanted = (kept.letter for kept in self.selected(selection))
            gone = [letter.id for letter in wanted if letter.outstanding_job is None][:limit]
        for letter_id in gone:
            self.groups.removed(self._kept.pop(letter_id).letter)
        return len(gone)

    def selected(
        self, selection: Selection, *, after: Place | None = None, limit: int | None = None
    ) -> list[KeptLetter]:
        """The selected letters in order of death, from behind the place `after`."""
        matching = (kept for kept in self._kept.values() if is_meant(selection, kept.letter))
        later = sorted((kept for kept in matching if after is None or kept.place > after), key=lambda kept: kept.place)
        return later[:limit]

    @property
    def arrivals(self) -> int:
        """How many letters have ever arrived: the number of the newest."""
        return self._arrivals

    def hold(self, letter_id: str, job_id: str) -> None:
        """Mark the letter as held by a redrive job, unless another holds it."""
        kept = self._kept.get(letter_id)
        if kept is not None and kept.letter.outstanding_job is None:
            kept.letter = replace(kept.letter, outstanding_job=job_id)

    def free(self, letter_id: str, job_id: str) -> None:
        """Take this job's mark off the letter."""
        kept = self._kept.get(letter_id)
        if kept is not None and kept.letter.outstanding_job == job_id:
            kept.letter = replace(kept.letter, outstanding_job=None)

    def fates(self, letter_ids: Sequence[str], *, since: UnixMs) -> tuple[int, int]:
        """How many of these letters, each redriven since then, are closed, and how many failed again."""
        again = {kept.letter.previous for kept in self._kept.values() if kept.letter.dead_lettered_at >= since}
        states = [
            kept.letter.state
            for letter_id in letter_ids
            if (kept := self._kept.get(letter_id)) is not None and letter_id not in again
        ]
        return states.count(ReviewState.CLOSED), sum(letter_id in again for letter_id in letter_ids)

    def _review_one(self, change: ReviewChange) -> str | None:
        kept = self._kept.get(change.letter_id)
        if kept is None:
            return f'no dead letter has the id "{change.letter_id}"'
        steps = moves(kept.letter.state, change.to)
        if isinstance(steps, str):
            return steps
        self.groups.moved(kept.letter, steps, has_returned=kept.letter.id in self._named)
        kept.letter = replace(kept.letter, state=change.to)
        kept.audit += tuple(
            AuditEntry(letter_id=change.letter_id, at=change.at, actor=change.actor, action=str(step), note=change.note)
            for step in steps
        )
        return None


def _summary(letter: Letter) -> LetterSummary:
    return LetterSummary(
        id=letter.id,
        queue=letter.queue,
        dead_letter_queue=letter.dead_letter_queue,
        message_id=letter.message.id,
        key=letter.message.key,
        tenant=letter.message.tenant,
        message_type=letter.message.properties.type,
        reason_code=letter.reason.code,
        reason_text=letter.reason.text,
        error_type=letter.error_type,
        error_code=letter.error_code,
        attempt_count=letter.attempt_count,
        fingerprint=letter.fingerprint,
        group_title=letter.group_title,
        state=letter.state,
        first_failed_at=letter.first_failed_at,
        dead_lettered_at=letter.dead_lettered_at,
        expires_at=letter.expires_at,
        redrive_count=letter.redrive_count,
        previous=letter.previous,
        outstanding_job=letter.outstanding_job,
        body_bytes=len(letter.message.body),
        version=letter.version,
    )


def _largest(names: Iterable[str], top: int) -> dict[str, int]:
    counted = Counter(names).items()
    return dict(sorted(counted, key=lambda entry: (-entry[1], entry[0]))[:top])


def _may_go(letter: Letter, now: UnixMs) -> bool:
    return letter.expires_at is not None and letter.expires_at <= now and letter.state not in OPEN_STATES
