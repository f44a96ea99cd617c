"""Lists and counts of letters: a `Selection` as SQL that walks one index in order of death.

Every index on redrive_letter ends in (dead_lettered_at, seq), so a page is a range read in the right order, however
many letters there are. Which index is used is decided here and not by the planner: the most telling condition goes
first, every other one gets a unary plus, which takes its index from the planner (sqlite.org/optoverview.html).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from redrive.core.letters.ages import AGE_BOUNDS_MS, Ages
from redrive.core.letters.selection import OPEN_STATES, Place, Selection, cursor_at, has_headers, place_of
from redrive.core.ports import LetterStats, LetterSummary, Page
from redrive.core.units import UnixMs
from redrive.sqlite.rows import REVIEW_NUMBER, REVIEW_STATES, SUMMARY_COLUMNS, headers_from, summary_from
from redrive.sqlite.values import text_in, text_out

ORDER: Final = "dead_lettered_at, seq"
NO_TENANT: Final = "-"
"""A letter without a tenant counts as this one."""


# A name that does not stand in the text is not there: most rows never reach Python.
_HAS_HEADER: Final = (
    "EXISTS (SELECT 1 FROM redrive_letter_content c WHERE c.seq = redrive_letter.seq AND instr(c.headers, ?) "
    "AND redrive_has_header(c.headers, ?, ?))"
)


@dataclass(slots=True)
class _Where:
    conditions: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    is_led: bool = False

    def add(self, column: str, comparison: str, *values: Any) -> None:
        """One condition. The first that may lead keeps its index; the others lose theirs to the plus."""
        self.conditions.append(f"{'+' if self.is_led else ''}{column} {comparison}")
        self.values.extend(values)
        self.is_led = True

    def filter(self, condition: str, *values: Any) -> None:
        """One condition that never leads."""
        self.conditions.append(condition)
        self.values.extend(values)

    @property
    def text(self) -> str:
        return " AND ".join(self.conditions) or "1"


def where(connection: sqlite3.Connection, selection: Selection) -> tuple[str, list[Any]]:
    """The condition of this selection and its values."""
    found = _Where()
    if selection.ids:
        found.add("id", "IN (SELECT value FROM json_each(?))", json.dumps(selection.ids))
    # Most telling first: the first one given leads.
    for column in (
        "message_id",
        "key",
        "fingerprint",
        "error_code",
        "error_type",
        "message_type",
        "tenant",
        "reason_code",
    ):
        _add_equal(found, column, getattr(selection, column))
    if selection.queue is not None:
        _add_queue(connection, found, selection.queue)
    if selection.states:
        _add_states(found, selection)
    _add_filters(found, selection)
    return found.text, found.values


def _add_equal(found: _Where, column: str, value: str | None) -> None:
    if value is not None:
        found.add(column, "= ?", text_in(value))


def _add_filters(found: _Where, selection: Selection) -> None:
    if selection.since is not None:
        found.filter("dead_lettered_at >= ?", selection.since)
    if selection.until is not None:
        found.filter("dead_lettered_at < ?", selection.until)
    for name, value in selection.headers:
        found.filter(_HAS_HEADER, json.dumps(name)[1:-1], text_in(name), text_in(value))
    if selection.text is not None:
        _add_text(found, selection.text.lower())


def _add_text(found: _Where, text: str) -> None:
    if text.isascii():
        # Ten times faster than a function in Python, and right for every text that holds the wanted one.
        columns = ("reason_text", "message_id", "key")
        found.filter(f"({' OR '.join(f'instr(lower({column}), ?)' for column in columns)})", *[text] * len(columns))
    else:
        found.filter("redrive_contains(reason_text, message_id, key, ?)", text_in(text))


def _add_queue(connection: sqlite3.Connection, found: _Where, queue: str) -> None:
    # An OR over two columns would lose the order of an index. A name is nearly always one or the other.
    name = text_in(queue)
    columns = [
        column
        for column in ("queue", "dead_letter_queue")
        if connection.execute(f"SELECT 1 FROM redrive_letter WHERE {column} = ? LIMIT 1", (name,)).fetchone()  # noqa: S608
    ]
    if len(columns) == 1:
        found.add(columns[0], "= ?", name)
    else:
        found.filter("(+queue = ? OR +dead_letter_queue = ?)", name, name)


def _add_states(found: _Where, selection: Selection) -> None:
    states = sorted(REVIEW_NUMBER[state] for state in selection.states)
    if len(states) == 1:
        found.add("state", "= ?", states[0])
    elif selection.states == OPEN_STATES:
        found.filter("state <= 1")
    else:
        found.filter(f"+state IN ({','.join(map(str, states))})")


def add_functions(connection: sqlite3.Connection) -> None:
    """What `where` needs beyond SQLite's own functions: its LIKE ignores case for ASCII only."""
    connection.create_function("redrive_contains", -1, _contains, deterministic=True)
    connection.create_function("redrive_has_header", 3, _has_header, deterministic=True)


def _contains(*texts: str | bytes | None) -> bool:
    """SQL function redrive_contains(text, …, wanted): a case-insensitive substring of any."""
    *candidates, wanted = (None if text is None else text_out(text).lower() for text in texts)
    return wanted is not None and any(text is not None and wanted in text for text in candidates)


def _has_header(headers: str, name: str | bytes, value: str | bytes) -> bool:
    """SQL function redrive_has_header(headers, name, value)."""
    return has_headers(headers_from(headers), ((text_out(name), text_out(value)),))


def walk(
    connection: sqlite3.Connection, selection: Selection, *, after: Place | None, up_to: int | None, limit: int
) -> Iterator[tuple[Place, LetterSummary]]:
    """Selected letters in order of death from behind `after`. `up_to`: only rows that were there by then."""
    condition, values = where(connection, selection)
    if after is not None:
        condition += " AND (dead_lettered_at, seq) > (?, ?)"
        values += after
    if up_to is not None:
        condition += " AND +seq <= ?"
        values.append(up_to)
    rows = connection.execute(
        f"SELECT dead_lettered_at, seq, {SUMMARY_COLUMNS} FROM redrive_letter WHERE {condition} "  # noqa: S608 - constants
        f"ORDER BY {ORDER} LIMIT ?",
        [*values, limit],
    )
    for row in rows:
        yield (row[0], row[1]), summary_from(row[2:])


def find(connection: sqlite3.Connection, selection: Selection, *, limit: int, cursor: str | None) -> Page:
    """One page and the cursor of the next."""
    after = None if cursor is None else place_of(cursor)
    found = list(walk(connection, selection, after=after, up_to=None, limit=limit + 1))
    page = found[:limit]
    is_more = len(found) > limit and page
    return Page(letters=tuple(letter for _, letter in page), cursor=cursor_at(page[-1][0]) if is_more else None)


_COUNTED: Final = ("state", "queue", "reason_code", "fingerprint", "tenant")
_Counts = dict[str, dict[Any, int]]


def stats(
    connection: sqlite3.Connection, selection: Selection, *, top: int, ages_at: UnixMs | None = None
) -> LetterStats:
    """Counts over the selection, all of one instant."""
    connection.execute("BEGIN")
    try:
        condition, values = where(connection, selection)
        counts, oldest_at = _count_all(connection) if condition == "1" else _count_some(connection, condition, values)
        ages = None if ages_at is None else _ages(connection, condition, values, now=ages_at)
    finally:
        connection.execute("COMMIT")
    by_state = {str(REVIEW_STATES[number]): count for number, count in counts["state"].items()}
    return LetterStats(
        total=sum(by_state.values()),
        by_state=_largest(by_state, top),
        by_queue=_largest(_texts(counts["queue"]), top),
        by_reason=_largest(_texts(counts["reason_code"]), top),
        by_group=_largest(_texts(counts["fingerprint"]), top),
        by_tenant=_largest(_texts(counts["tenant"]), top),
        oldest_at=oldest_at,
        ages=ages,
    )


def _ages(connection: sqlite3.Connection, condition: str, values: list[Any], *, now: UnixMs) -> Ages:
    # One walk; each row is compared with one bound after the other until it fits.
    steps = " ".join(
        f"WHEN dead_lettered_at >= {now - bound} THEN {place}" for place, bound in enumerate(AGE_BOUNDS_MS)
    )
    rows = connection.execute(
        f"SELECT CASE {steps} ELSE {len(AGE_BOUNDS_MS)} END, count(*), total(max(0, {now} - dead_lettered_at)) "  # noqa: S608 - numbers
        f"FROM redrive_letter WHERE {condition} GROUP BY 1",
        values,
    ).fetchall()
    counts = {place: count for place, count, _ in rows}
    return Ages(
        counts=tuple(counts.get(place, 0) for place in range(len(AGE_BOUNDS_MS) + 1)),
        total_ms=round(sum(total for _, _, total in rows)),
    )


def _count_all(connection: sqlite3.Connection) -> tuple[_Counts, UnixMs | None]:
    # Each count is a walk over one index: the table itself is never read.
    counts = {
        column: dict(connection.execute(f"SELECT {column}, count(*) FROM redrive_letter GROUP BY 1").fetchall())  # noqa: S608
        for column in _COUNTED
    }
    oldest = connection.execute("SELECT min(dead_lettered_at) FROM redrive_letter WHERE state <= 1").fetchone()[0]
    return counts, oldest


def _count_some(connection: sqlite3.Connection, condition: str, values: list[Any]) -> tuple[_Counts, UnixMs | None]:
    # One walk for all counts, since the condition may be dear; the combinations that occur are few.
    counts: _Counts = {column: {} for column in _COUNTED}
    oldest: UnixMs | None = None
    rows = connection.execute(
        f"SELECT {', '.join(_COUNTED)}, count(*), min(dead_lettered_at) FROM redrive_letter "  # noqa: S608 - constants
        f"WHERE {condition} GROUP BY {', '.join(_COUNTED)}",
        values,
    )
    for *names, count, died_at in rows:
        for column, name in zip(_COUNTED, names, strict=True):
            counts[column][name] = counts[column].get(name, 0) + count
        if REVIEW_STATES[names[0]] in OPEN_STATES and (oldest is None or died_at < oldest):
            oldest = died_at
    return counts, oldest


def _texts(counts: dict[Any, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for value, count in counts.items():
        name = NO_TENANT if value is None else text_out(value) or NO_TENANT
        found[name] = found.get(name, 0) + count
    return found


def _largest(counts: dict[str, int], top: int) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:top])
