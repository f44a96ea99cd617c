"""Lists and counts of letters: a `Selection` as SQL that walks one index in order of death.

Every index on redrive_letter ends in (dead_lettered_at, seq), so a page is a range read in the right order, however
many letters there are. Which index is used is decided here and not by the planner: the most telling condition goes
first, every other one gets a unary plus, which takes its index from the planner (sqlite.org/optoverview.html).

A page whose conditions leave few of very many letters would be long in coming; it ends, short, after a number of
letters looked through, and its cursor goes on from there.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from redrive.core.letters.ages import AGE_BOUNDS_MS, Ages
from redrive.core.letters.rows import REVIEW_NUMBER, REVIEW_STATES, SUMMARY_COLUMNS, headers_from
from redrive.core.letters.selection import OPEN_STATES, Place, Selection, cursor_at, has_headers, place_of
from redrive.core.ports import LetterStats, LetterSummary, Page
from redrive.core.units import UnixMs
from redrive.sqlite.rows import summary_from
from redrive.sqlite.values import text_in, text_out

ORDER: Final = "dead_lettered_at, seq"
NO_TENANT: Final = "-"
"""A letter without a tenant counts as this one."""


# A name that does not stand in the text is not there: most rows never reach Python.
_HAS_HEADER: Final = (
    "EXISTS (SELECT 1 FROM redrive_letter_content c WHERE c.seq = redrive_letter.seq AND instr(c.headers, ?) "
    "AND redrive_has_header(c.headers, ?, ?))"
)
FEW: Final = 2_000
"""So many letters behind an index are looked through without a thought."""
LOOKED_THROUGH: Final = 50_000
"""Letters one page looks through, at 1 to 2 µs each."""
LOOKED_THROUGH_SLOWLY: Final = 10_000
"""The same where each costs about 5 µs: headers, and text beyond ASCII."""
_EQUAL: Final = (
    "message_id", "key", "fingerprint", "error_code", "error_type", "message_type", "tenant", "reason_code",
)  # fmt: skip
"""Most telling first."""


@dataclass(slots=True)
class _Where:
    """Conditions of which the first of `leading` uses its index; the others lose theirs to the plus."""

    leading: list[tuple[str, str, list[Any]]] = field(default_factory=list)
    others: list[tuple[str, list[Any]]] = field(default_factory=list)
    times: list[tuple[str, list[Any]]] = field(default_factory=list)
    is_slow: bool = False
    is_small: bool = False

    def lead(self, column: str, comparison: str, *values: Any) -> None:
        """One condition that has an index."""
        self.leading.append((column, comparison, list(values)))

    def filter(self, condition: str, *values: Any) -> None:
        """One condition that never leads."""
        self.others.append((condition, list(values)))

    @property
    def is_one_range(self) -> bool:
        """Whether every letter of the range that is read is one that was asked for, or they are few."""
        return self.is_small or (len(self.leading) <= 1 and not self.others)

    def range(self) -> tuple[str, list[Any]]:
        """The part of an index that is read."""
        return _joined([*[(f"{column} {test}", values) for column, test, values in self.leading[:1]], *self.times])

    def whole(self) -> tuple[str, list[Any]]:
        """All conditions."""
        first, *rest = [(f"{column} {test}", values) for column, test, values in self.leading] or [("", [])]
        led = [] if not self.leading else [first, *((f"+{text}", values) for text, values in rest)]
        return _joined([*led, *self.others, *self.times])


def _joined(conditions: list[tuple[str, list[Any]]]) -> tuple[str, list[Any]]:
    return " AND ".join(text for text, _ in conditions) or "1", [value for _, values in conditions for value in values]


def where(connection: sqlite3.Connection, selection: Selection) -> tuple[str, list[Any]]:
    """The condition of this selection and its values."""
    return _where(connection, selection).whole()


def _where(connection: sqlite3.Connection, selection: Selection) -> _Where:
    found = _Where()
    if selection.ids:
        found.lead("id", "IN (SELECT value FROM json_each(?))", json.dumps(selection.ids))
        found.is_small = True
    for column in _EQUAL:
        value = getattr(selection, column)
        if value is not None:
            found.lead(column, "= ?", text_in(value))
    if selection.queue is not None:
        _add_queue(connection, found, selection.queue)
    if selection.states:
        _add_states(found, selection)
    _add_filters(found, selection)
    if not selection.ids and found.leading:
        _choose_lead(connection, found)
    return found


def _choose_lead(connection: sqlite3.Connection, found: _Where) -> None:
    """The condition with the fewest letters goes first where that shows at once; else they stay in their order."""
    if len(found.leading) == 1 and not found.others:
        return
    counts = [
        connection.execute(
            f"SELECT count(*) FROM (SELECT 1 FROM redrive_letter WHERE {column} {test} LIMIT {FEW})",  # noqa: S608
            values,
        ).fetchone()[0]
        for column, test, values in found.leading
    ]
    fewest = counts.index(min(counts))
    found.leading.insert(0, found.leading.pop(fewest))
    found.is_small = counts[fewest] < FEW


def _add_filters(found: _Where, selection: Selection) -> None:
    if selection.since is not None:
        found.times.append(("dead_lettered_at >= ?", [selection.since]))
    if selection.until is not None:
        found.times.append(("dead_lettered_at < ?", [selection.until]))
    for name, value in selection.headers:
        found.is_slow = True
        found.filter(_HAS_HEADER, json.dumps(name)[1:-1], text_in(name), text_in(value))
    if selection.text is not None:
        _add_text(found, selection.text.lower())


def _add_text(found: _Where, text: str) -> None:
    if text.isascii():
        # Ten times faster than a function in Python, and right for every text that holds the wanted one.
        columns = ("reason_text", "message_id", "key")
        found.filter(f"({' OR '.join(f'instr(lower({column}), ?)' for column in columns)})", *[text] * len(columns))
    else:
        found.is_slow = True
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
        found.lead(columns[0], "= ?", name)
    elif not columns:
        found.filter("0")
        found.is_small = True
    else:
        found.filter("(+queue = ? OR +dead_letter_queue = ?)", name, name)


def _add_states(found: _Where, selection: Selection) -> None:
    states = sorted(REVIEW_NUMBER[state] for state in selection.states)
    if len(states) == 1:
        found.lead("state", "= ?", states[0])
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
    bounds = _bounds(after, None)
    if up_to is not None:
        bounds.append(("+seq <= ?", [up_to]))
    return _read(connection, [where(connection, selection), *bounds], limit=limit)


def find(connection: sqlite3.Connection, selection: Selection, *, limit: int, cursor: str | None) -> Page:
    """One page and the cursor of the next. Where an index does not help it looks through LOOKED_THROUGH letters at most
    and ends there, with fewer on the page.
    """
    wanted = _where(connection, selection)
    after = None if cursor is None else place_of(cursor)
    steps = [None] if wanted.is_one_range else [FEW, LOOKED_THROUGH_SLOWLY if wanted.is_slow else LOOKED_THROUGH]
    found: list[tuple[Place, LetterSummary]] = []
    end: Place | None = None
    for step in steps:
        end = None if step is None else _place_after(connection, wanted, after=after, step=step)
        found += _read(connection, [wanted.whole(), *_bounds(after, end)], limit=limit + 1 - len(found))
        if len(found) > limit or end is None:
            break
        after = end
    page = found[:limit]
    last = page[-1][0] if page and len(found) > limit else end
    return Page(letters=tuple(letter for _, letter in page), cursor=None if last is None else cursor_at(last))


def _place_after(connection: sqlite3.Connection, wanted: _Where, *, after: Place | None, step: int) -> Place | None:
    """Where so many letters of the range are looked through; None where it ends before. Reads the index alone."""
    condition, values = _joined([wanted.range(), *_bounds(after, None)])
    row: Place | None = connection.execute(
        f"SELECT {ORDER} FROM redrive_letter WHERE {condition} ORDER BY {ORDER} LIMIT 1 OFFSET ?",  # noqa: S608
        [*values, step - 1],
    ).fetchone()
    return row


def _bounds(after: Place | None, end: Place | None) -> list[tuple[str, list[Any]]]:
    """Behind one place, up to another."""
    return [
        *([] if after is None else [(f"({ORDER}) > (?, ?)", list(after))]),
        *([] if end is None else [(f"({ORDER}) <= (?, ?)", list(end))]),
    ]


def _read(
    connection: sqlite3.Connection, conditions: list[tuple[str, list[Any]]], *, limit: int
) -> Iterator[tuple[Place, LetterSummary]]:
    condition, values = _joined(conditions)
    rows = connection.execute(
        f"SELECT dead_lettered_at, seq, {SUMMARY_COLUMNS} FROM redrive_letter WHERE {condition} "  # noqa: S608 - constants
        f"ORDER BY {ORDER} LIMIT ?",
        [*values, limit],
    )
    for row in rows:
        yield (row[0], row[1]), summary_from(row[2:])


_COUNTED: Final = ("state", "queue", "reason_code", "fingerprint", "tenant")
_Counts = dict[str, dict[Any, int]]


def stats(
    connection: sqlite3.Connection,
    selection: Selection,
    *,
    top: int,
    ages_at: UnixMs | None = None,
    up_to: int | None = None,
) -> LetterStats:
    """Counts over the selection, all of one instant."""
    connection.execute("BEGIN")
    try:
        condition, values = where(connection, selection)
        is_at_least = False
        if replace(selection, states=frozenset()) == Selection():
            counts, oldest_at = _kept_counts(connection, selection)
        else:
            end = None if up_to is None else _last_counted(connection, condition, values, up_to=up_to)
            is_at_least = end is not None
            counts, oldest_at = _count_some(connection, *_joined([(condition, values), *_bounds(None, end)]))
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
        is_at_least=is_at_least,
    )


def _last_counted(connection: sqlite3.Connection, condition: str, values: list[Any], *, up_to: int) -> Place | None:
    """The place of the last letter that is counted; None where all are."""
    places: list[Place] = connection.execute(
        f"SELECT {ORDER} FROM redrive_letter WHERE {condition} ORDER BY {ORDER} LIMIT 2 OFFSET ?",  # noqa: S608
        [*values, max(0, up_to - 1)],
    ).fetchall()
    return places[0] if len(places) > 1 else None


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


def _kept_counts(connection: sqlite3.Connection, selection: Selection) -> tuple[_Counts, UnixMs | None]:
    """Of all letters in some states, as triggers count them (006_groups.sql): no letter is read."""
    states = sorted(REVIEW_NUMBER[state] for state in selection.states or REVIEW_STATES)
    marks = ",".join(map(str, states))
    counts = {
        column: dict(
            connection.execute(
                f"SELECT name, sum(count) FROM redrive_letter_count WHERE kind = {kind} AND state IN ({marks}) "  # noqa: S608
                "GROUP BY name HAVING sum(count) > 0"
            ).fetchall()
        )
        for kind, column in enumerate(("queue", "reason_code", "tenant"))
    }
    by_state = connection.execute(
        f"SELECT state, sum(count) FROM redrive_letter_count WHERE kind = 0 AND state IN ({marks}) "  # noqa: S608
        "GROUP BY state HAVING sum(count) > 0"
    )
    count = " + ".join(str(REVIEW_STATES[number]) for number in states)
    by_group = connection.execute(f"SELECT fingerprint, {count} FROM redrive_group WHERE {count} > 0")  # noqa: S608
    oldest = [
        connection.execute("SELECT min(dead_lettered_at) FROM redrive_letter WHERE state = ?", (number,)).fetchone()[0]
        for number in states
        if REVIEW_STATES[number] in OPEN_STATES
    ]
    return (
        {**counts, "state": dict(by_state.fetchall()), "fingerprint": dict(by_group.fetchall())},
        min((at for at in oldest if at is not None), default=None),
    )


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
