"""The job store port: keeps redrive jobs and their items.."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from redrive.core.redrive import Item, Job, Outcomes
from redrive.core.units import Millis

Jobs: TypeAlias = list[Job]
Items: TypeAlias = list[Item]
"""Named here because `JobStore` has a method called `list`, which hides the type inside it."""


class JobStore(Protocol):
    """Keeps redrive jobs and their items."""

    async def create(self, job: Job) -> Job:
        """Store it; with a known `request_key`, return the job that key made before instead."""
        ...

    async def get(self, job_id: str) -> Job | None: ...

    async def list(self, *, limit: int = 50) -> Jobs:
        """Newest first."""
        ...

    async def acquire(self, job_id: str | None, *, owner: str, lease_ms: Millis) -> Job | None:
        """Take over this job, or (None) the oldest that is staged or running and nobody holds. The returned job
        carries the new token and is `running`; None where there is none, it is done, or another holds it. A job
        named by id may be aborted or failed: that is a resume, and its pending items are held again.
        """
        ...

    async def stage(self, job: Job, *, limit: int) -> Job:
        """Copy the next at most `limit` selected letters into items, in order of death, marking each with
        `outstanding_job`. A letter that another job holds, or that `refusal` refuses, becomes a SKIPPED item with
        the reason. Sets `is_staged` at the end. Letters that died after the job was created are not selected.
        """
        ...

    async def items(self, job_id: str, *, state: str | None, limit: int, after: int = -1) -> Items:
        """By position, above `after`."""
        ...

    async def record(self, job: Job, batch: Sequence[Item]) -> bool:
        """Write state and reason of these items, and the counts with them, if `job.token` is current (else False,
        nothing written). Only a PENDING item moves; it then frees its letter: `outstanding_job` goes. What a ledger
        calls once the copies are durable; a ledger that is one transaction does the same within it.
        """
        ...

    async def save(self, job: Job, *, lease_ms: Millis) -> bool:
        """Write state, error, progress and a renewed lease if `job.token` is current (else False). A job that ended
        frees its letters: `outstanding_job` goes from those not sent; and its runner: a job ended by somebody else (a
        person's abort, saved with the token `get` shows) makes the runner's next `save` False. One that is paused
        frees its runner alike and keeps its letters.
        """
        ...

    async def outcomes(self, job_id: str, *, positions: Sequence[int] | None = None) -> Outcomes:
        """What became of the letters that the job sent (of these items of it): a letter that is closed since has
        succeeded, one that a letter which died after the job was made names as `previous` has failed again.
        """
        ...
