"""Groups in the tables of one file. Triggers count (006_groups.sql); people, and new failures, move them here.

Every function runs inside the caller's transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from typing import Any, Final

from redrive.core.letters.group_rows import (
    GROUP_COLUMNS,
    GROUP_NUMBER,
    SEEN,
    WORK_COLUMNS,
    group_from,
    work_from,
    work_row,
)
from redrive.core.letters.groups import (
    MAX_NAMED,
    REOPENED_BY,
    Group,
    GroupChange,
    GroupEntry,
    GroupState,
    GroupWork,
    action_of,
    changed,
    cursor_after,
    hour_of,
    place_after,
    reopening,
)
from redrive.core.letters.letter import Letter
from redrive.core.ports import GroupPage, HourCount
from redrive.core.text import clean
from redrive.core.units import UnixMs
from redrive.sqlite.values import insert_rows, numbers, text_in, text_out
from redrive.sqlite.writer import Tx

_WAITING: Final = "-(pending + reviewed)"


# ---------------------------------------------------------------------------------------------------- looking


def page(
    connection: sqlite3.Connection,
    *,
    states: Collection[GroupState],
    queue: str | None,
    limit: int,
    cursor: str | None,
) -> GroupPage:
    """One page, those with the most waiting letters first."""
    conditions, values = ["1"], list[Any]()
    if states:
        conditions.append("state IN (SELECT value FROM json_each(?))")
        values.append(numbers(sorted(GROUP_NUMBER[state] for state in states)))
    if queue is not None:
        conditions.append("(queue = ? OR dead_letter_queue = ?)")
        values += [text_in(queue)] * 2
    if cursor is not None:
        conditions.append(f"({_WAITING}, fingerprint) > (?, ?)")
        waiting, fingerprint = place_after(cursor)
        values += [waiting, text_in(fingerprint)]
    rows = connection.execute(
        f"SELECT {GROUP_COLUMNS} FROM redrive_group WHERE {' AND '.join(conditions)} "  # noqa: S608 - constants
        f"ORDER BY {_WAITING}, fingerprint LIMIT ?",
        [*values, limit + 1],
    ).fetchall()
    groups = tuple(_group(connection, row) for row in rows[:limit])
    return GroupPage(groups=groups, cursor=cursor_after(groups[-1]) if len(rows) > limit and groups else None)


def get(connection: sqlite3.Connection, fingerprint: str) -> tuple[Group, tuple[GroupEntry, ...]] | None:
    """One group and what was done to it, oldest first."""
    row = _row(connection, fingerprint)
    if row is None:
        return None
    trail = connection.execute(
        "SELECT at, actor, action, note FROM redrive_group_audit WHERE fingerprint = ? ORDER BY id",
        (text_in(fingerprint),),
    )
    entries = tuple(
        GroupEntry(fingerprint=fingerprint, at=at, actor=text_out(actor), action=action, note=text_out(note))
        for at, actor, action, note in trail
    )
    return _group(connection, row), entries


def hours(connection: sqlite3.Connection, fingerprint: str, *, since: UnixMs) -> list[HourCount]:
    """Deaths per hour, oldest first."""
    rows = connection.execute(
        "SELECT at, count FROM redrive_group_hour WHERE fingerprint = ? AND at >= ? ORDER BY at",
        (text_in(fingerprint), hour_of(since)),
    )
    return [HourCount(at=at, count=count) for at, count in rows]


def _row(connection: sqlite3.Connection, fingerprint: str) -> Sequence[Any] | None:
    row: Sequence[Any] | None = connection.execute(
        f"SELECT {GROUP_COLUMNS} FROM redrive_group WHERE fingerprint = ?",  # noqa: S608 - constants
        (text_in(fingerprint),),
    ).fetchone()
    return row


def _group(connection: sqlite3.Connection, row: Sequence[Any]) -> Group:
    tenants = connection.execute(
        "SELECT count(*) FROM redrive_group_tenant WHERE fingerprint = ?", (row[0],)
    ).fetchone()[0]
    return group_from(
        row,
        tenants=tenants,
        top_tenants=_largest(connection, "tenant", row[0]),
        versions=_largest(connection, "version", row[0]),
        text_out=text_out,
    )


def _largest(connection: sqlite3.Connection, what: str, fingerprint: Any) -> tuple[tuple[str, int], ...]:
    rows = connection.execute(
        f"SELECT name, count FROM redrive_group_{what} WHERE fingerprint = ? ORDER BY count DESC, name LIMIT ?",  # noqa: S608
        (fingerprint, MAX_NAMED),
    )
    return tuple((text_out(name), count) for name, count in rows)


# ---------------------------------------------------------------------------------------------------- moving


def change(tx: Tx, batch: Sequence[GroupChange]) -> list[str | None]:
    """Change groups, each audited; else why not."""
    return [_change_one(tx, each, note=each.note or "") for each in batch]


def reopen(tx: Tx, letters: Sequence[Letter]) -> None:
    """Look at the groups of letters that were just stored: who was resolved, or ignored up to a bound, comes back."""
    for fingerprint in dict.fromkeys(letter.fingerprint for letter in letters):
        row = tx.execute(
            f"SELECT {GROUP_COLUMNS} FROM redrive_group WHERE fingerprint = ? AND state IN (2, 3)",  # noqa: S608 - constants
            (text_in(fingerprint),),
        ).fetchone()
        if row is not None:
            same = [each for each in letters if each.fingerprint == fingerprint]
            _reopen_one(tx, work_from(row, text_out=text_out), same, seen=row[SEEN])


def _reopen_one(tx: Tx, work: GroupWork, letters: Sequence[Letter], *, seen: int) -> None:
    for letter in letters:
        at = letter.dead_lettered_at
        why = reopening(work, version=letter.version, at=at, seen=seen, lately=_lately(tx, work, letter))
        if why is not None:
            back = GroupChange(fingerprint=letter.fingerprint, actor=REOPENED_BY, at=at, to=GroupState.OPEN)
            _change_one(tx, back, note=why)
            return


def _lately(tx: Tx, work: GroupWork, letter: Letter) -> int:
    bound = work.ignored
    if bound is None or bound.per_ms is None or bound.rate is None:
        return 0
    # No further than tells: the group may have had very many letters lately.
    found: int = tx.execute(
        "SELECT count(*) FROM (SELECT 1 FROM redrive_letter WHERE fingerprint = ? AND dead_lettered_at > ? LIMIT ?)",
        (text_in(letter.fingerprint), letter.dead_lettered_at - bound.per_ms, bound.rate + 1),
    ).fetchone()[0]
    return found


def _change_one(tx: Tx, wanted: GroupChange, *, note: str) -> str | None:
    row = _row(tx.connection, wanted.fingerprint)
    if row is None:
        return f'there is no group "{wanted.fingerprint}"'
    work = changed(work_from(row, text_out=text_out), wanted, seen=row[SEEN])
    if isinstance(work, str):
        return work
    columns = ", ".join(f"{name} = ?" for name in WORK_COLUMNS)
    tx.execute(
        f"UPDATE redrive_group SET {columns} WHERE fingerprint = ?",  # noqa: S608 - constants
        [*work_row(work, text_in=text_in), row[0]],
    )
    entry = (row[0], wanted.at, clean(wanted.actor), action_of(wanted), clean(note))
    insert_rows(tx.connection, "INSERT INTO redrive_group_audit (fingerprint, at, actor, action, note)", [entry])
    return None


# ---------------------------------------------------------------------------------------------------- recount

_STATES_NOW: Final = "SELECT fingerprint, pending, reviewed, replayed, closed FROM redrive_group_now"
_TENANTS_NOW: Final = "SELECT fingerprint, COALESCE(tenant, '-'), count(*) FROM redrive_letter GROUP BY 1, 2"
_VERSIONS_NOW: Final = (
    "SELECT fingerprint, version, count(*) FROM redrive_letter WHERE version IS NOT NULL GROUP BY 1, 2"
)
_STATES_KEPT: Final = (
    "SELECT fingerprint, pending, reviewed, replayed, closed FROM redrive_group "
    "WHERE pending + reviewed + replayed + closed <> 0"
)
_ADD_GROUPS: Final = (
    "INSERT INTO redrive_group (fingerprint, title, queue, dead_letter_queue, reason_code, error_type, error_code, "
    "pending, reviewed, replayed, closed, seen, first_seen, last_seen) SELECT * FROM redrive_group_now WHERE true "
    "ON CONFLICT (fingerprint) DO UPDATE SET pending = excluded.pending, reviewed = excluded.reviewed, "
    "replayed = excluded.replayed, closed = excluded.closed, seen = max(seen, excluded.seen)"
)


def wrong(connection: sqlite3.Connection) -> int:
    """Of how many groups the counts are wrong; 1 where only sums over groups are. Looks at one instant, and holds up
    nobody: this takes seconds where there are a million letters.
    """
    connection.execute("BEGIN")
    try:
        return _wrong(connection)
    finally:
        connection.execute("COMMIT")


def _wrong(connection: sqlite3.Connection) -> int:
    names = set[Any]()
    for now, kept in (
        (_STATES_NOW, _STATES_KEPT),
        (_TENANTS_NOW, "SELECT fingerprint, name, count FROM redrive_group_tenant"),
        (_VERSIONS_NOW, "SELECT fingerprint, name, count FROM redrive_group_version"),
    ):
        differing = set(connection.execute(now).fetchall()) ^ set(connection.execute(kept).fetchall())
        names.update(row[0] for row in differing)
    sums = set(connection.execute("SELECT * FROM redrive_letter_count WHERE count <> 0").fetchall())
    is_sum_wrong = sums != set(connection.execute("SELECT * FROM redrive_letter_count_now").fetchall())
    return max(int(is_sum_wrong), len(names))


def recount(tx: Tx) -> int:
    """Make the counts anew where they are wrong; as `wrong`."""
    found = _wrong(tx.connection)
    if not found:
        return 0
    tx.execute("DELETE FROM redrive_letter_count")
    tx.execute("INSERT INTO redrive_letter_count SELECT * FROM redrive_letter_count_now")
    tx.execute("UPDATE redrive_group SET pending = 0, reviewed = 0, replayed = 0, closed = 0")
    tx.execute(_ADD_GROUPS)
    tx.execute("DELETE FROM redrive_group WHERE pending + reviewed + replayed + closed = 0 AND changed_at IS NULL")
    for what, now in (("tenant", _TENANTS_NOW), ("version", _VERSIONS_NOW)):
        tx.execute(f"DELETE FROM redrive_group_{what}")  # noqa: S608 - constants
        tx.execute(f"INSERT INTO redrive_group_{what} (fingerprint, name, count) {now}")
    return found
