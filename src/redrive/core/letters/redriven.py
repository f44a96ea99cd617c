"""The message that a redrive sends for a letter: the original bytes, a fresh deadline, and where it came from."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from redrive.core.letters.letter import Letter
from redrive.core.message import (
    HEADER_FIRST_FAILED_AT,
    HEADER_LETTER,
    HEADER_REDRIVEN_AT,
    HEADER_REDRIVEN_BATCH,
    HEADER_REDRIVEN_BY,
    HEADER_REDRIVEN_COUNT,
    Headers,
    Message,
)
from redrive.core.redrive import Job
from redrive.core.units import UnixMs, rfc3339

BROKER_OWNED: Final = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count")
"""Headers a broker writes itself; sent back by a client they are ignored or count against the message
(cases.md PF-08). What they said stays in the letter.
"""


def redriven_message(letter: Letter, job: Job, *, now: UnixMs) -> Message:
    """The copy to send: same id, key, properties and user headers, and the body as the producer sent it.

    It does not expire by its old deadline; with `keep_ttl` it lives as long again as it was first given. The own
    headers are replaced, never added up, so that fifty rounds make them no longer.
    """
    message = letter.message
    expires_at = None
    if job.options.keep_ttl and message.expires_at is not None:
        expires_at = now + max(0, message.expires_at - message.published_at)
    properties = message.properties
    if not job.options.keep_ttl and properties.expiration is not None:
        properties = replace(properties, expiration=None)
    return replace(
        message,
        body=message.original_body,
        original=None,
        published_at=now,
        expires_at=expires_at,
        headers=_headers(letter, job, now),
        properties=properties,
    )


def _headers(letter: Letter, job: Job, now: UnixMs) -> Headers:
    kept = {name: value for name, value in letter.message.headers.items() if not name.startswith(BROKER_OWNED)}
    return {
        **kept,
        HEADER_LETTER: letter.id,
        HEADER_FIRST_FAILED_AT: letter.first_failed_at,
        HEADER_REDRIVEN_AT: rfc3339(now),
        HEADER_REDRIVEN_BY: job.actor,
        HEADER_REDRIVEN_COUNT: letter.redrive_count + 1,
        HEADER_REDRIVEN_BATCH: job.id,
    }
