"""The outbox: what is to be sent, written by the business in its own database, and what became of it.

    PENDING ─relay→ ENQUEUED ─sent→ SENT

A row is enqueued under its own id, so enqueueing it twice adds nothing, and a mail that is marked SENT is not sent
again whatever comes out of the queue. Beside it stand the addresses that take no more mail.

    python -m examples.email_gateway.outbox add acme anna@example.org --subject Hello --text "Good morning"
    python -m examples.email_gateway.outbox list
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from redrive.core.units import rfc3339

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS outbox (
    id TEXT PRIMARY KEY,
    company_id TEXT NOT NULL,
    sender TEXT NOT NULL,
    recipients TEXT NOT NULL,
    subject TEXT NOT NULL,
    text TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'ENQUEUED', 'SENT')),
    created_at TEXT NOT NULL,
    sent_at TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS outbox_pending ON outbox (created_at) WHERE status = 'PENDING';
CREATE TABLE IF NOT EXISTS suppressed (address TEXT PRIMARY KEY, reason TEXT NOT NULL, at TEXT NOT NULL) STRICT;
"""
DEFAULT_FILE: Final = "outbox.db"
FIELDS: Final = ("id", "company_id", "sender", "recipients", "subject", "text", "status", "created_at", "sent_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One mail to be sent."""

    id: str
    company_id: str
    sender: str
    recipients: tuple[str, ...]
    subject: str
    text: str
    status: str = "PENDING"
    created_at: str = ""
    sent_at: str | None = None

    def job(self, *, enqueued_at: str) -> dict[str, Any]:
        """The row as the queue's message."""
        return {
            "outboxId": self.id,
            "companyId": self.company_id,
            "from": self.sender,
            "to": list(self.recipients),
            "subject": self.subject,
            "text": self.text,
            "enqueuedAt": enqueued_at,
        }


class Outbox:
    """The table in its own SQLite file, opened when it is first used. Every method is one short transaction and may be
    called from any thread.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._opened: sqlite3.Connection | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Outbox:
        """The file that `OUTBOX_FILE` names."""
        return cls(Path(environment.get("OUTBOX_FILE", "").strip() or DEFAULT_FILE))

    def close(self) -> None:
        """Give the file back; the next use opens it again."""
        with self._lock:
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.close()

    @property
    def _file(self) -> sqlite3.Connection:
        """The connection; only under the lock."""
        if self._opened is None:
            self._opened = sqlite3.connect(self._path, check_same_thread=False, timeout=30, isolation_level=None)
            self._opened.execute("PRAGMA journal_mode = WAL")
            self._opened.executescript(SCHEMA)
        return self._opened

    def add(self, company_id: str, recipients: Sequence[str], **mail: str) -> str:
        """A mail to be sent; its id. `mail`: subject, text, sender, id."""
        row_id = mail.get("id") or uuid.uuid4().hex
        values = (
            row_id,
            company_id,
            mail.get("sender") or f"no-reply@{company_id}.example",
            json.dumps(list(recipients)),
            mail.get("subject", ""),
            mail.get("text", ""),
            _now(),
        )
        names = "id, company_id, sender, recipients, subject, text, created_at"
        self._write(f"INSERT INTO outbox ({names}) VALUES (?, ?, ?, ?, ?, ?, ?)", [values])
        return row_id

    def pending(self, limit: int) -> list[Row]:
        """What waits to be enqueued, oldest first."""
        return self._rows("status = 'PENDING' ORDER BY created_at, id LIMIT ?", (limit,))

    def rows(self, limit: int = 1_000) -> list[Row]:
        """All, newest last."""
        return self._rows("1 ORDER BY created_at, id LIMIT ?", (limit,))

    def get(self, row_id: str) -> Row | None:
        """One of them."""
        found = self._rows("id = ?", (row_id,))
        return found[0] if found else None

    def mark_enqueued(self, ids: Iterable[str]) -> None:
        """They are in the queue, durably. What was sent meanwhile stays SENT."""
        self._write("UPDATE outbox SET status = 'ENQUEUED' WHERE id = ? AND status = 'PENDING'", [(i,) for i in ids])

    def mark_sent(self, row_id: str) -> None:
        """The mail server has taken it."""
        self._write("UPDATE outbox SET status = 'SENT', sent_at = ? WHERE id = ?", [(_now(), row_id)])

    def suppress(self, address: str, reason: str) -> None:
        """Never write to this address again."""
        self._write("INSERT OR IGNORE INTO suppressed VALUES (?, ?, ?)", [(address.lower(), reason, _now())])

    def suppressed(self, addresses: Iterable[str]) -> dict[str, str]:
        """Those of these addresses that take no more mail, and why."""
        wanted = {address.lower(): address for address in addresses}
        marks = ", ".join("?" for _ in wanted)
        with self._lock:
            found = self._file.execute(f"SELECT address, reason FROM suppressed WHERE address IN ({marks})", [*wanted])
            return {wanted[address]: reason for address, reason in found}

    def _rows(self, condition: str, values: Sequence[Any]) -> list[Row]:
        with self._lock:
            found = self._file.execute(f"SELECT {', '.join(FIELDS)} FROM outbox WHERE {condition}", values).fetchall()
        named = [dict(zip(FIELDS, row, strict=True)) for row in found]
        return [Row(**{**each, "recipients": tuple(json.loads(each["recipients"]))}) for each in named]

    def _write(self, statement: str, values: Sequence[Sequence[Any]]) -> None:
        with self._lock:
            self._file.execute("BEGIN IMMEDIATE")
            try:
                self._file.executemany(statement, values)
            except BaseException:
                self._file.execute("ROLLBACK")
                raise
            self._file.execute("COMMIT")


def _now() -> str:
    return rfc3339(time.time_ns() // 1_000_000)


def main(arguments: Sequence[str]) -> int:
    """`add` and `list`, for trying it by hand."""
    parser = argparse.ArgumentParser(prog="python -m examples.email_gateway.outbox")
    verbs = parser.add_subparsers(dest="verb", required=True)
    add = verbs.add_parser("add", help="a mail to be sent")
    add.add_argument("company")
    add.add_argument("to", nargs="+")
    add.add_argument("--subject", default="Hello")
    add.add_argument("--text", default="Good morning")
    add.add_argument("--id", default="")
    verbs.add_parser("list", help="what became of them")
    asked = parser.parse_args(arguments)
    outbox = Outbox.from_environment(os.environ)
    if asked.verb == "add":
        print(outbox.add(asked.company, asked.to, subject=asked.subject, text=asked.text, id=asked.id))
    else:
        for row in outbox.rows():
            print(row.id, row.status, row.company_id, *row.recipients)
    outbox.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
