"""The failed-jobs port: what a broker keeps of jobs that its own workers, not redrive's, have given up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from redrive.core.message import Message
from redrive.core.units import UnixMs


class Taking(StrEnum):
    """What became of a failed job that was to be taken out."""

    TAKEN = "taken"
    GONE = "gone"
    """It is not there any more, in no state: somebody else took or removed it."""
    CHANGED = "changed"
    """The same job is there, but not as it was seen: somebody retried or edited it."""
    HELD = "held"
    """The broker does not let go of it now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedJob:
    """One job that was given up. `ref` is the adapter's own handle, and names the job as it was seen. `traces`: of its
    failures, oldest first; `attempts`: starts that failed; `started_at`: of the last one, None where it does not say.
    """

    message: Message
    ref: Any
    text: str
    traces: tuple[str, ...]
    attempts: int
    started_at: UnixMs | None
    failed_at: UnixMs


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedPage:
    """Failed jobs, oldest first; `left`: how many were left alone, by why; `own`: how many redrive's own workers gave
    up; `cursor` gets the next page, None at the end.
    """

    jobs: tuple[FailedJob, ...]
    own: int
    left: Mapping[str, int]
    cursor: Any | None


class FailedJobs(Protocol):
    """Jobs that were given up and are kept by the broker, each under its queue."""

    async def look(self, queue: str, *, limit: int, cursor: Any | None = None) -> FailedPage:
        """The next failed jobs of this queue. Takes nothing. Those are left out that cannot stand alone (a part of a
        flow), and those whose letters redrive's own workers have stored.
        """
        ...

    async def take(self, queue: str, batch: Sequence[FailedJob]) -> list[Taking]:
        """Remove those that are there as they were seen, each in one step. Their letters are durable already.

        Raises `BrokerUnavailableError` where the answer was lost: they are gone or not; the next look tells.
        """
        ...
