"""Writes and answers in two tables."""

from __future__ import annotations

from redrive.core.audit import Answer, Write, WritePage, WriteQuery, page_of
from redrive.core.audit_rows import (
    ANSWER_COLUMNS,
    WRITE_COLUMNS,
    answer_from,
    answer_row,
    conditions,
    write_from,
    write_row,
)
from redrive.core.units import UnixMs
from redrive.postgres.database import Tx
from redrive.postgres.values import text_in, text_out


def put(tx: Tx, write: Write) -> None:
    """Keep this write, in place of what was known of it. One statement."""
    tx.execute(
        f"INSERT INTO @write ({WRITE_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) "  # noqa: S608 - constant
        "ON CONFLICT (id) DO UPDATE SET status = excluded.status, result = excluded.result",
        write_row(write, text_in=text_in),
    )


def find(tx: Tx, query: WriteQuery, *, limit: int, cursor: str | None) -> WritePage:
    """One page, newest first, by the key."""
    given = conditions(query, cursor, text_in=text_in)
    where = " AND ".join(f"{test} %s" for test in given) or "true"
    rows = tx.execute(
        f"SELECT {WRITE_COLUMNS} FROM @write WHERE {where} ORDER BY id DESC LIMIT %s",  # noqa: S608 - constants
        [*given.values(), limit + 1],
    )
    return page_of([write_from(row, text_out=text_out) for row in rows], limit)


def keep(tx: Tx, key: str, answer: Answer, *, expires_at: UnixMs) -> None:
    """Keep this answer. One statement."""
    tx.execute(
        f"INSERT INTO @answer ({ANSWER_COLUMNS}) VALUES (%s, %s, %s, %s, %s) "  # noqa: S608 - constant
        "ON CONFLICT (key) DO UPDATE SET status = excluded.status, body = excluded.body, headers = excluded.headers, "
        "expires_at = excluded.expires_at",
        answer_row(key, answer, expires_at=expires_at),
    )


def answer(tx: Tx, key: str, *, now: UnixMs) -> Answer | None:
    """What is kept."""
    row = tx.execute(
        "SELECT status, body, headers FROM @answer WHERE key = %s AND expires_at > %s", (key, now)
    ).fetchone()
    return None if row is None else answer_from(row)


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
