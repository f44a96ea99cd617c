"""Redrive jobs as rows of an SQL store: the same columns in every one of them; `TextIn` and `TextOut` as in rows.py."""

from __future__ import annotations

import json
from typing import Any, Final

from redrive.core.letters.rows import Row, TextIn, TextOut, or_none
from redrive.core.redrive import Job, JobCounts, JobState
from redrive.core.text import clean, clean_or_none
from redrive.core.wire import options_document, options_from_document, selection_document, selection_from_document

JOB_COLUMNS: Final = (
    "id, request_key, selection, options, actor, note, state, is_staged, pending, sent, skipped, created_at, "
    "updated_at, error, token, owner, lease_until, progress"
)


def job_row(job: Job, *, text_in: TextIn) -> tuple[Any, ...]:
    """What JOB_COLUMNS hold of this job."""
    return (
        text_in(job.id),
        text_in(job.request_key),
        json.dumps(selection_document(job.selection)),
        json.dumps(options_document(job.options)),
        clean(job.actor),
        clean(job.note),
        str(job.state),
        job.is_staged,
        job.counts.pending,
        job.counts.sent,
        job.counts.skipped,
        job.created_at,
        job.updated_at,
        clean_or_none(job.error),
        job.token,
        clean_or_none(job.owner),
        job.lease_until,
        clean_or_none(job.progress),
    )


def job_from(row: Row, *, text_out: TextOut) -> Job:
    """The job of one row with JOB_COLUMNS."""
    pending, sent, skipped = row[8:11]
    return Job(
        id=text_out(row[0]),
        request_key=or_none(row[1], text_out),
        selection=selection_from_document(json.loads(row[2])),
        options=options_from_document(json.loads(row[3])),
        actor=row[4],
        note=row[5],
        state=JobState(row[6]),
        is_staged=bool(row[7]),
        counts=JobCounts(selected=pending + sent + skipped, pending=pending, sent=sent, skipped=skipped),
        created_at=row[11],
        updated_at=row[12],
        error=row[13],
        token=row[14],
        owner=row[15],
        lease_until=row[16],
        progress=row[17],
    )
