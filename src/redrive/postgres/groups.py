"""Groups: triggers count (sql/002_tally.sql); people, and new failures, move them here.

Every function runs inside the caller's transaction.
"""

from __future__ import annotations

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
from redrive.postgres.database import Tx
from redrive.postgres.values import text_in, text_out

_TENANT, _VERSION = 0, 1
_WAITING: Final = "(-(pending + reviewed))"


# ---------------------------------------------------------------------------------------------------- looking


def page(tx: Tx, *, states: Collection[GroupState], queue: str | None, limit: int, cursor: str | None) -> GroupPage:
    """One page, those with the most waiting letters first."""
    conditions, values = ["true"], list[Any]()
    if states:
        conditions.append("state = ANY (%s)")
        values.append(sorted(GROUP_NUMBER[state] for state in states))
    if queue is not None:
        conditions.append("(queue = %s OR dead_letter_queue = %s)")
        values += [text_in(queue)] * 2
    if cursor is not None:
        conditions.append(f"({_WAITING}, fingerprint) > (%s, %s)")
        waiting, fingerprint = place_after(cursor)
        values += [waiting, text_in(fingerprint)]
    rows = tx.execute(
        f"SELECT {GROUP_COLUMNS} FROM @group WHERE {' AND '.join(conditions)} "  # noqa: S608 - constants
        f"ORDER BY {_WAITING}, fingerprint LIMIT %s",
        [*values, limit + 1],
    ).fetchall()
    groups = tuple(_groups(tx, rows[:limit]))
    return GroupPage(groups=groups, cursor=cursor_after(groups[-1]) if len(rows) > limit and groups else None)


def get(tx: Tx, fingerprint: str) -> tuple[Group, tuple[GroupEntry, ...]] | None:
    """One group and what was done to it, oldest first."""
    row = _row(tx, fingerprint)
    if row is None:
        return None
    trail = tx.execute(
        "SELECT at, actor, action, note FROM @group_audit WHERE fingerprint = %s ORDER BY id", (text_in(fingerprint),)
    )
    entries = tuple(
        GroupEntry(fingerprint=fingerprint, at=at, actor=actor, action=action, note=note)
        for at, actor, action, note in trail
    )
    return _groups(tx, [row])[0], entries


def hours(tx: Tx, fingerprint: str, *, since: UnixMs) -> list[HourCount]:
    """Deaths per hour, oldest first."""
    rows = tx.execute(
        "SELECT at, count FROM @group_hour WHERE fingerprint = %s AND at >= %s ORDER BY at",
        (text_in(fingerprint), hour_of(since)),
    )
    return [HourCount(at=at, count=count) for at, count in rows]


def _row(tx: Tx, fingerprint: str, *, lock: str = "") -> Sequence[Any] | None:
    return tx.execute(
        f"SELECT {GROUP_COLUMNS} FROM @group WHERE fingerprint = %s {lock}",  # noqa: S608 - constants
        (text_in(fingerprint),),
    ).fetchone()


_NAMES: Final = (
    "SELECT fingerprint, what, name, count, total FROM (SELECT fingerprint, what, name, count, "
    "count(*) OVER (PARTITION BY fingerprint, what) AS total, "
    'row_number() OVER (PARTITION BY fingerprint, what ORDER BY count DESC, name COLLATE "C") AS place '
    "FROM @group_name WHERE fingerprint = ANY (%s)) n WHERE place <= %s ORDER BY fingerprint, what, place"
)


def _groups(tx: Tx, rows: Sequence[Sequence[Any]]) -> list[Group]:
    """The groups of these rows, with their tenants and versions, all of which are one statement."""
    named: dict[tuple[str, int], list[tuple[str, int]]] = {}
    totals: dict[tuple[str, int], int] = {}
    if rows:
        for fingerprint, what, name, count, total in tx.execute(_NAMES, ([row[0] for row in rows], MAX_NAMED)):
            named.setdefault((fingerprint, what), []).append((text_out(name), count))
            totals[fingerprint, what] = total
    return [
        group_from(
            row,
            tenants=totals.get((row[0], _TENANT), 0),
            top_tenants=tuple(named.get((row[0], _TENANT), ())),
            versions=tuple(named.get((row[0], _VERSION), ())),
            text_out=text_out,
        )
        for row in rows
    ]


# ---------------------------------------------------------------------------------------------------- moving


def change(tx: Tx, batch: Sequence[GroupChange]) -> list[str | None]:
    """Change groups, each audited; else why not."""
    _lock(tx, [each.fingerprint for each in batch])
    return [_change_one(tx, each, note=each.note or "") for each in batch]


def _lock(tx: Tx, fingerprints: Sequence[str]) -> None:
    # In the order in which the triggers take them, too.
    tx.execute(
        "SELECT 1 FROM @group WHERE fingerprint = ANY (%s) ORDER BY fingerprint FOR UPDATE",
        ([text_in(fingerprint) for fingerprint in fingerprints],),
    )


def reopen(tx: Tx, letters: Sequence[Letter]) -> None:
    """Look at the groups of letters that were just stored: who was resolved, or ignored up to a bound, comes back. The
    trigger that counted the letters holds the rows.
    """
    if not letters:
        return
    rows = tx.execute(
        f"SELECT {GROUP_COLUMNS} FROM @group WHERE fingerprint = ANY (%s) AND state IN (2, 3) ORDER BY fingerprint",  # noqa: S608 - constants
        ([text_in(letter.fingerprint) for letter in letters],),
    ).fetchall()
    for row in rows:
        same = [each for each in letters if text_in(each.fingerprint) == row[0]]
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
    if work.ignored is None or work.ignored.per_ms is None:
        return 0
    fingerprint = text_in(letter.fingerprint)
    row = tx.execute(
        "SELECT count(*) FROM @letter WHERE left(fingerprint, 100) = left(%s, 100) AND fingerprint = %s "
        "AND dead_lettered_at > %s",
        (fingerprint, fingerprint, letter.dead_lettered_at - work.ignored.per_ms),
    ).fetchone()
    return 0 if row is None else int(row[0])


def _change_one(tx: Tx, wanted: GroupChange, *, note: str) -> str | None:
    row = _row(tx, wanted.fingerprint, lock="FOR UPDATE")
    if row is None:
        return f'there is no group "{wanted.fingerprint}"'
    work = changed(work_from(row, text_out=text_out), wanted, seen=row[SEEN])
    if isinstance(work, str):
        return work
    columns = ", ".join(f"{name} = %s" for name in WORK_COLUMNS)
    tx.execute(
        f"UPDATE @group SET {columns} WHERE fingerprint = %s",  # noqa: S608 - constants
        [*work_row(work, text_in=text_in), row[0]],
    )
    tx.execute(
        "INSERT INTO @group_audit (fingerprint, at, actor, action, note) VALUES (%s, %s, %s, %s, %s)",
        (row[0], wanted.at, clean(wanted.actor), action_of(wanted), clean(note)),
    )
    return None


# ---------------------------------------------------------------------------------------------------- recount

_NOW: Final = (
    "SELECT fingerprint, count(*) FILTER (WHERE state = 0) AS pending, count(*) FILTER (WHERE state = 1) AS reviewed, "
    "count(*) FILTER (WHERE state = 2) AS replayed, count(*) FILTER (WHERE state = 3) AS closed, count(*) AS seen, "
    "min(seq) AS first, min(dead_lettered_at) AS first_seen, max(dead_lettered_at) AS last_seen "
    "FROM @letter GROUP BY fingerprint"
)
_NAMES_NOW: Final = (
    "SELECT sha256(convert_to(fingerprint || ' ' || what || ' ' || name, 'UTF8')) AS id, fingerprint, what, name, "
    "count(*) AS count FROM (SELECT fingerprint, 0 AS what, coalesce(tenant, '-') AS name FROM @letter "
    "UNION ALL SELECT fingerprint, 1, version FROM @letter WHERE version IS NOT NULL) each GROUP BY 1, 2, 3, 4"
)
_WRONG: Final = (
    f"SELECT coalesce(n.fingerprint, g.fingerprint) FROM ({_NOW}) n FULL JOIN @group g USING (fingerprint) "  # noqa: S608 - constants
    "WHERE (coalesce(n.pending, 0), coalesce(n.reviewed, 0), coalesce(n.replayed, 0), coalesce(n.closed, 0)) "
    "IS DISTINCT FROM (g.pending, g.reviewed, g.replayed, g.closed) "
    f"UNION SELECT coalesce(n.fingerprint, k.fingerprint) FROM ({_NAMES_NOW}) n FULL JOIN @group_name k USING (id) "
    "WHERE n.count IS DISTINCT FROM k.count"
)


def recount(tx: Tx) -> int:
    """Make the counts anew where they are wrong; of how many groups they were. Nobody stores or moves a letter
    meanwhile. The counts of all letters, which `stats` reads, are made anew with them.
    """
    tx.execute("LOCK TABLE @letter, @group, @group_name, @tally, @tally_new IN SHARE ROW EXCLUSIVE MODE")
    wrong = [row[0] for row in tx.execute(_WRONG)]
    tx.execute("DELETE FROM @tally")
    tx.execute("DELETE FROM @tally_new")
    tx.execute("INSERT INTO @tally_new SELECT queue, dead_letter_queue, state, what, name, count FROM @tally_now")
    if not wrong:
        return 0
    tx.execute("UPDATE @group SET pending = 0, reviewed = 0, replayed = 0, closed = 0")
    tx.execute(
        "INSERT INTO @group AS g (fingerprint, title, queue, dead_letter_queue, reason_code, error_type, error_code, "  # noqa: S608 - constants
        "pending, reviewed, replayed, closed, seen, first_seen, last_seen) "
        "SELECT n.fingerprint, l.group_title, l.queue, l.dead_letter_queue, l.reason_code, l.error_type, l.error_code, "
        "n.pending, n.reviewed, n.replayed, n.closed, "
        f"n.seen, n.first_seen, n.last_seen FROM ({_NOW}) n JOIN @letter l ON l.seq = n.first "
        "ON CONFLICT (fingerprint) DO UPDATE SET pending = excluded.pending, reviewed = excluded.reviewed, "
        "replayed = excluded.replayed, closed = excluded.closed, seen = greatest(g.seen, excluded.seen)"
    )
    tx.execute("DELETE FROM @group WHERE pending + reviewed + replayed + closed = 0 AND changed_at IS NULL")
    tx.execute("DELETE FROM @group_name")
    tx.execute(f"INSERT INTO @group_name (id, fingerprint, what, name, count) {_NAMES_NOW}")
    return len(wrong)
