"""Writes and answers in two tables."""

from __future__ import annotations

import json
from typing import Any, Final

from redrive.core.audit import Answer, Write, WritePage, WriteQuery, after_cursor, page_of
from redrive.core.units import UnixMs
from redrive.postgres.database import Tx
from redrive.postgres.values import text_in, text_out

COLUMNS: Final = "id, at, actor, role, operation, target, address, status, result"


def put(tx: Tx, write: Write) -> None:
    """Keep this write, in place of what was known of it. One statement."""
    names = (write.actor, write.role, write.operation, write.target, write.address)
    tx.execute(
        f"INSERT INTO @write ({COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) "  # noqa: S608 - constant
        "ON CONFLICT (id) DO UPDATE SET status = excluded.status, result = excluded.result",
        (write.id, write.at, *map(text_in, names), write.status, text_in(write.result)),
    )


def find(tx: Tx, query: WriteQuery, *, limit: int, cursor: str | None) -> WritePage:
    """One page, newest first, by the key."""
    wanted: list[tuple[str, Any]] = [
        ("id < %s", after_cursor(cursor)),
        ("actor = %s", text_in(query.actor)),
        ("operation = %s", text_in(query.operation)),
        ("target = %s", text_in(query.target)),
        ("at >= %s", query.since),
        ("at < %s", query.until),
    ]
    given = [(text, value) for text, value in wanted if value is not None]
    where = " AND ".join(text for text, _ in given) or "true"
    rows = tx.execute(
        f"SELECT {COLUMNS} FROM @write WHERE {where} ORDER BY id DESC LIMIT %s",  # noqa: S608 - constants
        [*(value for _, value in given), limit + 1],
    )
    return page_of([_write(row) for row in rows], limit)


def _write(row: tuple[Any, ...]) -> Write:
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


def keep(tx: Tx, key: str, answer: Answer, *, expires_at: UnixMs) -> None:
    """Keep this answer. One statement."""
    tx.execute(
        "INSERT INTO @answer (key, status, body, headers, expires_at) VALUES (%s, %s, %s, %s, %s) "
        "ON CONFLICT (key) DO UPDATE SET status = excluded.status, body = excluded.body, headers = excluded.headers, "
        "expires_at = excluded.expires_at",
        (key, answer.status, answer.body, json.dumps(dict(answer.headers)), expires_at),
    )


def answer(tx: Tx, key: str, *, now: UnixMs) -> Answer | None:
    """What is kept."""
    row = tx.execute(
        "SELECT status, body, headers FROM @answer WHERE key = %s AND expires_at > %s", (key, now)
    ).fetchone()
    return None if row is None else Answer(status=row[0], body=bytes(row[1]), headers=json.loads(row[2]))


def prune(tx: Tx, *, now: UnixMs, before: UnixMs, limit: int) -> int:
    """Delete what is over, and what is old."""
    over = tx.execute(
        "DELETE FROM @answer WHERE key IN (SELECT key FROM @answer WHERE expires_at <= %s LIMIT %s)", (now, limit)
    ).rowcount
    # The oldest by the key: its first digits are the time.
    old = tx.execute(
        "DELETE FROM @write WHERE id IN (SELECT id FROM @write WHERE id < %s ORDER BY id LIMIT %s)",
        (f"rq_{before:012x}", limit),
    ).rowcount
    return int(over) + int(old)
