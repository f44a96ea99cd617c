"""Controls of queues in one table."""

from __future__ import annotations

from redrive.core.policy.control import Control, control_from_json, control_json
from redrive.postgres.database import Tx
from redrive.postgres.values import text_in, text_out


def put(tx: Tx, control: Control) -> None:
    """Keep this control; one that changes nothing goes. One statement."""
    if control.is_empty:
        tx.execute("DELETE FROM @control WHERE queue = %s", (text_in(control.queue),))
        return
    tx.execute(
        "INSERT INTO @control (queue, document) VALUES (%s, %s) "
        "ON CONFLICT (queue) DO UPDATE SET document = excluded.document",
        (text_in(control.queue), text_in(control_json(control))),
    )


def find_all(tx: Tx) -> list[Control]:
    """All of them, by queue."""
    rows = tx.execute('SELECT document FROM @control ORDER BY queue COLLATE "C"')
    return [control_from_json(text_out(document)) for (document,) in rows]
