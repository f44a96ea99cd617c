"""A letter from a job that a broker's own workers gave up and the broker keeps.

Its id is made of the queue, the job's id, when it failed and its body: a job that is stored, and seen once more after a
crash before it was taken out, is the same letter. One that somebody retried and that failed again is another.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Final

from redrive.core.letters.fingerprint import fingerprint, group_title
from redrive.core.letters.foreign import (
    HEADER_TRACES,
    MAX_ATTEMPTS,
    MAX_TRACEBACK_BYTES,
    code_of,
    told,
)
from redrive.core.letters.letter import Attempt, AttemptOutcome, Letter
from redrive.core.letters.making import MAX_REDRIVE_COUNT, previous_letter
from redrive.core.letters.traces import named_in
from redrive.core.message import HEADER_FIRST_FAILED_AT, HEADER_REDRIVEN_COUNT, Message, whole_number
from redrive.core.ports.failed import FailedJob
from redrive.core.settlement import Reason
from redrive.core.text import clean, cut
from redrive.core.units import Millis, UnixMs

FAILED: Final = "JOB_FAILED"
"""The reason code where nothing names the error."""
STALLED: Final = "JOB_STALLED"
STALLED_TEXT: Final = "job stalled more than allowable limit"
"""What BullMQ writes of a job whose workers died under it."""
MAX_TRACES: Final = 10
"""Traces of earlier failures that are kept."""


def failed_letter(job: FailedJob, *, queue: str, system: str, now: UnixMs, ttl_ms: Millis | None = None) -> Letter:
    """The letter of this job. It lies in no dead-letter queue: its broker keeps what failed with its queue.
    `ttl_ms` None: kept for ever.
    """
    headers = job.message.headers
    trace = cut(clean(job.traces[-1]), MAX_TRACEBACK_BYTES) if job.traces else None
    text = told(job.text)
    error_type = None if job.text.startswith(STALLED_TEXT) else named_in(job.traces[-1] if job.traces else "")[0]
    code = STALLED if job.text.startswith(STALLED_TEXT) else code_of(error_type) or FAILED
    died = max(0, min(job.failed_at or now, now))
    first = whole_number(headers.get(HEADER_FIRST_FAILED_AT))
    last = Attempt(
        attempt=max(1, min(job.attempts, MAX_ATTEMPTS)),
        outcome=AttemptOutcome.INTERRUPTED if code == STALLED else AttemptOutcome.FAILED,
        at=died,
        duration_ms=None if job.started_at is None else max(0, job.failed_at - job.started_at),
        error_type=error_type,
        error_text=text,
        traceback=trace,
    )
    return Letter(
        id=failed_id(job, queue=queue),
        system=system,
        queue=queue,
        dead_letter_queue="",
        message=with_traces(job),
        reason=Reason(code=code, text=text),
        error_type=error_type,
        attempt_count=min(max(0, job.attempts), MAX_ATTEMPTS),
        history=(last,),
        fingerprint=fingerprint(queue, error_type=error_type, error_code=code, text=text, traceback=trace),
        group_title=group_title(error_type=error_type, error_code=code, text=text, traceback=trace),
        first_failed_at=died if first is None else min(first, died),
        dead_lettered_at=died,
        expires_at=None if ttl_ms is None else now + ttl_ms,
        redrive_count=min(whole_number(headers.get(HEADER_REDRIVEN_COUNT)) or 0, MAX_REDRIVE_COUNT),
        previous=previous_letter(headers),
    )


def failed_id(job: FailedJob, *, queue: str) -> str:
    """The id of the letter of this job."""
    parts = ("failed", queue, job.message.id, str(job.failed_at), str(job.message.published_at))
    framed = "\0".join(f"{len(part)}:{part}" for part in parts).encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(framed)
    digest.update(hashlib.sha256(job.message.body).digest())
    return f"dl_{digest.hexdigest()[:24]}"


def with_traces(job: FailedJob) -> Message:
    """The message, with the traces of failures before the last one beside it."""
    earlier = [cut(clean(trace), MAX_TRACEBACK_BYTES) for trace in job.traces[:-1][-MAX_TRACES:]]
    if not earlier:
        return job.message
    return replace(job.message, headers={**job.message.headers, HEADER_TRACES: json.dumps(earlier)})
