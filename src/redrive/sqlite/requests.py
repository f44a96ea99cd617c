"""Writes and answers in two tables. Every function runs inside the caller's transaction."""

from __future__ import annotations

import sqlite3

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
from redrive.sqlite.values import text_in, text_out
from redrive.sqlite.writer import Tx


def put(tx: Tx, write: Write) -> None:
    """Keep this write, in place of what was known of it."""
    tx.execute(
        f"INSERT OR REPLACE INTO redrive_write ({WRITE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - constant
        write_row(write, text_in=text_in),
    )


def find(connection: sqlite3.Connection, query: WriteQuery, *, limit: int, cursor: str | None) -> WritePage:
    """One page, newest first; by the key, so that a page reads no more than it shows where nothing is left out."""
    given = conditions(query, cursor, text_in=text_in)
    where = " AND ".join(f"{test} ?" for test in given) or "1"
    rows = connection.execute(
        f"SELECT {WRITE_COLUMNS} FROM redrive_write WHERE {where} ORDER BY id DESC LIMIT ?",  # noqa: S608 - constants
        [*given.values(), limit + 1],
    )
    return page_of([write_from(row, text_out=text_out) for row in rows], limit)


def keep(tx: Tx, key: str, answer: Answer, *, expires_at: UnixMs) -> None:
    """Keep this answer."""
    tx.execute(
        f"INSERT OR REPLACE INTO redrive_answer ({ANSWER_COLUMNS}) VALUES (?, ?, ?, ?, ?)",  # noqa: S608 - constant
        answer_row(key, answer, expires_at=expires_at),
    )


def answer(connection: sqlite3.Connection, key: str, *, now: UnixMs) -> Answer | None:
    """What is kept."""
    row = connection.execute(
        "SELECT status, body, headers FROM redrive_answer WHERE key = ? AND expires_at > ?", (key, now)
    ).fetchone()
    return None if row is None else answer_from(row)


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
