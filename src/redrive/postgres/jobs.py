"""Redrive jobs and their items. Every function runs inside the caller's transaction, and takes the job's row first.

The job row carries the counts of its items, so that a job of a million letters answers as fast as one of ten.
`token` is the fence: whoever acquires a job raises it, and so does ending it. Killed at any point: a batch of items is
staged or recorded whole, with the counts and with the letters it holds or frees, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from redrive.core.ports import LetterSummary
from redrive.core.redrive import (
    JOB_TRANSITIONS,
    Item,
    ItemState,
    Job,
    JobCounts,
    JobEvent,
    JobState,
    Outcomes,
    refusal,
    runner_lost,
)
from redrive.core.text import clean
from redrive.core.units import Millis
from redrive.core.wire import (
    options_document,
    options_from_document,
    selection_document,
    selection_from_document,
)
from redrive.postgres import search
from redrive.postgres.database import Tx
from redrive.postgres.rows import CLOSED, SUMMARY_COLUMNS, summary_from
from redrive.postgres.values import columns_of, text_in, text_or_none_out, text_out, unnest

_COLUMNS: Final = (
    "seq, id, request_key, selection, options, actor, note, state, is_staged, pending, sent, skipped, created_at, "
    "updated_at, error, token, owner, lease_until, progress"
)
_OPEN: Final = (JobState.STAGED, JobState.RUNNING)
_FREE_LETTERS: Final = (
    "UPDATE @letter SET outstanding_job = NULL "
    "WHERE left(outstanding_job, 100) = left(%s, 100) AND outstanding_job = %s"
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
    assert row is not None
    return Outcomes(sent=row[0], succeeded=row[1], failed_again=row[2])
