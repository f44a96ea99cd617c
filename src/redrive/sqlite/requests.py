"""Writes and answers in two tables. Every function runs inside the caller's transaction."""

from __future__ import annotations

import json
import sqlite3
from typing import Any, Final

from redrive.core.audit import Answer, Write, WritePage, WriteQuery, after_cursor, page_of
from redrive.core.units import UnixMs
from redrive.sqlite.values import text_in, text_out
from redrive.sqlite.writer import Tx

COLUMNS: Final = "id, at, actor, role, operation, target, address, status, result"


def put(tx: Tx, write: Write) -> None:
    """Keep this write, in place of what was known of it."""
    names = (write.actor, write.role, write.operation, write.target, write.address)
    tx.execute(
        f"INSERT OR REPLACE INTO redrive_write ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - constant
        (write.id, write.at, *map(text_in, names), write.status, text_in(write.result)),
    )


def find(connection: sqlite3.Connection, query: WriteQuery, *, limit: int, cursor: str | None) -> WritePage:
    """One page, newest first; by the key, so that a page reads no more than it shows where nothing is left out."""
    wanted: list[tuple[str, Any]] = [
        ("id < ?", after_cursor(cursor)),
        ("actor = ?", text_in(query.actor)),
        ("operation = ?", text_in(query.operation)),
        ("target = ?", text_in(query.target)),
        ("at >= ?", query.since),
        ("at < ?", query.until),
    ]
    given = [(text, value) for text, value in wanted if value is not None]
    where = " AND ".join(text for text, _ in given) or "1"
    rows = connection.execute(
        f"SELECT {COLUMNS} FROM redrive_write WHERE {where} ORDER BY id DESC LIMIT ?",  # noqa: S608 - constants
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
    """Keep this answer."""
    tx.execute(
        "INSERT OR REPLACE INTO redrive_answer (key, status, body, headers, expires_at) VALUES (?, ?, ?, ?, ?)",
        (key, answer.status, answer.body, json.dumps(dict(answer.headers)), expires_at),
    )


def answer(connection: sqlite3.Connection, key: str, *, now: UnixMs) -> Answer | None:
    """What is kept."""
    row = connection.execute(
        "SELECT status, body, headers FROM redrive_answer WHERE key = ? AND expires_at > ?", (key, now)
    ).fetchone()
    return None if row is None else Answer(status=row[0], body=bytes(row[1]), headers=json.loads(row[2]))


def prune(tx: Tx, *, now: UnixMs, before: UnixMs, limit: int) -> int:
    """Delete what is over, and what is old."""
    over = tx.execute(
        "DELETE FROM redrive_answer WHERE key IN (SELECT key FROM redrive_answer WHERE expires_at <= ? LIMIT ?)",
        (now, limit),
    ).rowcount
    # The oldest by the key: its first digits are the time.
    old = tx.execute(
        "DELETE FROM redrive_write WHERE id IN (SELECT id FROM redrive_write WHERE id < ? ORDER BY id LIMIT ?)",
        (f"rq_{before:012x}", limit),
    ).rowcount
    return int(over) + int(old)
