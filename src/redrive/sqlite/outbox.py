"""The outbox: messages published inside a handler's transaction whose broker is another one, until it has them.

    kept (with the transaction's commit) ──broker confirms──> deleted
      └── `held_until` over: any process may send it, holding it anew while it does

A row is deleted only after the confirm; killed in between, the message is sent once more under the same id.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Final

from redrive.core.ports import ClaimEnd, Outgoing, Unsent
from redrive.core.units import Millis
from redrive.core.wire import message_document, message_from_document
from redrive.sqlite import claims
from redrive.sqlite.file import SqliteFile
from redrive.sqlite.transaction import SqliteTransaction
from redrive.sqlite.values import numbers, text_in, text_out
from redrive.sqlite.writer import Tx

HOLD_MS: Final[Millis] = 15_000
"""How long the process that committed has to send before others do."""


class ClaimTransaction(SqliteTransaction):
    """Ends a claim with the handler's own statements; what is published inside goes to the outbox."""

    def __init__(self, file: SqliteFile, end: ClaimEnd) -> None:
        super().__init__(
            file,
            f'Key "{end.ref.key}" of queue "{end.ref.queue}"',
            settle=lambda tx: claims.finish(tx, [end])[0],
            publish=self._put,
        )
        self._unsent: list[Unsent] = []

    @property
    def unsent(self) -> Sequence[Unsent]:
        """What was published inside, once it has committed."""
        return self._unsent if self.is_committed else ()

    def _put(self, tx: Tx, outgoing: Outgoing) -> None:
        self._unsent.append(Unsent(ref=put(tx, outgoing), outgoing=outgoing))


def put(tx: Tx, outgoing: Outgoing) -> int:
    """Keep one message; its row."""
    row = (
        text_in(outgoing.queue),
        text_in(outgoing.exchange),
        outgoing.due_at,
        json.dumps(message_document(outgoing.message)),
        tx.now + HOLD_MS,
    )
    statement = "INSERT INTO redrive_outbox (queue, exchange, due_at, message, held_until) VALUES (?, ?, ?, ?, ?)"
    seq = tx.execute(statement, row).lastrowid
    assert seq is not None
    return seq


def is_left(connection: sqlite3.Connection) -> bool:
    """Whether anything is kept at all."""
    return connection.execute("SELECT 1 FROM redrive_outbox LIMIT 1").fetchone() is not None


def take_left(tx: Tx, *, limit: int) -> list[Unsent]:
    """What nobody holds any more, oldest first; held from now on by who asked."""
    rows = tx.execute(
        "SELECT seq, queue, exchange, due_at, message FROM redrive_outbox WHERE held_until <= ? ORDER BY seq LIMIT ?",
        (tx.now, limit),
    ).fetchall()
    if rows:
        statement = "UPDATE redrive_outbox SET held_until = ? WHERE seq IN (SELECT value FROM json_each(?))"
        tx.execute(statement, (tx.now + HOLD_MS, numbers([row[0] for row in rows])))
    return [
        Unsent(
            ref=seq,
            outgoing=Outgoing(
                queue=text_out(queue),
                exchange=text_out(exchange),
                due_at=due_at,
                message=message_from_document(json.loads(message)),
            ),
        )
        for seq, queue, exchange, due_at, message in rows
    ]


def forget(tx: Tx, seqs: Sequence[int]) -> None:
    """Delete what the broker has."""
    tx.execute("DELETE FROM redrive_outbox WHERE seq IN (SELECT value FROM json_each(?))", (numbers(list(seqs)),))
