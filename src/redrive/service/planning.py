"""What a redrive would do: the same questions as the job asks, page by page, and nothing is changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from redrive.core.json_patch import PatchRefused, body_diff, edited_body, parse_patch
from redrive.core.ports import LetterSummary
from redrive.core.redrive import JobOptions, refusal
from redrive.core.refusals import by_code
from redrive.core.units import UnixMs
from redrive.runtime.app import Redrive
from redrive.runtime.refusals import Refusals, asked
from redrive.service.operations import SHOWN
from redrive.service.values import Edited, Plan, QueuePlan, Skip

EDITS_SHOWN: Final = 3


class Planning:
    """One plan, as its pages come."""

    def __init__(self, app: Redrive, options: JobOptions, *, now: UnixMs) -> None:
        self._app = app
        self._options = options
        self._now = now
        self._patch = () if options.edit is None else parse_patch(options.edit)
        self._refusals = Refusals(app.backend, app.clock, app.consumers)
        self._sends, self._skips, self._codes = Counter[str](), Counter[str](), Counter[str]()
        self._letters: list[LetterSummary] = []
        self._skipped: list[Skip] = []
        self._edits: list[Edited] = []

    async def add(self, page: Sequence[LetterSummary]) -> None:
        """The next letters, in order of death."""
        asks = [asked(letter, await self._own_reason(letter)) for letter in page]
        whys = await self._refusals.of_plan(asks, self._options)
        for letter, why in zip(page, whys, strict=True):
            if why is None:
                self._sends[letter.queue] += 1
                self._letters += [letter] if len(self._letters) < SHOWN else []
            else:
                self._skips[letter.queue] += 1
                self._skipped += [Skip(letter_id=letter.id, why=why)] if len(self._skipped) < SHOWN else []
        refused = [why for why in whys if why is not None]
        self._codes.update(by_code(refused))
        kept = {letter.id for letter, why in zip(page, whys, strict=True) if why is not None}
        self._edits = [edited for edited in self._edits if edited.letter_id not in kept]

    async def _own_reason(self, letter: LetterSummary) -> str | None:
        why = refusal(letter, self._options, job_id="", at=self._now)
        return await self._edit(letter.id) if why is None and self._patch else why

    async def _edit(self, letter_id: str) -> str | None:
        """Why the patch does not fit this letter; None where it does. The first few are shown."""
        found = await self._app.backend.letters.get(letter_id)
        if found is None:
            return refusal(None, self._options, job_id="")
        before = found[0].message.original_body
        try:
            after = edited_body(self._patch, before)
        except PatchRefused as refused:
            return f"the edit does not fit: {refused}"
        if len(self._edits) < EDITS_SHOWN:
            self._edits.append(Edited(letter_id=letter_id, diff=body_diff(before, after)))
        return None

    async def done(self, missing: tuple[str, ...]) -> Plan:
        """The plan. `missing`: ids that no letter has."""
        options, send = self._options, self._sends.total()
        targets = {name: options.target_queue or name for name in sorted({*self._sends, *self._skips})}
        there = {depth.queue for depth in await self._app.backend.broker.depths(sorted({*targets.values()}))}
        return Plan(
            send=send,
            skip=self._skips.total(),
            queues=tuple(
                QueuePlan(
                    queue=name,
                    target=target,
                    send=self._sends[name],
                    skip=self._skips[name],
                    target_exists=target in there,
                )
                for name, target in targets.items()
            ),
            letters=tuple(self._letters),
            skipped=tuple(self._skipped),
            missing=missing,
            takes_ms=None if options.rate_per_s is None else int(send * 1_000 / options.rate_per_s),
            edits=tuple(self._edits),
            refusals=dict(self._codes.most_common()),
        )
