"""Which letters: one value used alike by list, count, redrive, review, close and prune."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final, TypeAlias

from redrive.core.letters.letter import ReviewState
from redrive.core.message import Headers, HeaderValue
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


def header_text(value: HeaderValue) -> str | None:
    """A header's value as a filter compares it: text and numbers as they are written, true and false, an instant as
    RFC 3339, bytes that are UTF-8 as text. None for what has no plain text: nothing, a list, a table, other bytes.
    """
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int() | float() | Decimal():
            return str(value)
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return None
        case _:
            return None


def has_headers(headers: Headers, wanted: tuple[tuple[str, str], ...]) -> bool:
    """Whether all of these headers are there, with these values as text."""
    return all(name in headers and header_text(headers[name]) == value for name, value in wanted)


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
