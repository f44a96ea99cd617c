"""Carries out `AutoRedrive`: makes an ordinary redrive job, which any worker's upkeep then runs, canary first.

A job names its letters by id. Its request key is the policy and the slot of time, so of all workers that look at once
one makes it. Killed before the job is stored: nothing happened. After: it waits for a runner as any job does.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from redrive.core.letters.groups import Group
from redrive.core.letters.selection import Selection
from redrive.core.policy.auto_redrive import MAX_LETTERS, AutoRedrive
from redrive.core.ports import Clock, LetterSummary
from redrive.core.redrive import Job
from redrive.runtime.backend import Backend
from redrive.runtime.consumer import Consumer
from redrive.runtime.events import Events
from redrive.runtime.redriver import NO_CONSUMERS, tell_job
from redrive.runtime.refusals import Refusals, asked

PAGE: Final = 500
MAX_PAGES: Final = 20
"""Pages that are looked through for letters to send, in one round."""
ACTOR: Final = "redrive (policy)"


class AutoRedriver:
    """The policies of one app."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        events: Events,
        *,
        policies: Sequence[AutoRedrive],
        consumers: Mapping[str, Consumer] = NO_CONSUMERS,
    ) -> None:
        self._backend = backend
        self._consumers = consumers
        self._clock = clock
        self._events = events
        self._policies = policies

    async def look(self) -> None:
        """One round: a job for each policy that has letters to send."""
        for policy in self._policies:
            ids = await self._letters(policy)
            if ids:
                await self._make(policy, ids)

    async def _letters(self, policy: AutoRedrive) -> tuple[str, ...]:
        found: list[str] = []
        # What a job would refuse makes none, or there would be another one in each slot of time.
        refusals = Refusals(self._backend, self._clock, self._consumers)
        groups: dict[str, Group | None] = {}
        cursor = None
        for _ in range(MAX_PAGES):
            page = await self._backend.letters.find(policy.selection(self._clock.now()), limit=PAGE, cursor=cursor)
            taken: list[LetterSummary] = []
            for letter in page.letters:
                if letter.fingerprint not in groups:
                    known = await self._backend.groups.group(letter.fingerprint)
                    groups[letter.fingerprint] = None if known is None else known[0]
                if policy.takes(letter, groups[letter.fingerprint]):
                    taken.append(letter)
            whys = await refusals.of_plan([asked(letter) for letter in taken], policy.options())
            found += [letter.id for letter, why in zip(taken, whys, strict=True) if why is None]
            cursor = page.cursor
            if cursor is None or len(found) >= MAX_LETTERS:
                break
        return tuple(found[:MAX_LETTERS])

    async def _make(self, policy: AutoRedrive, ids: tuple[str, ...]) -> None:
        now = self._clock.now()
        made = Job(
            id=f"rd_{now:012x}{secrets.token_hex(4)}",
            selection=Selection(ids=ids, states=policy.selection(now).states),
            options=replace(policy.options(), limit=len(ids)),
            actor=ACTOR,
            note=f"dead for {policy.after_ms // 1_000} s",
            request_key=policy.request_key(now),
            created_at=now,
            updated_at=now,
        )
        job = await self._backend.jobs.create(made)
        if job.id == made.id:
            tell_job(self._events, job, actor=ACTOR)
