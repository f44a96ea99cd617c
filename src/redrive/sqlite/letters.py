"""Letters in the tables of one file: store, read one, review, prune. Lists and counts are in search.py.

Every function runs inside the caller's transaction. A list never touches redrive_letter_content, where the bodies are.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.review import CLOSED_BY, CLOSED_NOTE, moves
from redrive.core.letters.rows import CONTENT_COLUMNS, REVIEW_NUMBER, REVIEW_STATES, SUMMARY_COLUMNS
from redrive.core.letters.selection import Selection
from redrive.core.ports import AuditEntry, LetterSummary, ReviewChange
from redrive.core.text import clean
from redrive.core.units import UnixMs
from redrive.sqlite import groups
from redrive.sqlite.rows import content_row, letter_from, summary_from, summary_row
from redrive.sqlite.search import ORDER, where
from redrive.sqlite.values import insert_rows, numbers, text_in, text_out
from redrive.sqlite.writer import Tx

_INSERT_SUMMARY: Final = f"INSERT INTO redrive_letter ({SUMMARY_COLUMNS})"
_INSERT_CONTENT: Final = f"INSERT INTO redrive_letter_content (seq, {CONTENT_COLUMNS})"


def put(tx: Tx, batch: Sequence[Letter]) -> None:
    """Store letters; one whose id is there already stays as it is."""
    seen: set[str] = set()
    fresh = []
    for letter in batch:
        if letter.id not in seen and find_seq(tx.connection, letter.id) is None:
            fresh.append(letter)
        seen.add(letter.id)
    _insert(tx, fresh, [letter.id for letter in fresh])


def put_dead(tx: Tx, batch: Sequence[tuple[Letter, int]]) -> None:
    """Store the letters of messages that leave the queue in this transaction, each with its message's seq.

    Message and letter move together here, so an id that is there already is never a repetition of this death: it is
    another message that died under the same key (idempotency off, or its record expired). It gets an id of its own,
    with the message's seq at the end, instead of vanishing.
    """
    ids: list[str] = []
    for letter, seq in batch:
        is_taken = letter.id in ids or find_seq(tx.connection, letter.id) is not None
        ids.append(f"{letter.id}-{seq}" if is_taken else letter.id)
    _insert(tx, [letter for letter, _ in batch], ids)


def _insert(tx: Tx, letters: Sequence[Letter], ids: Sequence[str]) -> None:
    if not letters:
        return
    rows = [summary_row(letter, letter_id=letter_id) for letter, letter_id in zip(letters, ids, strict=True)]
    first = insert_rows(tx.connection, _INSERT_SUMMARY, rows) - len(letters) + 1
    insert_rows(tx.connection, _INSERT_CONTENT, [content_row(seq, letter) for seq, letter in enumerate(letters, first)])
    groups.reopen(tx, letters)


def find_seq(connection: sqlite3.Connection, letter_id: str) -> int | None:
    """The row of this letter."""
    row = connection.execute("SELECT seq FROM redrive_letter WHERE id = ?", (text_in(letter_id),)).fetchone()
    return None if row is None else row[0]


def get(connection: sqlite3.Connection, letter_id: str) -> tuple[Letter, tuple[AuditEntry, ...]] | None:
    """The whole letter and what was done to it, oldest first."""
    row = connection.execute(
        f"SELECT l.seq, {SUMMARY_COLUMNS}, {CONTENT_COLUMNS} FROM redrive_letter l "  # noqa: S608 - constants
        "JOIN redrive_letter_content c ON c.seq = l.seq WHERE l.id = ?",
        (text_in(letter_id),),
    ).fetchone()
    if row is None:
        return None
    trail = connection.execute(
        "SELECT at, actor, action, note FROM redrive_audit WHERE letter_seq = ? ORDER BY id", (row[0],)
    )
    entries = tuple(
        AuditEntry(letter_id=letter_id, at=at, actor=text_out(actor), action=action, note=text_out(note))
        for at, actor, action, note in trail
    )
    return letter_from(row[1:]), entries


def summary(connection: sqlite3.Connection, letter_id: str) -> tuple[int, LetterSummary] | None:
    """The row and the summary of this letter."""
    row = connection.execute(
        f"SELECT seq, {SUMMARY_COLUMNS} FROM redrive_letter WHERE id = ?",  # noqa: S608 - constants
        (text_in(letter_id),),
    ).fetchone()
    return None if row is None else (row[0], summary_from(row[1:]))


def earlier(connection: sqlite3.Connection, letter_ids: Sequence[str], *, job_id: str | None) -> dict[str, str]:
    """See `LetterStore.earlier`. Of letters that are alone with their key nothing more is asked, and of the others once
    for each key, however many letters have it.
    """
    asked = []
    for start in range(0, len(letter_ids), IDS_AT_ONCE):
        some = [text_in(each) for each in letter_ids[start : start + IDS_AT_ONCE]]
        asked += connection.execute(f"{_NOT_ALONE} AND id IN ({','.join('?' * len(some))})", some).fetchall()
    first = {
        scope: connection.execute(_FIRST_OPEN, (*scope, text_in(job_id or ""))).fetchone()
        for scope in {(row[0], row[1]) for row in asked}
    }
    pairs = ((row, first[row[0], row[1]]) for row in asked)
    return {text_out(row[4]): text_out(one[2]) for row, one in pairs if one is not None and one[:2] < row[2:4]}


IDS_AT_ONCE: Final = 500
_NOT_ALONE: Final = (
    "SELECT queue, key, dead_lettered_at, seq, id FROM redrive_letter l WHERE key IS NOT NULL "
    "AND EXISTS (SELECT 1 FROM redrive_letter o WHERE o.key = l.key AND o.seq <> l.seq)"
)
_FIRST_OPEN: Final = (
    "SELECT dead_lettered_at, seq, id FROM redrive_letter WHERE +queue = ? AND key = ? AND +state <= 1 "
    "AND +outstanding_job IS NOT ? ORDER BY dead_lettered_at, seq LIMIT 1"
)


def review(tx: Tx, batch: Sequence[ReviewChange]) -> list[str | None]:
    """Move letters as the review table allows, each step audited; else why not."""
    return [_review_one(tx, change) for change in batch]


def _review_one(tx: Tx, change: ReviewChange) -> str | None:
    row = tx.execute("SELECT seq, state FROM redrive_letter WHERE id = ?", (text_in(change.letter_id),)).fetchone()
    if row is None:
        return f'no dead letter has the id "{change.letter_id}"'
    steps = moves(REVIEW_STATES[row[1]], change.to)
    if isinstance(steps, str):
        return steps
    walk(tx, row[0], steps, change=change)
    return None


def walk(tx: Tx, seq: int, steps: Sequence[ReviewState], *, change: ReviewChange) -> None:
    """Record these steps for one letter; it ends in the last of them."""
    tx.execute("UPDATE redrive_letter SET state = ? WHERE seq = ?", (REVIEW_NUMBER[steps[-1]], seq))
    trail = [(seq, change.at, clean(change.actor), str(step), clean(change.note)) for step in steps]
    insert_rows(tx.connection, "INSERT INTO redrive_audit (letter_seq, at, actor, action, note)", trail)


def close_redriven(tx: Tx, letter_ids: Sequence[str]) -> None:
    """Close letters whose redriven copies were processed; one that is closed already stays so."""
    changes = [
        ReviewChange(letter_id=letter_id, to=ReviewState.CLOSED, actor=CLOSED_BY, at=tx.now, note=CLOSED_NOTE)
        for letter_id in letter_ids
    ]
    review(tx, changes)


def prune(tx: Tx, *, now: UnixMs, limit: int, selection: Selection | None = None) -> int:
    """Delete at most `limit` expired letters that are replayed or closed, or the selected ones that no job holds, with
    their audit trail, oldest first.
    """
    if selection is None:
        condition, values, order = "state >= 2 AND expires_at IS NOT NULL AND expires_at <= ?", [now], "expires_at"
    else:
        condition, values = where(tx.connection, selection)
        condition, order = f"({condition}) AND +outstanding_job IS NULL", ORDER
    rows = tx.execute(
        f"SELECT seq FROM redrive_letter WHERE {condition} ORDER BY {order} LIMIT ?",  # noqa: S608 - constants
        (*values, limit),
    ).fetchall()
    seqs = numbers([row[0] for row in rows])
    for table, column in (("letter", "seq"), ("letter_content", "seq"), ("audit", "letter_seq")):
        tx.execute(f"DELETE FROM redrive_{table} WHERE {column} IN (SELECT value FROM json_each(?))", (seqs,))  # noqa: S608
    tx.is_pruned = True
    return len(rows)
