"""Redrive jobs and their items. Every function runs inside the caller's transaction, and takes the job's row first.

The job row carries the counts of its items, so that a job of a million letters answers as fast as one of ten.
`token` is the fence: whoever acquires a job raises it, and so does ending it. Killed at any point: a batch of items is
staged or recorded whole, with the counts and with the letters it holds or frees, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from redrive.core.letters.job_rows import JOB_COLUMNS, job_from, job_row
from redrive.core.letters.rows import CLOSED, SUMMARY_COLUMNS
from redrive.core.ports import LetterSummary
from redrive.core.redrive import (
    JOB_TRANSITIONS,
    Item,
    ItemState,
    Job,
    JobEvent,
    JobState,
    Outcomes,
    refusal,
    runner_lost,
)
from redrive.core.text import clean, clean_or_none
from redrive.core.units import Millis
from redrive.postgres import search
from redrive.postgres.database import Tx
from redrive.postgres.rows import summary_from
from redrive.postgres.values import columns_of, text_in, text_out, unnest

_COLUMNS: Final = f"seq, {JOB_COLUMNS}"
_OPEN: Final = (JobState.STAGED, JobState.RUNNING)
_FREE_LETTERS: Final = (
    "UPDATE @letter SET outstanding_job = NULL "
    "WHERE left(outstanding_job, 100) = left(%s, 100) AND outstanding_job = %s"
)


def _job_from(row: Sequence[Any]) -> Job:
    return job_from(row[1:], text_out=text_out)


def create(tx: Tx, job: Job) -> Job:
    """Store it, or return the one with this id or request key. Two at one moment: the second waits for the first."""
    values = job_row(job, text_in=text_in)
    marks = ", ".join(["%s"] * len(values))
    tx.execute(
        f"INSERT INTO @job ({JOB_COLUMNS}, last_letter, staged_at, staged_seq) "  # noqa: S608 - constants
        f"SELECT {marks}, coalesce((SELECT max(seq) FROM @letter), 0), -1, -1 ON CONFLICT DO NOTHING",
        values,
    )
    row = tx.execute(
        f"SELECT {_COLUMNS} FROM @job WHERE id = %s OR request_key = %s ORDER BY seq LIMIT 1",  # noqa: S608 - constants
        (text_in(job.id), text_in(job.request_key)),
    ).fetchone()
    assert row is not None, "a conflict is with a row that is there"
    return _job_from(row)


def get(tx: Tx, job_id: str) -> Job | None:
    """The job as stored."""
    found = _find(tx, job_id)
    return None if found is None else found[1]


def _find(tx: Tx, job_id: str, *, lock: str = "") -> tuple[int, Job] | None:
    row = tx.execute(
        f"SELECT {_COLUMNS} FROM @job WHERE id = %s {lock}",  # noqa: S608 - constants
        (text_in(job_id),),
    ).fetchone()
    return None if row is None else (row[0], _job_from(row))


def newest(tx: Tx, *, limit: int) -> list[Job]:
    """Jobs, newest first."""
    rows = tx.execute(
        f"SELECT {_COLUMNS} FROM @job ORDER BY created_at DESC, seq DESC LIMIT %s",  # noqa: S608 - constants
        (limit,),
    )
    return [_job_from(row) for row in rows]


def acquire(tx: Tx, job_id: str | None, *, owner: str, lease_ms: Millis) -> Job | None:
    """Take over a job: its token moves on, and its pending items hold their letters (again, after an abort)."""
    found = _next_free(tx) if job_id is None else _find(tx, job_id, lock="FOR UPDATE")
    if found is None:
        return None
    seq, job = found
    is_held = job.state is JobState.RUNNING and job.lease_until is not None and job.lease_until > tx.now
    if is_held or JobEvent.START not in JOB_TRANSITIONS[job.state]:
        return None
    tx.execute(
        "UPDATE @job SET state = 'running', error = NULL, token = token + 1, owner = %s, lease_until = %s, "
        "updated_at = %s WHERE seq = %s",
        (clean(owner), tx.now + lease_ms, tx.now, seq),
    )
    if job.state not in _OPEN:
        tx.execute(
            "UPDATE @letter SET outstanding_job = %s WHERE outstanding_job IS NULL AND id IN "
            "(SELECT letter_id FROM @item WHERE job_seq = %s AND state = 'pending')",
            (text_in(job.id), seq),
        )
    return get(tx, job.id)


def _next_free(tx: Tx) -> tuple[int, Job] | None:
    row = tx.execute(
        f"SELECT {_COLUMNS} FROM @job WHERE state = 'staged' OR (state = 'running' AND "  # noqa: S608 - constants
        "(lease_until IS NULL OR lease_until <= %s)) ORDER BY created_at, seq LIMIT 1 FOR UPDATE SKIP LOCKED",
        (tx.now,),
    ).fetchone()
    return None if row is None else (row[0], _job_from(row))


def _current(tx: Tx, job: Job) -> tuple[int, Job] | None:
    found = _find(tx, job.id, lock="FOR UPDATE")
    return found if found is not None and found[1].token == job.token else None


def stage(tx: Tx, job: Job, *, limit: int) -> Job:
    """Copy the next letters into items. Raises `LeaseLostError`, staging nothing, where `job.token` is stale."""
    found = _current(tx, job)
    if found is None:
        raise runner_lost(job, "Nothing was staged.")
    seq, stored = found
    kept = tx.execute("SELECT last_letter, staged_at, staged_seq FROM @job WHERE seq = %s", (seq,)).fetchone()
    assert kept is not None, "its row is locked"
    last_letter, *after = kept
    left = None if stored.options.limit is None else stored.options.limit - stored.counts.selected
    room = limit if left is None else max(0, min(limit, left))
    selected = list(search.walk(tx, stored.selection, after=(after[0], after[1]), up_to=last_letter, limit=room + 1))
    taken = selected[:room]
    now_there = _locked(tx, [letter_seq for (_, letter_seq), _ in taken])
    items, held = [], []
    for position, ((_, letter_seq), letter) in enumerate(taken, stored.counts.selected):
        why = refusal(now_there.get(letter_seq), stored.options, job_id=stored.id, at=stored.created_at)
        items.append((position, text_in(letter.id), "pending" if why is None else "skipped", why))
        if why is None:
            held.append(letter_seq)
    tx.execute(
        f"INSERT INTO @item (job_seq, position, letter_id, state, why) SELECT %s, g.* "  # noqa: S608 - constants
        f"FROM {unnest('bigint text text text')} g",
        [seq, *columns_of(items, 4)],
    )
    tx.execute("UPDATE @letter SET outstanding_job = %s WHERE seq = ANY (%s)", (text_in(stored.id), held))
    place = taken[-1][0] if taken else tuple(after)
    tx.execute(
        "UPDATE @job SET pending = pending + %s, skipped = skipped + %s, is_staged = %s, staged_at = %s, "
        "staged_seq = %s, updated_at = %s WHERE seq = %s",
        (len(held), len(items) - len(held), len(selected) <= room or room == left, *place, tx.now, seq),
    )
    staged = get(tx, job.id)
    assert staged is not None, "its row is locked"
    return staged


def _locked(tx: Tx, seqs: Sequence[int]) -> dict[int, LetterSummary]:
    """These letters as they are now, and stay until the commit: another job may be staging the same ones."""
    rows = tx.execute(
        f"SELECT seq, {SUMMARY_COLUMNS} FROM @letter WHERE seq = ANY (%s) ORDER BY seq FOR UPDATE",  # noqa: S608 - constants
        (list(seqs),),
    )
    return {row[0]: summary_from(row[1:]) for row in rows}


def items(tx: Tx, job_id: str, *, state: str | None, limit: int, after: int) -> list[Item]:
    """Items by position, above `after`."""
    rows = tx.execute(
        "SELECT i.position, i.letter_id, i.state, i.why FROM @job j JOIN @item i ON i.job_seq = j.seq "  # noqa: S608 - constants
        f"WHERE j.id = %s AND i.position > %s {'' if state is None else 'AND i.state = %s'} "
        "ORDER BY i.position LIMIT %s",
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
    ended = {item.position: item for item in reversed(batch) if item.state is not ItemState.PENDING}
    rows = [(item.position, str(item.state), clean_or_none(item.why)) for item in ended.values()]
    moved = tx.execute(
        f"UPDATE @item i SET state = g.state, why = g.why FROM {unnest('bigint text text')} "  # noqa: S608 - constants
        "AS g (position, state, why) WHERE i.job_seq = %s AND i.position = g.position AND i.state = 'pending' "
        "RETURNING i.state, i.letter_id",
        [*columns_of(rows, 3), found[0]],
    ).fetchall()
    sent = sum(state == ItemState.SENT for state, _ in moved)
    tx.execute(
        "UPDATE @job SET pending = pending - %s, sent = sent + %s, skipped = skipped + %s, updated_at = %s "
        "WHERE seq = %s",
        (len(moved), sent, len(moved) - sent, tx.now, found[0]),
    )
    tx.execute(
        "UPDATE @letter SET outstanding_job = NULL WHERE seq IN (SELECT seq FROM @letter WHERE id = ANY (%s) "
        "AND outstanding_job = %s ORDER BY seq FOR UPDATE)",
        ([letter_id for _, letter_id in moved], text_in(job.id)),
    )
    return True


def save(tx: Tx, job: Job, *, lease_ms: Millis) -> bool:
    """Write state, error and a renewed lease. A job that ended frees its letters and shuts its runner out."""
    found = _current(tx, job)
    if found is None:
        return False
    is_over = job.state not in _OPEN
    tx.execute(
        "UPDATE @job SET state = %s, error = %s, token = token + %s, owner = CASE WHEN %s THEN NULL ELSE owner END, "
        "lease_until = %s, progress = %s, updated_at = %s WHERE seq = %s",
        (str(job.state), clean_or_none(job.error), int(is_over), is_over, None if is_over else tx.now + lease_ms,
         clean_or_none(job.progress), tx.now, found[0]),
    )  # fmt: skip
    if is_over and job.state is not JobState.PAUSED:
        tx.execute(_FREE_LETTERS, (text_in(job.id), text_in(job.id)))
    return True


_AGAIN: Final = (
    "EXISTS (SELECT 1 FROM @letter n WHERE left(n.previous, 100) = left(i.letter_id, 100) "
    "AND n.previous = i.letter_id AND n.dead_lettered_at >= j.created_at)"
)


def outcomes(tx: Tx, job_id: str, *, positions: Sequence[int] | None) -> Outcomes:
    """What became of sent letters."""
    among = "" if positions is None else "AND i.position = ANY (%s)"
    row = tx.execute(
        f"SELECT count(*), count(*) FILTER (WHERE l.state = {CLOSED} AND NOT {_AGAIN}), "  # noqa: S608 - constants
        f"count(*) FILTER (WHERE {_AGAIN}) FROM @job j JOIN @item i ON i.job_seq = j.seq AND i.state = 'sent' "
        f"LEFT JOIN @letter l ON l.id = i.letter_id WHERE j.id = %s {among}",
        [text_in(job_id), *([] if positions is None else [list(positions)])],
    ).fetchone()
    assert row is not None, "an aggregate has one row"
    return Outcomes(sent=row[0], succeeded=row[1], failed_again=row[2])
