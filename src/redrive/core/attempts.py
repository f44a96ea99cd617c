"""The true attempt number of a delivery, from everything that counts it.

`attempt` = 1 + failed and lost starts of this (consumer queue, key) since the last redrive. Who knows it, best first:

1. the claim record, where there is one: it counts starts and cannot be written by a publisher;
2. the broker's own start count of this copy, where it keeps one (the embedded broker does);
3. redrive's own header on the copy;
4. `x-death` of this queue with reason `rejected` or `delivery_limit`, minus the baseline stamped at the last
   redrive. A RabbitMQ that no longer counts republished messages says 1 for ever, so it comes last.

Not counted: clean hand-backs, requeues, in-progress answers, `x-delivery-count` (it also grows for messages that were
only prefetched) and the `redelivered` flag. Headers are the publisher's to forge: the worst a forged count can do is
dead-letter that message early, and no form of junk raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from redrive.core.idempotency import Acquired
from redrive.core.message import OWN_HEADER_PREFIX, Headers, whole_number

HEADER_ATTEMPT: Final = f"{OWN_HEADER_PREFIX}-attempt"
"""The attempt this copy is to run as. Written by an adapter whose retry is a new copy; one that keeps the message in
its queue (the embedded broker) has a count of its own.
"""
HEADER_BASELINE: Final = f"{OWN_HEADER_PREFIX}-baseline"
"""What `x-death` counted when the message was last redriven: those belong to the budget before."""
HEADER_KEEPS: Final = f"{OWN_HEADER_PREFIX}-keeps-attempts"
"""True on a copy that was sent back with its old attempts: `HEADER_ATTEMPT` counts, whatever the record says."""

MAX_COUNT: Final = 1_000_000
"""No count is taken for more; a forged one stays a small number."""
MAX_DEATHS: Final = 1_000
"""Entries of `x-death` that are looked at. A broker folds them per (queue, reason), so real lists are short."""

_COUNTED: Final = frozenset({"rejected", "delivery_limit"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderCount:
    """What the headers say: attempts that already failed. `is_readable` False: something was junk and counts 0."""

    failed: int
    is_readable: bool


def attempt_number(
    *, claim: Acquired | None, starts: int | None, headers: Headers | None = None, queue: str = ""
) -> int:
    """The number of the attempt in hand: 1 for the first.

    `starts` counts this start too, as `claim.attempts` does. Headers are asked where the broker does not count; a
    claim record in its first cycle may be younger than the message (redrive came to an existing queue), so there the
    higher number wins. After a redrive the record alone counts, unless the copy says that it goes on counting.
    """
    counted = starts if claim is None else claim.attempts
    if starts is not None and counted is not None:
        return max(1, min(counted, MAX_COUNT))
    outside = 1 + failed_by_headers(headers or {}, queue=queue).failed
    if counted is None:
        return outside
    is_asked = (claim is not None and claim.cycle == 0) or (headers or {}).get(HEADER_KEEPS) is True
    return max(1, min(counted, MAX_COUNT), outside if is_asked else 1)


def failed_by_headers(headers: Headers, *, queue: str) -> HeaderCount:
    """Attempts that failed before this delivery, by redrive's own header, else by `x-death`."""
    own = _count(headers.get(HEADER_ATTEMPT))
    if own is not None and own >= 1:
        return HeaderCount(failed=own - 1, is_readable=True)
    deaths = failed_by_x_death(headers.get("x-death"), queue=queue)
    baseline = _count(headers.get(HEADER_BASELINE)) or 0
    return HeaderCount(
        failed=max(0, deaths.failed - baseline), is_readable=deaths.is_readable and HEADER_ATTEMPT not in headers
    )


def failed_by_x_death(value: Any, *, queue: str) -> HeaderCount:
    """Deaths in this queue by rejection or delivery limit. An entry without a count (before RabbitMQ 3.6) counts 1."""
    if value is None:
        return HeaderCount(failed=0, is_readable=True)
    if not isinstance(value, list | tuple):
        return HeaderCount(failed=0, is_readable=False)
    failed, is_readable = 0, len(value) <= MAX_DEATHS
    for entry in value[:MAX_DEATHS]:
        count = _count(entry.get("count", 1)) if isinstance(entry, dict) else None
        if count is None:
            is_readable = False
        elif _text(entry.get("queue")) == queue and _text(entry.get("reason")) in _COUNTED:
            failed += count
    return HeaderCount(failed=min(failed, MAX_COUNT), is_readable=is_readable)


def _count(value: Any) -> int | None:
    number = whole_number(value)
    return None if number is None else min(number, MAX_COUNT)


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None
