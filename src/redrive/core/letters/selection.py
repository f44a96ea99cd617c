"""Which letters: one value used alike by list, count, redrive, review, close and prune."""

from __future__ import annotations

from dataclasses import dataclass

from redrive.core.letters.letter import ReviewState
from redrive.core.units import UnixMs

OPEN_STATES = frozenset({ReviewState.PENDING, ReviewState.REVIEWED})
"""States a person still has to decide about; what redrive-all means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """All given conditions hold together; an empty field does not restrict.

    `queue` matches the consumer queue or the dead-letter queue. `since` <= dead_lettered_at < `until`.
    `text` is a case-insensitive substring of the reason text, message id or key.
    """

    ids: tuple[str, ...] = ()
    queue: str | None = None
    states: frozenset[ReviewState] = frozenset()
    reason_code: str | None = None
    error_type: str | None = None
    error_code: str | None = None
    fingerprint: str | None = None
    tenant: str | None = None
    key: str | None = None
    message_type: str | None = None
    since: UnixMs | None = None
    until: UnixMs | None = None
    text: str | None = None
