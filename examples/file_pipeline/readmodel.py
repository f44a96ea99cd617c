"""What is kept about files: a projection (how each file stands now), an audit log (all that happened), notifications.

Effects and the end of each message are one commit of the same SQLite file, so each event counts once.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from redrive import Delivery

from .steps import FileEvent

FILES: Final = """
CREATE TABLE IF NOT EXISTS files (
    file_id TEXT PRIMARY KEY, name TEXT, kind TEXT, size_bytes INTEGER,
    state TEXT, thumbnail TEXT, text TEXT, reason TEXT
)"""
AUDIT: Final = """
CREATE TABLE IF NOT EXISTS audit (
    number INTEGER PRIMARY KEY, event_id TEXT UNIQUE, what TEXT, correlation_id TEXT, event TEXT
)"""
NOTIFICATIONS: Final = "CREATE TABLE IF NOT EXISTS notifications (event_id TEXT PRIMARY KEY, text TEXT NOT NULL)"

_COLUMN: Final = {"thumbnail": "thumbnail", "text": "text"}
_RANK: Final = {"uploaded": 0, "validated": 1, "rejected": 1}


def project(event: FileEvent, delivery: Delivery) -> None:
    """The row of the file. Events may overtake each other: a state never goes back."""
    about, what, how = (*delivery.routing_key.split("."), "", "")[:3]
    with delivery.transaction() as tx:
        create_tables(tx)
        row = (event.file_id, event.name, event.kind, event.size_bytes, "uploaded")
        tx.execute(
            "INSERT INTO files (file_id, name, kind, size_bytes, state) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            row,
        )
        if about == "processing" and what in _COLUMN:
            tx.execute(f"UPDATE files SET {_COLUMN[what]} = ? WHERE file_id = ?", (how, event.file_id))
        elif about == "files" and _RANK.get(what):
            tx.execute(
                "UPDATE files SET state = ?, reason = ? WHERE file_id = ?", (what, event.reason or None, event.file_id)
            )


def notify(event: FileEvent, delivery: Delivery) -> None:
    """Tell the person: what became of the file."""
    text = f"{event.name}: {delivery.routing_key}" + (f" ({event.reason})" if event.reason else "")
    with delivery.transaction() as tx:
        create_tables(tx)
        tx.execute("INSERT OR IGNORE INTO notifications VALUES (?, ?)", (delivery.message.id, text))


def audit(event: FileEvent, delivery: Delivery) -> None:
    """Everything that happened, in the order it got here."""
    message = delivery.message
    row = (message.id, delivery.routing_key, message.properties.correlation_id, msgspec.json.encode(event).decode())
    with delivery.transaction() as tx:
        create_tables(tx)
        tx.execute("INSERT OR IGNORE INTO audit (event_id, what, correlation_id, event) VALUES (?, ?, ?, ?)", row)


def create_tables(tx: Any) -> None:
    """Within a transaction; nothing where they are there."""
    for statement in (FILES, AUDIT, NOTIFICATIONS):
        tx.execute(statement)
