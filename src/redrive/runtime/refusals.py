"""Whether letters may be sent now, as far as that does not stand in the letter: what their consumer still remembers,
and who waits before them. `redrive.core.refusals` has the rules; this asks the stores.

It only reads. A redrive job asks when it has staged letters and again right before it sends them: killed in between,
the second time decides. What changes after that, while the copies are on their way, is not seen.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from redrive.core.letters.letter import COLLECTED_ID, Letter
from redrive.core.letters.selection import OPEN_STATES, Selection
from redrive.core.ports import Clock, LetterSummary
from redrive.core.redrive import JobOptions
from redrive.core.refusals import DEFAULT_KEY_RETENTION_MS, RefusalCode, forgotten, overtakes
from redrive.core.units import Millis, UnixMs
from redrive.runtime.backend import Backend
from redrive.runtime.consumer import Consumer

PAGE: Final = 500

_Scope: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One letter to be sent. `why`: it is not, for another reason, and so holds up the later ones of its key where it
    `is_open`. Without a key there is nothing to ask.
    """

    letter_id: str = ""
    queue: str = ""
    key: str | None = None
    died_at: UnixMs = 0
    is_open: bool = False
    why: str | None = None


def asked(letter: Letter | LetterSummary, why: str | None = None) -> Asked:
    """This letter."""
    return Asked(
        letter_id=letter.id,
        queue=letter.queue,
        key=letter.message.key if isinstance(letter, Letter) else letter.key,
        died_at=letter.dead_lettered_at,
        is_open=letter.state in OPEN_STATES,
        why=why,
    )


class Refusals:
    """What is refused, of letters that come in order of death. One that plans goes on from one call to the next."""

    def __init__(self, backend: Backend, clock: Clock, consumers: Mapping[str, Consumer]) -> None:
        self._backend = backend
        self._clock = clock
        self._consumers = consumers
        self._planned: set[str] = set()
        self._lines: dict[_Scope, deque[str]] = {}

    async def of_job(self, letters: Sequence[Asked], options: JobOptions, *, job_id: str) -> list[str | None]:
        """Why each of these letters of a job is not sent; None where it is. What the job holds goes first."""
        whys = await self._forgotten(letters, options)
        if RefusalCode.OUT_OF_ORDER in options.even_if:
            return whys
        earlier = await self._earlier(letters, whys, job_id=job_id)
        return _in_order(letters, whys, earlier=earlier)

    async def of_plan(self, letters: Sequence[Asked], options: JobOptions) -> list[str | None]:
        """As `of_job`, before there is a job: what an earlier call let pass goes first."""
        whys = await self._forgotten(letters, options)
        if RefusalCode.OUT_OF_ORDER not in options.even_if:
            earlier = await self._earlier(letters, whys, job_id=None)
            for place, letter in enumerate(letters):
                if whys[place] is None and letter.letter_id in earlier:
                    first = await self._left_in_line(letter)
                    whys[place] = None if first is None else overtakes(first)
                if whys[place] is None and letter.key is not None:
                    self._planned.add(letter.letter_id)
        return whys

    async def _forgotten(self, letters: Sequence[Asked], options: JobOptions) -> list[str | None]:
        whys = [letter.why for letter in letters]
        if RefusalCode.DEDUP_EXPIRED in options.even_if:
            return whys
        now, claims = self._clock.now(), self._backend.claims
        old: list[tuple[int, str, str, Millis]] = []
        for place, letter in enumerate(letters):
            target = options.target_queue or letter.queue
            retention_ms = self._retention_ms(target, letter)
            if letter.why is None and letter.key is not None and retention_ms is not None:
                old += [(place, target, letter.key, retention_ms)] if now - letter.died_at > retention_ms else []
        records = await asyncio.gather(*(claims.get(target, key) for _, target, key, _ in old))
        for (place, target, _, retention_ms), record in zip(old, records, strict=True):
            died_at = letters[place].died_at
            whys[place] = forgotten(target, record, died_at=died_at, retention_ms=retention_ms, now=now)
        return whys

    def _retention_ms(self, queue: str, letter: Asked) -> Millis | None:
        """How long the consumer of this queue remembers a key; None where it does not deduplicate at all. One that is
        not known here is redrive's, unless the letter comes from somebody else's.
        """
        consumer = self._consumers.get(queue)
        if consumer is None:
            return None if letter.letter_id.startswith(COLLECTED_ID) else DEFAULT_KEY_RETENTION_MS
        return consumer.idempotency_ttl_ms if consumer.idempotency else None

    async def _earlier(
        self, letters: Sequence[Asked], whys: Sequence[str | None], *, job_id: str | None
    ) -> dict[str, str]:
        pairs = zip(letters, whys, strict=True)
        ids = [letter.letter_id for letter, why in pairs if why is None and letter.key is not None]
        return await self._backend.letters.earlier(ids, job_id=job_id) if ids else {}

    async def _left_in_line(self, letter: Asked) -> str | None:
        """The first open letter of the key that nobody plans to send before this one; None where there is none."""
        if letter.key is None or not letter.is_open:
            return None
        scope = letter.queue, letter.key
        line = self._lines.get(scope)
        if line is None:
            line = self._lines[scope] = await self._line(scope)
        while line and line[0] in self._planned:
            line.popleft()
        return line[0] if line and line[0] != letter.letter_id else None

    async def _line(self, scope: _Scope) -> deque[str]:
        line: deque[str] = deque()
        cursor = None
        while True:
            wanted = Selection(queue=scope[0], key=scope[1], states=OPEN_STATES)
            page = await self._backend.letters.find(wanted, limit=PAGE, cursor=cursor)
            line.extend(each.id for each in page.letters if each.queue == scope[0])
            cursor = page.cursor
            if cursor is None:
                return line


def _in_order(letters: Sequence[Asked], whys: Sequence[str | None], *, earlier: Mapping[str, str]) -> list[str | None]:
    """With what waits behind a letter that was refused just now."""
    stopped: dict[tuple[str, str | None], str] = {}
    ended: list[str | None] = []
    for letter, given in zip(letters, whys, strict=True):
        why, scope = given, (letter.queue, letter.key)
        if why is None and letter.key is not None:
            first = earlier.get(letter.letter_id) or stopped.get(scope)
            why = None if first is None else overtakes(first)
        if why is not None and letter.is_open:
            stopped.setdefault(scope, letter.letter_id)
        ended.append(why)
    return ended
