"""Groups as rows of an SQL store: the same columns in every one of them; `TextIn` and `TextOut` as in rows.py."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

from redrive.core.letters.groups import Group, GroupState, GroupWork, Ignored
from redrive.core.letters.rows import Row, TextIn, TextOut, or_none
from redrive.core.text import clean, clean_or_none

GROUP_STATES: Final = (GroupState.OPEN, GroupState.ACKNOWLEDGED, GroupState.IGNORED, GroupState.RESOLVED)
"""By the number stored."""
GROUP_NUMBER: Final = {state: number for number, state in enumerate(GROUP_STATES)}
WORK_COLUMNS: Final = ("state", "note", "assignee", "ignored", "resolved_in", "count_then", "changed_at", "changed_by")
"""What people made of it."""
GROUP_COLUMNS: Final = (
    "fingerprint, title, queue, reason_code, error_type, error_code, pending + reviewed + replayed + closed, "
    "pending + reviewed, seen, first_seen, last_seen, redriven, succeeded, returned, "
) + ", ".join(WORK_COLUMNS)
SEEN: Final = 8
"""The place of `seen` among them."""
_WORK: Final = 14

Named = tuple[tuple[str, int], ...]


def group_from(row: Row, *, tenants: int, top_tenants: Named, versions: Named, text_out: TextOut) -> Group:
    """The group of one row with GROUP_COLUMNS, and of its names, which stand elsewhere."""
    return Group(
        fingerprint=text_out(row[0]),
        title=row[1],
        queue=text_out(row[2]),
        reason_code=text_out(row[3]),
        error_type=row[4],
        error_code=row[5],
        count=row[6],
        waiting=row[7],
        seen=row[SEEN],
        first_seen=row[9],
        last_seen=row[10],
        redriven=row[11],
        succeeded=row[12],
        returned=row[13],
        tenants=tenants,
        top_tenants=top_tenants,
        versions=versions,
        work=work_from(row, text_out=text_out),
    )


def work_from(row: Row, *, text_out: TextOut) -> GroupWork:
    """What people made of the group of one row with GROUP_COLUMNS."""
    state, note, assignee, ignored, resolved_in, count_then, changed_at, changed_by = row[_WORK:]
    return GroupWork(
        state=GROUP_STATES[state],
        note=note,
        assignee=or_none(assignee, text_out),
        ignored=None if ignored is None else Ignored(**json.loads(ignored)),
        resolved_in=resolved_in,
        count_then=count_then,
        changed_at=changed_at,
        changed_by=changed_by,
    )


def work_row(work: GroupWork, *, text_in: TextIn) -> tuple[Any, ...]:
    """What WORK_COLUMNS hold of it."""
    return (
        GROUP_NUMBER[work.state],
        clean(work.note),
        text_in(work.assignee),
        None if work.ignored is None else json.dumps(asdict(work.ignored)),
        clean_or_none(work.resolved_in),
        work.count_then,
        work.changed_at,
        clean_or_none(work.changed_by),
    )
