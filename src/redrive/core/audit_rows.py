"""Writes over the API, and their answers, as rows of an SQL store; `TextIn` and `TextOut` as in letters/rows.py."""

from __future__ import annotations

import json
from typing import Any, Final

from redrive.core.audit import Answer, Write, WriteQuery, after_cursor
from redrive.core.letters.rows import Row, TextIn, TextOut
from redrive.core.units import UnixMs

WRITE_COLUMNS: Final = "id, at, actor, role, operation, target, address, status, result"
ANSWER_COLUMNS: Final = "key, status, body, headers, expires_at"


def write_row(write: Write, *, text_in: TextIn) -> tuple[Any, ...]:
    """What WRITE_COLUMNS hold of this write."""
    names = (write.actor, write.role, write.operation, write.target, write.address)
    return (write.id, write.at, *map(text_in, names), write.status, text_in(write.result))


def write_from(row: Row, *, text_out: TextOut) -> Write:
    """The write of one row."""
    id_, at, actor, role, operation, target, address, status, result = row
    return Write(
        id=id_,
        at=at,
        actor=text_out(actor),
        role=text_out(role),
        operation=text_out(operation),
        target=text_out(target),
        address=text_out(address),
        status=status,
        result=text_out(result),
    )


def conditions(query: WriteQuery, cursor: str | None, *, text_in: TextIn) -> dict[str, Any]:
    """Those that are given: what stands left of the value, and the value."""
    wanted = {
        "id <": after_cursor(cursor),
        "actor =": text_in(query.actor),
        "operation =": text_in(query.operation),
        "target =": text_in(query.target),
        "at >=": query.since,
        "at <": query.until,
    }
    return {test: value for test, value in wanted.items() if value is not None}


def answer_row(key: str, answer: Answer, *, expires_at: UnixMs) -> tuple[Any, ...]:
    """What ANSWER_COLUMNS hold of this answer."""
    return (key, answer.status, answer.body, json.dumps(dict(answer.headers)), expires_at)


def answer_from(row: Row) -> Answer:
    """The answer of a row with status, body and headers."""
    return Answer(status=row[0], body=bytes(row[1]), headers=json.loads(row[2]))
