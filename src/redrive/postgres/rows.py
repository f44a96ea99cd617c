"""Rows to letters and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from psycopg.types.json import Jsonb

from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.letters.selection import header_text
from redrive.core.message import NO_PROPERTIES, OWN_HEADER_PREFIX, Headers, Message, Properties
from redrive.core.ports import LetterSummary
from redrive.core.settlement import Reason
from redrive.core.text import clean
from redrive.core.wire import (
    headers_from_json,
    headers_json,
    history_from_json,
    history_json,
    properties_from_json,
    properties_json,
)
from redrive.errors import InvalidMessageError
from redrive.postgres.values import text_in, text_or_none_out, text_out

Row = Sequence[Any]

UNREADABLE: Final = f"{OWN_HEADER_PREFIX}-unreadable-headers"
"""Header that holds the stored text of headers this redrive cannot read."""

REVIEW_STATES: Final = (ReviewState.PENDING, ReviewState.REVIEWED, ReviewState.REPLAYED, ReviewState.CLOSED)
"""By the number stored; the first two are open."""
CLOSED: Final = 3
REVIEW_NUMBER: Final = {state: number for number, state in enumerate(REVIEW_STATES)}

SUMMARY_COLUMNS: Final = (
    "id, queue, dead_letter_queue, message_id, key, tenant, message_type, reason_code, reason_text, error_type, "
    "error_code, attempt_count, fingerprint, group_title, state, first_failed_at, dead_lettered_at, expires_at, "
    "redrive_count, previous, outstanding_job, body_bytes, version"
)
SUMMARY_TYPES: Final = (
    "text text text text text text text text text text text integer text text smallint bigint bigint bigint integer "
    "text text bigint text"
)
SUMMARY_WIDTH: Final = SUMMARY_COLUMNS.count(",") + 1
CONTENT_COLUMNS: Final = (
    "system, priority, published_at, message_expires_at, content_type, headers, properties, history, original, body"
)
CONTENT_TYPES: Final = "text bigint bigint bigint text text text text bytea bytea jsonb"
"""Of CONTENT_COLUMNS and header_texts."""


def summary_row(letter: Letter) -> tuple[Any, ...]:
    """One row of redrive_letter. Texts a person reads are cleaned; names and ids are kept exactly."""
    message = letter.message
    return (
        text_in(letter.id),
        text_in(letter.queue),
        text_in(letter.dead_letter_queue),
        text_in(message.id),
        text_in(message.key),
        text_in(message.tenant),
        text_in(message.properties.type),
        text_in(letter.reason.code),
        clean(letter.reason.text),
        _cleaned(letter.error_type),
        _cleaned(letter.error_code),
        letter.attempt_count,
        text_in(letter.fingerprint),
        clean(letter.group_title),
        REVIEW_NUMBER[letter.state],
        letter.first_failed_at,
        letter.dead_lettered_at,
        letter.expires_at,
        letter.redrive_count,
        text_in(letter.previous),
        text_in(letter.outstanding_job),
        len(message.body),
        _cleaned(letter.version),
    )


def content_row(letter: Letter) -> tuple[Any, ...]:
    """One row of redrive_letter_content, without its seq."""
    message = letter.message
    return (
        text_in(letter.system),
        message.priority,
        message.published_at,
        message.expires_at,
        text_in(message.content_type),
        text_in(headers_json(message.headers)),
        text_in(properties_json(message.properties)),
        text_in(history_json(letter.history)),
        message.original,
        message.body,
        Jsonb(header_texts(message.headers), dumps=_dumps),
    )


def header_texts(headers: Headers) -> dict[str, str]:
    """Each header that has a plain text, as that text: what a selection compares with."""
    return {
        text_in(name) or "": text_in(text) or ""
        for name, value in headers.items()
        if (text := header_text(value)) is not None
    }


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def summary_from(row: Row) -> LetterSummary:
    """The summary of one row with SUMMARY_COLUMNS."""
    return LetterSummary(
        id=text_out(row[0]),
        queue=text_out(row[1]),
        dead_letter_queue=text_out(row[2]),
        message_id=text_out(row[3]),
        key=text_or_none_out(row[4]),
        tenant=text_or_none_out(row[5]),
        message_type=text_or_none_out(row[6]),
        reason_code=text_out(row[7]),
        reason_text=row[8],
        error_type=row[9],
        error_code=row[10],
        attempt_count=row[11],
        fingerprint=text_out(row[12]),
        group_title=row[13],
        state=REVIEW_STATES[row[14]],
        first_failed_at=row[15],
        dead_lettered_at=row[16],
        expires_at=row[17],
        redrive_count=row[18],
        previous=text_or_none_out(row[19]),
        outstanding_job=text_or_none_out(row[20]),
        body_bytes=row[21],
        version=row[22],
    )


def letter_from(row: Row) -> Letter:
    """The letter of one row with SUMMARY_COLUMNS and CONTENT_COLUMNS."""
    summary = summary_from(row[:SUMMARY_WIDTH])
    system, priority, published_at, expires_at, content_type, headers, properties, history, original, body = row[
        SUMMARY_WIDTH:
    ]
    message = Message(
        id=summary.message_id,
        key=summary.key,
        tenant=summary.tenant,
        priority=priority,
        published_at=published_at,
        expires_at=expires_at,
        content_type=text_or_none_out(content_type),
        headers=_headers_from(text_or_none_out(headers)),
        properties=_properties_from(text_or_none_out(properties)),
        body=body,
        original=original,
    )
    return Letter(
        id=summary.id,
        system=text_out(system),
        queue=summary.queue,
        dead_letter_queue=summary.dead_letter_queue,
        message=message,
        reason=Reason(code=summary.reason_code, text=summary.reason_text),
        error_type=summary.error_type,
        error_code=summary.error_code,
        attempt_count=summary.attempt_count,
        history=history_from_json(text_or_none_out(history)),
        fingerprint=summary.fingerprint,
        group_title=summary.group_title,
        state=summary.state,
        first_failed_at=summary.first_failed_at,
        dead_lettered_at=summary.dead_lettered_at,
        expires_at=summary.expires_at,
        redrive_count=summary.redrive_count,
        previous=summary.previous,
        outstanding_job=summary.outstanding_job,
        version=summary.version,
    )


def _headers_from(text: str | None) -> Headers:
    # A letter that cannot be shown whole must still be shown.
    try:
        return headers_from_json(text)
    except (InvalidMessageError, ValueError):
        return {UNREADABLE: text}


def _properties_from(text: str | None) -> Properties:
    try:
        return properties_from_json(text)
    except (ValueError, TypeError):
        return NO_PROPERTIES


def _cleaned(text: str | None) -> str | None:
    return None if text is None else clean(text)
