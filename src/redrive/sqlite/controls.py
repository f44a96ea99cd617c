"""Controls of queues in one table. Every function runs inside the caller's transaction."""

from __future__ import annotations

import sqlite3

from redrive.core.policy.control import Control, control_from_json, control_json
from redrive.sqlite.values import text_in
from redrive.sqlite.writer import Tx


def put(tx: Tx, control: Control) -> None:
    """Keep this control; one that changes nothing goes."""
    if control.is_empty:
        tx.execute("DELETE FROM redrive_control WHERE queue = ?", (text_in(control.queue),))
        return
    tx.execute(
        "INSERT OR REPLACE INTO redrive_control (queue, document) VALUES (?, ?)",
        (text_in(control.queue), control_json(control)),
    )


def find_all(connection: sqlite3.Connection) -> list[Control]:
    """All of them, by queue."""
    rows = connection.execute("SELECT document FROM redrive_control ORDER BY queue")
    return [control_from_json(document) for (document,) in rows]
