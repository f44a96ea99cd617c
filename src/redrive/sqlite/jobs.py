"""Redrive jobs and their items in the tables of one file. Every function runs inside the caller's transaction.

The job row carries the counts of its items, so that a job of a million letters answers as fast as one of ten.
`token` is the fence: whoever acquires a job raises it, and so does ending it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from redrive.core.letters.job_rows import JOB_COLUMNS, job_from, job_row
from redrive.core.letters.letter import ReviewState
from redrive.core.letters.review import moves
from redrive.core.letters.rows import CLOSED
from redrive.core.ports import Forward, Outgoing, ReviewChange
from redrive.core.redrive import (
    JOB_TRANSITIONS,
    Item,
    ItemState,
    Job,
    JobEvent,
    JobOptions,
    JobState,
    Outcomes,
    refusal,
    runner_lost,
    sent_note,
)
from redrive.core.text import clean, clean_or_none
from redrive.core.units import Millis
from redrive.errors import QueueNotFoundError
from redrive.sqlite import claims, letters, queue, search
from redrive.sqlite.values import insert_rows, numbers, text_in, text_out
from redrive.sqlite.writer import Tx

_COLUMNS: Final = f"seq, {JOB_COLUMNS}"
_OPEN: Final = (JobState.STAGED, JobState.RUNNING)


def _job_from(row: Sequence[Any]) -> Job:
    return job_from(row[1:], text_out=text_out)


def create(tx: Tx, job: Job) -> Job:
    """Store it, or return the one with this id or request key."""
    row = tx.execute(
        f"SELECT {_COLUMNS} FROM redrive_job WHERE id = ? OR request_key = ?",  # noqa: S608 - constants
        (text_in(job.id), text_in(job.request_key)),
    ).fetchone()
    if row is not None:
        return _job_from(row)
    last_letter = tx.execute("SELECT COALESCE(max(seq), 0) FROM redrive_letter").fetchone()[0]
    values = (*job_row(job, text_in=text_in), last_letter, -1, -1)
    head = f"INSERT INTO redrive_job ({JOB_COLUMNS}, last_letter, staged_at, staged_seq)"
    insert_rows(tx.connection, head, [values])
    return job


def get(connection: sqlite3.Connection, job_id: str) -> Job | None:
    """The job as stored."""
    found = _find(connection, job_id)
    return None if found is None else found[1]


def _find(connection: sqlite3.Connection, job_id: str) -> tuple[int, Job] | None:
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM redrive_job WHERE id = ?",  # noqa: S608 - constants
        (text_in(job_id),),
    ).fetchone()
    return None if row is None else (row[0], _job_from(row))


def newest(connection: sqlite3.Connection, *, limit: int) -> list[Job]:
    """Jobs, newest first."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM redrive_job ORDER BY created_at DESC, seq DESC LIMIT ?",  # noqa: S608 - constants
        (limit,),
    )
    return [_job_from(row) for row in rows]


def acquire(tx: Tx, job_id: str | None, *, owner: str, lease_ms: Millis) -> Job | None:
    """Take over a job: its token moves on, and its pending items hold their letters (again, after an abort)."""
    found = _next_free(tx) if job_id is None else _find(tx.connection, job_id)
    if found is None:
        return None
    seq, job = found
    is_held = job.state is JobState.RUNNING and job.lease_until is not None and job.lease_until > tx.now
    if is_held or JobEvent.START not in JOB_TRANSITIONS[job.state]:
        return None
    tx.execute(
        "UPDATE redrive_job SET state = 'running', error = NULL, token = token + 1, owner = ?, lease_until = ?, "
        "updated_at = ? WHERE seq = ?",
        (clean(owner), tx.now + lease_ms, tx.now, seq),
    )
    if job.state not in _OPEN:
        tx.execute(
            "UPDATE redrive_letter SET outstanding_job = ? WHERE outstanding_job IS NULL AND id IN "
            "(SELECT letter_id FROM redrive_item WHERE job_seq = ? AND state = 'pending')",
            (text_in(job.id), seq),
        )
    return get(tx.connection, job.id)


def _next_free(tx: Tx) -> tuple[int, Job] | None:
    row = tx.execute(
        f"SELECT {_COLUMNS} FROM redrive_job WHERE state = 'staged' OR (state = 'running' AND "  # noqa: S608 - constants
        "(lease_until IS NULL OR lease_until <= ?)) ORDER BY created_at, seq LIMIT 1",
        (tx.now,),
    ).fetchone()
    return None if row is None else (row[0], _job_from(row))


def _current(tx: Tx, job: Job) -> tuple[int, Job] | None:
    found = _find(tx.connection, job.id)
    return found if found is not None and found[1].token == job.token else None


def stage(tx: Tx, job: Job, *, limit: int) -> Job:
    """Copy the next letters into items. Raises `LeaseLostError`, staging nothing, where `job.token` is stale."""
    found = _current(tx, job)
    if found is None:
        raise runner_lost(job, "Nothing was staged.")
    seq, stored = found
    last_letter, *after = tx.execute(
        "SELECT last_letter, staged_at, staged_seq FROM redrive_job WHERE seq = ?", (seq,)
    ).fetchone()
    left = None if stored.options.limit is None else stored.options.limit - stored.counts.selected
    room = limit if left is None else max(0, min(limit, left))
    selected = list(
        search.walk(tx.connection, stored.selection, after=(after[0], after[1]), up_to=last_letter, limit=room + 1)
    )
    items = []
    held = []
    for position, ((_, letter_seq), letter) in enumerate(selected[:room], stored.counts.selected):
        why = refusal(letter, stored.options, job_id=stored.id, at=stored.created_at)
        items.append((seq, position, text_in(letter.id), "pending" if why is None else "skipped", why))
        if why is None:
            held.append(letter_seq)
    insert_rows(tx.connection, "INSERT INTO redrive_item (job_seq, position, letter_id, state, why)", items)
    tx.execute(
        "UPDATE redrive_letter SET outstanding_job = ? WHERE seq IN (SELECT value FROM json_each(?))",
        (text_in(stored.id), numbers(held)),
    )
    place = selected[min(room, len(selected)) - 1][0] if items else tuple(after)
    skipped = len(items) - len(held)
    tx.execute(
        "UPDATE redrive_job SET pending = pending + ?, skipped = skipped + ?, is_staged = ?, staged_at = ?, "
        "staged_seq = ?, updated_at = ? WHERE seq = ?",
        (len(held), skipped, len(selected) <= room or room == left, *place, tx.now, seq),
    )
    staged = get(tx.connection, job.id)
    assert staged is not None
    return staged


def items(connection: sqlite3.Connection, job_id: str, *, state: str | None, limit: int, after: int) -> list[Item]:
    """Items by position, above `after`."""
    rows = connection.execute(
        "SELECT i.position, i.letter_id, i.state, i.why FROM redrive_job j "  # noqa: S608 - constants
        "JOIN redrive_item i ON i.job_seq = j.seq "
        f"WHERE j.id = ? AND i.position > ? {'' if state is None else 'AND i.state = ?'} ORDER BY i.position LIMIT ?",
        [text_in(job_id), after, *([] if state is None else [str(state)]), limit],
    )
    return [
        Item(job_id=job_id, position=position, letter_id=text_out(letter_id), state=ItemState(item_state), why=why)
        for position, letter_id, item_state, why in rows
    ]


def record(tx: Tx, job: Job, batch: Sequence[Item]) -> bool:
    """Write pending items as sent or skipped; their letters are free again."""
    found = _current(tx, job)
    if found is None:
        return False
    for item in batch:
        _end_item(tx, found[0], item, state=item.state, why=item.why)
    return True


def _end_item(tx: Tx, job_seq: int, item: Item, *, state: ItemState, why: str | None) -> None:
    if state is ItemState.PENDING:
        return
    moved = tx.execute(
        "UPDATE redrive_item SET state = ?, why = ? WHERE job_seq = ? AND position = ? AND state = 'pending'",
        (str(state), why, job_seq, item.position),
    ).rowcount
    if moved:
        column = "sent" if state is ItemState.SENT else "skipped"
        tx.execute(
            f"UPDATE redrive_job SET pending = pending - 1, {column} = {column} + 1, updated_at = ? WHERE seq = ?",  # noqa: S608
            (tx.now, job_seq),
        )
        tx.execute(
            "UPDATE redrive_letter SET outstanding_job = NULL WHERE id = ? AND outstanding_job = ?",
            (text_in(item.letter_id), text_in(item.job_id)),
        )


def save(tx: Tx, job: Job, *, lease_ms: Millis) -> bool:
    """Write state, error and a renewed lease. A job that ended frees its letters and shuts its runner out."""
    found = _current(tx, job)
    if found is None:
        return False
    is_over = job.state not in _OPEN
    tx.execute(
        "UPDATE redrive_job SET state = ?, error = ?, token = token + ?, owner = CASE WHEN ? THEN NULL ELSE owner END, "
        "lease_until = ?, progress = ?, updated_at = ? WHERE seq = ?",
        (str(job.state), clean_or_none(job.error), is_over, is_over, None if is_over else tx.now + lease_ms,
         clean_or_none(job.progress), tx.now, found[0]),
    )  # fmt: skip
    if is_over and job.state is not JobState.PAUSED:
        tx.execute("UPDATE redrive_letter SET outstanding_job = NULL WHERE outstanding_job = ?", (text_in(job.id),))
    return True


def outcomes(connection: sqlite3.Connection, job_id: str, *, positions: Sequence[int] | None) -> Outcomes:
    """What became of sent letters."""
    among = "" if positions is None else "AND i.position IN (SELECT value FROM json_each(?))"
    again = (
        "EXISTS (SELECT 1 FROM redrive_letter n WHERE n.previous = i.letter_id AND n.dead_lettered_at >= j.created_at)"
    )
    row = connection.execute(
        f"SELECT count(*), total(l.state = ? AND NOT {again}), total({again}) "  # noqa: S608 - constants
        "FROM redrive_job j JOIN redrive_item i ON i.job_seq = j.seq AND i.state = 'sent' "
        f"LEFT JOIN redrive_letter l ON l.id = i.letter_id WHERE j.id = ? {among}",
        [CLOSED, text_in(job_id), *([] if positions is None else [numbers(positions)])],
    ).fetchone()
    return Outcomes(sent=row[0], succeeded=int(row[1]), failed_again=int(row[2]))


# ---------------------------------------------------------------------------------------------------- forward


def forward(tx: Tx, job: Job, batch: Sequence[Forward]) -> list[str | None]:
    """Send redrive items: message, letter, claim and item move together. Raises as `Ledger.forward`, nothing done."""
    found = _current(tx, job)
    if found is None:
        raise runner_lost(job, "Nothing of this batch was sent.")
    for name in {each.outgoing.queue for each in batch}:
        if not queue.queue_exists(tx.connection, name):
            raise QueueNotFoundError(
                f'Queue "{name}" is not in the file. Nothing of this batch was sent; the letters stay where they are.',
                hint="Start its consumer (or publish to it) once, then resume the job; or redrive to another queue.",
            )
    answers: list[str | None] = []
    sending: list[Outgoing] = []
    for each in batch:
        is_new, why = _forward_one(tx, found[0], each, options=found[1].options)
        answers.append(why)
        if is_new:
            sending.append(each.outgoing)
    if sending:
        queue.publish(tx, sending)
    return answers


def _forward_one(tx: Tx, job_seq: int, each: Forward, *, options: JobOptions) -> tuple[bool, str | None]:
    """(whether its message is to be sent now, why it is not sent)."""
    item = each.item
    row = tx.execute(
        "SELECT state, why FROM redrive_item WHERE job_seq = ? AND position = ?", (job_seq, item.position)
    ).fetchone()
    if row is None:
        return False, f"the job has no item {item.position}"
    if row[0] != ItemState.PENDING:
        return False, None if row[0] == ItemState.SENT else row[1]
    found = letters.summary(tx.connection, item.letter_id)
    why = refusal(None if found is None else found[1], options, job_id=item.job_id)
    if found is None or why is not None:
        _end_item(tx, job_seq, item, state=ItemState.SKIPPED, why=why)
        return False, why
    seq, letter = found
    if each.outgoing.message.key is not None:
        attempts = letter.attempt_count if each.keep_attempts else 0
        claims.reopen(tx, each.outgoing.queue, each.outgoing.message.key, attempts=attempts)
    change = ReviewChange(letter_id=letter.id, to=ReviewState.REPLAYED, actor=each.actor, at=each.at,
                          note=sent_note(item.job_id))  # fmt: skip
    steps = moves(letter.state, ReviewState.REPLAYED)
    letters.walk(tx, seq, (ReviewState.REPLAYED,) if isinstance(steps, str) else steps, change=change)
    _end_item(tx, job_seq, item, state=ItemState.SENT, why=None)
    return True, None
