"""Lists and counts of letters: a `Selection` as SQL that walks one index in order of death.

Every index on redrive_letter ends in (dead_lettered_at, seq), so a page is a range read in the right order, however
many letters there are. Which index is used is decided here and not by the planner: the most telling condition leads,
written as its index has it (`left(tenant, 100) = …`); every other one is written plainly, and no index has that. Where
nothing leads, the order itself is written as the one index has it that has no leading column (`dead_lettered_at + 0`).

A text anywhere in a reason has an index where the extension pg_trgm is (sql/003_text.sql): the letters that have it are
looked up first, and where they are few, they are the condition. No index helps with a text that many have, nor with a
header, which lies with the content. They are looked for in the letters that the other conditions leave, in order, and
in `LOOK_AT` of them for one page, or for one count that need not be exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from psycopg.types.json import Jsonb

from redrive.core.letters.ages import AGE_BOUNDS_MS, Ages
from redrive.core.letters.rows import REVIEW_NUMBER, REVIEW_STATES, SUMMARY_COLUMNS
from redrive.core.letters.selection import OPEN_STATES, Place, Selection, cursor_at, place_of
from redrive.core.ports import LetterStats, LetterSummary, Page
from redrive.core.units import UnixMs
from redrive.postgres.database import Tx
from redrive.postgres.rows import summary_from
from redrive.postgres.values import text_in, text_out

NO_TENANT: Final = "-"
"""A letter without a tenant counts as this one."""


START: Final = 100
"""Characters of a name that an index leads with."""
FEW: Final = 1_000
"""Letters with a text that are named one by one."""
_INDEXED: Final = re.compile(r"\w{3}")
"""What a text must have for the index: it knows letters and digits by three."""
LOOK_AT: Final = 50_000
"""Most letters in which a page looks for a text or a header; then it ends early, with a cursor. So does a count that
may end early.
"""


@dataclass(slots=True)
class Where:
    """A condition, its values, and the order that the index of its leading column has. `slow`: what no index helps
    with.
    """

    fast: list[str] = field(default_factory=list)
    fast_values: list[Any] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    slow_values: list[Any] = field(default_factory=list)
    is_led: bool = False

    def equal(self, column: str, value: str | None) -> None:
        """The first one leads."""
        if value is None:
            return
        text = text_in(value)
        if not self.is_led:
            self.filter(f"left({column}, {START}) = left(%s, {START})", text)
            self.is_led = True
            if text is not None and len(text) < START:
                # Said once: the planner takes two conditions for independent, and both together for a rare thing.
                return
        self.filter(f"{column} = %s", text)

    def filter(self, condition: str, *values: Any) -> None:
        """One condition that never leads."""
        self.fast.append(condition)
        self.fast_values.extend(values)

    def filter_slowly(self, condition: str, *values: Any) -> None:
        """One condition that is looked at last."""
        self.slow.append(condition)
        self.slow_values.extend(values)

    @property
    def died(self) -> str:
        """The time of death, as the index that is walked has it."""
        return "dead_lettered_at" if self.is_led else "(dead_lettered_at + 0)"

    @property
    def order(self) -> str:
        return f"{self.died}, seq"

    @property
    def text(self) -> str:
        return " AND ".join([*self.fast, *self.slow]) or "true"

    @property
    def values(self) -> list[Any]:
        return [*self.fast_values, *self.slow_values]


def where(tx: Tx, selection: Selection, *, few: int = 0) -> Where:
    """The condition of this selection on `@letter l`. A text that more letters have than `few`, or `FEW`, is looked for
    in order.
    """
    found = Where()
    if selection.ids:
        found.filter("id = ANY (%s)", [text_in(letter_id) for letter_id in selection.ids])
        found.is_led = True
    # Most telling first: the first one given leads.
    for column in ("message_id", "key", "fingerprint", "error_code", "tenant", "error_type", "message_type"):
        found.equal(column, getattr(selection, column))
    found.equal("reason_code", selection.reason_code)
    if selection.queue is not None:
        _add_queue(tx, found, selection.queue)
    if selection.states:
        _add_states(found, selection)
    if selection.since is not None:
        found.filter(f"{found.died} >= %s", selection.since)
    if selection.until is not None:
        found.filter(f"{found.died} < %s", selection.until)
    if selection.text is not None:
        _add_text(tx, found, selection.text, few=max(few, FEW))
    if selection.headers:
        _add_headers(found, selection)
    return found


def _add_queue(tx: Tx, found: Where, queue: str) -> None:
    # An OR over two columns would lose the order of an index. A name is nearly always one or the other.
    name = text_in(queue)
    columns = [
        column
        for column in ("queue", "dead_letter_queue")
        if tx.execute(
            f"SELECT 1 FROM @letter WHERE left({column}, 100) = left(%s, 100) AND {column} = %s LIMIT 1",  # noqa: S608
            (name, name),
        ).fetchone()
    ]
    if len(columns) == 1:
        found.equal(columns[0], queue)
    else:
        found.filter("(queue = %s OR dead_letter_queue = %s)", name, name)


def _add_states(found: Where, selection: Selection) -> None:
    states = sorted(REVIEW_NUMBER[state] for state in selection.states)
    if len(states) == 1 and not found.is_led:
        found.filter("state + 0 = %s", states[0])
        found.is_led = True
    elif selection.states == OPEN_STATES:
        found.filter("state <= 1")
    else:
        found.filter("state = ANY (%s)", states)


_TEXTS: Final = ("lower(reason_text)", "lower(message_id)", "lower(coalesce(key, ''))")


def _add_text(tx: Tx, found: Where, text: str, *, few: int) -> None:
    wanted = text_in(text.lower())
    those = _letters_with(tx, wanted, few) if wanted is not None and _INDEXED.search(wanted) else None
    if those is not None:
        found.filter("seq = ANY (%s)", those)
        found.is_led = True
        return
    conditions = " OR ".join(f"strpos({column}, %s) > 0" for column in _TEXTS)
    found.filter_slowly(f"({conditions})", *[wanted] * len(_TEXTS))


def _letters_with(tx: Tx, text: str, few: int) -> list[int] | None:
    """The rows that have this text; None where they are more than few, or there is no index."""
    # One that is being made is there already, and helps nobody yet.
    row = tx.execute("SELECT 1 FROM pg_index WHERE indexrelid = to_regclass('@letter_text') AND indisvalid").fetchone()
    if row is None:
        return None
    pattern = "%" + re.sub(r"([%_\\])", r"\\\1", text) + "%"
    conditions = " OR ".join(f"{column} LIKE %s" for column in _TEXTS)
    # Planned for all of them, so by the index where they are few, and read no further than needed.
    rows = tx.execute(
        f"WITH with_it AS MATERIALIZED (SELECT seq FROM @letter WHERE {conditions}) SELECT seq FROM with_it LIMIT %s",  # noqa: S608 - constants
        [*[pattern] * len(_TEXTS), few + 1],
    ).fetchall()
    return None if len(rows) > few else [row[0] for row in rows]


def _add_headers(found: Where, selection: Selection) -> None:
    wanted = [Jsonb({text_in(name): text_in(value)}) for name, value in selection.headers]
    held = " AND ".join(["c.header_texts @> %s"] * len(wanted))
    found.filter_slowly(
        f"EXISTS (SELECT 1 FROM @letter_content c WHERE c.seq = l.seq AND {held})",  # noqa: S608 - constants
        *wanted,
    )


def walk(
    tx: Tx, selection: Selection, *, after: Place | None, up_to: int | None, limit: int
) -> Iterator[tuple[Place, LetterSummary]]:
    """Selected letters in order of death from behind `after`. `up_to`: only rows that were there by then."""
    found = where(tx, selection)
    if after is not None:
        found.filter(f"({found.died}, seq) > (%s, %s)", *after)
    if up_to is not None:
        found.filter("seq + 0 <= %s", up_to)
    rows = tx.execute(
        f"SELECT dead_lettered_at, seq, {SUMMARY_COLUMNS} FROM @letter l WHERE {found.text} "  # noqa: S608 - constants
        f"ORDER BY {found.order} LIMIT %s",
        [*found.values, limit],
    )
    for row in rows:
        yield (row[0], row[1]), summary_from(row[2:])


def find(tx: Tx, selection: Selection, *, limit: int, cursor: str | None) -> Page:
    """One page and the cursor of the next. Where `is_slow`, both statements must see one instant."""
    after = None if cursor is None else place_of(cursor)
    if is_slow(selection):
        return _find_slowly(tx, selection, limit=limit, after=after)
    return _page(list(walk(tx, selection, after=after, up_to=None, limit=limit + 1)), limit=limit, end=None)


def is_slow(selection: Selection) -> bool:
    """Whether it has a condition that no index helps with."""
    return selection.text is not None or bool(selection.headers)


def _find_slowly(tx: Tx, selection: Selection, *, limit: int, after: Place | None) -> Page:
    wanted = where(tx, selection)
    if after is not None:
        wanted.filter(f"({wanted.died}, seq) > (%s, %s)", *after)
    rows = tx.execute(
        f"SELECT dead_lettered_at, seq, {SUMMARY_COLUMNS} FROM {looked_at(wanted)} LIMIT %s",  # noqa: S608 - constants
        [*wanted.fast_values, LOOK_AT, *wanted.slow_values, limit + 1],
    )
    found = [((row[0], row[1]), summary_from(row[2:])) for row in rows]
    end = None if len(found) > limit else _last_looked_at(tx, wanted)
    return _page(found, limit=limit, end=end)


def looked_at(wanted: Where) -> str:
    """The letters of this condition in order, as far as they are looked for; its values: the fast ones, `LOOK_AT`, the
    slow ones. The order is named as the index has it, so that the first ones found are told at once.
    """
    return (
        f"(SELECT *, {wanted.died} AS died FROM @letter l WHERE {' AND '.join(wanted.fast) or 'true'} "  # noqa: S608 - constants
        f"ORDER BY {wanted.order} LIMIT %s) l WHERE {' AND '.join(wanted.slow) or 'true'} ORDER BY died, seq"
    )


def _last_looked_at(tx: Tx, wanted: Where) -> Place | None:
    """The place of the last letter that is looked at; None where all are."""
    row = tx.execute(
        f"SELECT dead_lettered_at, seq FROM @letter l WHERE {' AND '.join(wanted.fast) or 'true'} "  # noqa: S608 - constants
        f"ORDER BY {wanted.order} OFFSET %s LIMIT 1",
        [*wanted.fast_values, LOOK_AT - 1],
    ).fetchone()
    return None if row is None else (row[0], row[1])


def _page(found: Sequence[tuple[Place, LetterSummary]], *, limit: int, end: Place | None) -> Page:
    """`end`: where looking ended early."""
    page = found[:limit]
    last = page[-1][0] if len(found) > limit and page else end
    return Page(letters=tuple(letter for _, letter in page), cursor=None if last is None else cursor_at(last))


_COUNTED: Final = ("state", "queue", "reason_code", "fingerprint", "tenant")
_KEPT: Final = ("", "reason_code", "fingerprint", "tenant")
"""By the number in redrive_tally.what."""
_Counts = dict[str, dict[str, int]]


def stats(
    tx: Tx, selection: Selection, *, top: int, ages_at: UnixMs | None = None, up_to: int | None = None
) -> LetterStats:
    """Counts over the selection. Of queues and states they are kept; of others they are one walk."""
    found = where(tx, selection, few=up_to or 0)
    is_at_least = False
    if replace(selection, queue=None, states=frozenset()) == Selection():
        counts, oldest_at = _count_kept(tx, selection, found)
    elif up_to is None:
        counts, oldest_at, _ = _count_some(tx, f"@letter l WHERE {found.text}", found.values)
    else:
        counts, oldest_at, is_at_least = _count_first(tx, found, up_to=up_to)
    by_state = {str(REVIEW_STATES[int(number)]): count for number, count in counts["state"].items()}
    return LetterStats(
        total=sum(by_state.values()),
        by_state=_largest(by_state, top),
        by_queue=_largest(counts["queue"], top),
        by_reason=_largest(counts["reason_code"], top),
        by_group=_largest(counts["fingerprint"], top),
        by_tenant=_largest(counts["tenant"], top),
        oldest_at=oldest_at,
        ages=None if ages_at is None else _ages(tx, found, now=ages_at),
        is_at_least=is_at_least,
    )


def _count_kept(tx: Tx, selection: Selection, found: Where) -> tuple[_Counts, UnixMs | None]:
    """As the triggers count them (sql/002_tally.sql): no letter is read but the oldest."""
    conditions, values = ["true"], list[Any]()
    if selection.states:
        conditions.append("state = ANY (%s)")
        values.append(sorted(REVIEW_NUMBER[state] for state in selection.states))
    if selection.queue is not None:
        columns = ("queue", "dead_letter_queue")
        either = (f"(left({column}, 100) = left(%s, 100) AND {column} = %s)" for column in columns)
        conditions.append(f"({' OR '.join(either)})")
        values += [text_in(selection.queue)] * 4
    wanted, names = " AND ".join(conditions), "queue, state, what, name"
    rows = tx.execute(
        f"SELECT {names}, sum(count)::bigint FROM (SELECT {names}, count FROM @tally WHERE {wanted} "  # noqa: S608 - constants
        f"UNION ALL SELECT {names}, count FROM @tally_new WHERE {wanted}) each GROUP BY {names} HAVING sum(count) <> 0",
        [*values, *values],
    )
    counts: _Counts = {column: {} for column in _COUNTED}
    for queue, state, what, name, count in rows:
        for column, text in (("state", str(state)), ("queue", queue)) if what == 0 else ((_KEPT[what], name),):
            _add(counts, column, text, count=count)
    is_open = sum(count for state, count in counts["state"].items() if REVIEW_STATES[int(state)] in OPEN_STATES)
    return counts, _oldest(tx, found) if is_open else None


def _add(counts: _Counts, column: str, kept: object, *, count: int) -> None:
    name = NO_TENANT if kept is None else text_out(str(kept)) or NO_TENANT
    counts[column][name] = counts[column].get(name, 0) + count


def _oldest(tx: Tx, found: Where) -> UnixMs | None:
    """When the oldest open letter died."""
    row = tx.execute(
        f"SELECT dead_lettered_at FROM @letter l WHERE {found.text} AND state <= 1 ORDER BY {found.order} LIMIT 1",  # noqa: S608 - constants
        found.values,
    ).fetchone()
    return None if row is None else row[0]


def _count_first(tx: Tx, found: Where, *, up_to: int) -> tuple[_Counts, UnixMs | None, bool]:
    """Counts of the oldest letters, `up_to` of them, and whether there may be more."""
    if found.slow:
        those, values = looked_at(found), [*found.fast_values, LOOK_AT, *found.slow_values]
    else:
        those, values = f"@letter l WHERE {found.text} ORDER BY {found.order}", found.values
    numbered = f"(SELECT l.*, row_number() OVER () AS place FROM (SELECT l.* FROM {those} LIMIT %s) l) l"  # noqa: S608 - constants
    counts, oldest, is_more = _count_some(tx, numbered, [*values, up_to + 1], place=f"place > {up_to:d}")
    is_at_least = is_more or (bool(found.slow) and _last_looked_at(tx, found) is not None)
    return counts, oldest, is_at_least


def _count_some(
    tx: Tx, those: str, values: Sequence[Any], *, place: str = "false"
) -> tuple[_Counts, UnixMs | None, bool]:
    """Counts of those letters, and whether there is one with this place, which does not count."""
    # One walk for all counts, since the condition may be dear; the combinations that occur are few.
    counts: _Counts = {column: {} for column in _COUNTED}
    oldest: UnixMs | None = None
    is_more = False
    rows = tx.execute(
        f"SELECT {place}, {', '.join(_COUNTED)}, count(*), min(dead_lettered_at) FROM {those} "  # noqa: S608 - constants
        f"GROUP BY {', '.join(map(str, range(1, len(_COUNTED) + 2)))}",
        values,
    )
    for is_beyond, *names, count, died_at in rows:
        if is_beyond:
            is_more = True
            continue
        for column, name in zip(_COUNTED, names, strict=True):
            _add(counts, column, name, count=count)
        if REVIEW_STATES[names[0]] in OPEN_STATES and (oldest is None or died_at < oldest):
            oldest = died_at
    return counts, oldest, is_more


def _ages(tx: Tx, found: Where, *, now: UnixMs) -> Ages:
    # One walk; each row is compared with one bound after the other until it fits.
    steps = " ".join(
        f"WHEN dead_lettered_at >= {now - bound} THEN {place}" for place, bound in enumerate(AGE_BOUNDS_MS)
    )
    rows = tx.execute(
        f"SELECT CASE {steps} ELSE {len(AGE_BOUNDS_MS)} END, count(*), "  # noqa: S608 - numbers
        f"sum(greatest(0, {now} - dead_lettered_at))::bigint FROM @letter l WHERE {found.text} GROUP BY 1",
        found.values,
    ).fetchall()
    counts = {place: count for place, count, _ in rows}
    return Ages(
        counts=tuple(counts.get(place, 0) for place in range(len(AGE_BOUNDS_MS) + 1)),
        total_ms=sum(total for _, _, total in rows),
    )


def _largest(counts: dict[str, int], top: int) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:top])
