"""The ends of deliveries as `settle.lua` takes them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from redrive.brokers.bullmq import jobs
from redrive.brokers.bullmq.jobs import Kept, keepable
from redrive.core import settlement
from redrive.core.ports import Lease, Settle
from redrive.core.units import UnixMs
from redrive.redis.scripts import packed

HANDED_BACK: Final = frozenset({"ABANDONED", "CLAIM_UNAVAILABLE", "SHUTDOWN", "SUSPECT_WAITS"})
"""Reasons of a requeue that have nothing to do with the message."""
FORGOTTEN: Final = frozenset({"ABANDONED", "CLAIM_UNAVAILABLE"})
"""Those of whoever gives back what it was just handed, and does not try twice."""


_GONE: Final = frozenset({-1, -2})
"""Answers to an end that was sent before: no job, no lock."""
MAX_UNSURE: Final = 10_000


class Unsure:
    """Leases whose end was sent, and its answer lost: it may have been carried out. The latest `MAX_UNSURE`."""

    def __init__(self) -> None:
        self._leases: dict[tuple[str, int], None] = {}

    def add(self, leases: Sequence[Lease]) -> None:
        """No answer came."""
        self._leases.update(dict.fromkeys(map(_key, leases)))
        while len(self._leases) > MAX_UNSURE:
            del self._leases[next(iter(self._leases))]

    def is_done(self, lease: Lease, answer: int) -> bool:
        """Whether an end with this answer of `settle.lua` was carried out, now or before."""
        done: bool = answer >= 0 or (answer in _GONE and _key(lease) in self._leases)
        return done

    def forget(self, leases: Sequence[Lease]) -> None:
        """These are answered."""
        for lease in leases if self._leases else ():
            self._leases.pop(_key(lease), None)


def _key(lease: Lease) -> tuple[str, int]:
    return lease.ref.id, lease.token


def end_of(settle: Settle, token: str, *, now: UnixMs) -> list[Any]:
    """One element of ARGV[2] of `settle.lua`. `token`: the lock's."""
    kept: Kept = settle.lease.ref
    # An empty list costs the script a table; an empty text does not.
    entries = [jobs.entry_json(entry) for entry in (settle.lost, settle.entry) if entry is not None] or ""
    match settle.settlement:
        case settlement.Ack():
            return ["completed", kept.id, token, 0, "null", "", "", _ending(kept, token, is_failed=False), ""]
        case settlement.DeadLetter(reason=reason):
            _, keep = jobs.ending_of(kept.options, is_failed=True)
            # Of a job that is kept: that its letter is stored. The script knows the time.
            fields = [*_stack(settle), jobs.GIVEN_UP, ""] if dict(keep).get("count") != 0 else []
            ending = _ending(kept, token, is_failed=True)
            return ["failed", kept.id, token, 0, keepable(reason.text), entries, fields or "", ending, ""]
        case settlement.Retry(due_at=due_at, reason=reason, body=body):
            fields = ["failedReason", keepable(reason.text), *_stack(settle)]
            data = "" if body is None else list(jobs.stored_body(body))
            return ["retry", kept.id, token, due_at, "", entries, fields, "", data]
        case settlement.Requeue(due_at=due_at):
            what = "back" if goes_back(settle, now) else "requeue"
            return [what, kept.id, token, due_at, "", entries, "", "", ""]


def goes_back(settle: Settle, now: UnixMs) -> bool:
    """Whether it takes its old place before what waits. What a handler sends back goes behind: it would come again and
    again.
    """
    end = settle.settlement
    return isinstance(end, settlement.Requeue) and end.reason.code in HANDED_BACK and end.due_at <= now


def is_forgotten(settle: Settle) -> bool:
    """Whether nobody knows of it any more, should this end not reach the server."""
    end = settle.settlement
    return isinstance(end, settlement.Requeue) and end.reason.code in FORGOTTEN


def body_bytes(settle: Settle) -> int:
    """Of the body that this end writes."""
    end = settle.settlement
    return len(end.body) if isinstance(end, settlement.Retry) and end.body is not None else 0


def _ending(kept: Kept, token: str, *, is_failed: bool) -> bytes:
    attempts, keep = jobs.ending_of(kept.options, is_failed=is_failed)
    return _options(token, attempts, keep)


@lru_cache(maxsize=1_024)
def _options(token: str, attempts: int, keep: tuple[tuple[str, int], ...]) -> bytes:
    """Of moveToFinished. What was handed out together has one token, so they are alike for most of a batch."""
    return packed({"token": token, "attempts": attempts, "keepJobs": dict(keep), "maxMetricsSize": ""})


def _stack(settle: Settle) -> list[str]:
    """The last trace, as BullMQ keeps traces: the history has them all."""
    trace = None if settle.entry is None else settle.entry.traceback
    return [] if trace is None else ["stacktrace", jobs.trace_json(trace)]
