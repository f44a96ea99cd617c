"""Which letters: one value used alike by list, count, redrive, review, close and prune."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

from redrive.core.letters.letter import ReviewState
from redrive.core.units import UnixMs
from redrive.errors import ConfigurationError

OPEN_STATES = frozenset({ReviewState.PENDING, ReviewState.REVIEWED})
"""States a person still has to decide about; what redrive-all means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """All given conditions hold together; an empty field does not restrict.

    `queue` matches the consumer queue or the dead-letter queue. `since` <= dead_lettered_at < `until`.
    `text` is a case-insensitive substring of the reason text, message id or key. `headers`: each a name and the value
    it has as text; no index helps there, so it belongs beside a condition that leaves few letters.
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
    message_id: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    since: UnixMs | None = None
    until: UnixMs | None = None
    text: str | None = None


Place: TypeAlias = tuple[UnixMs, int]
"""(dead_lettered_at, number in the store): where a letter stands in the order of death. Unique, and never changed."""

_CURSOR: Final = re.compile(r"(\d{1,18})-(\d{1,18})", re.ASCII)


def cursor_at(place: Place) -> str:
    """The cursor of a page that ended with this letter."""
    return f"{place[0]}-{place[1]}"


def place_of(cursor: str) -> Place:
    """Where the page before ended. Raises `ConfigurationError` for what `cursor_at` did not write."""
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise ConfigurationError(
            f"Cursor {cursor!r:.60} is not one this store gave out. Nothing was read.", hint="Start without a cursor."
        )
    return int(found[1]), int(found[2])
