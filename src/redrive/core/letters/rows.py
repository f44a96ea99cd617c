"""Letters as rows of an SQL store: the same columns in every one of them, and the numbers that stand for states.

A store says how it keeps a text that its database would refuse (`text_in`), and how it reads one back (`text_out`).
Texts a person reads are cleaned and need neither; names and ids come back exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from redrive.core.letters.letter import Letter, ReviewState
from redrive.core.message import NO_PROPERTIES, OWN_HEADER_PREFIX, Headers, Message, Properties
from redrive.core.ports import LetterSummary
from redrive.core.settlement import Reason
from redrive.core.text import clean, clean_or_none
from redrive.core.wire import (
    headers_from_json,
    headers_json,
    history_from_json,
    history_json,
    properties_from_json,
    properties_json,
)
from redrive.errors import InvalidMessageError

Row: TypeAlias = Sequence[Any]
TextIn: TypeAlias = Callable[[str | None], Any]
TextOut: TypeAlias = Callable[[Any], str]

UNREADABLE: Final = f"{OWN_HEADER_PREFIX}-unreadable-headers"
"""Header that holds the stored text of headers this redrive cannot read."""

REVIEW_STATES: Final = (ReviewState.PENDING, ReviewState.REVIEWED, ReviewState.REPLAYED, ReviewState.CLOSED)
"""By the number stored; the first two are open."""
PENDING, REVIEWED, REPLAYED, CLOSED = range(4)
REVIEW_NUMBER: Final = {state: number for number, state in enumerate(REVIEW_STATES)}

SUMMARY_COLUMNS: Final = (
    "id, queue, dead_letter_queue, message_id, key, tenant, message_type, reason_code, reason_text, error_type, "
    "error_code, attempt_count, fingerprint, group_title, state, first_failed_at, dead_lettered_at, expires_at, "
    "redrive_count, previous, outstanding_job, body_bytes, version"
)
SUMMARY_WIDTH: Final = SUMMARY_COLUMNS.count(",") + 1
CONTENT_COLUMNS: Final = (
    "system, priority, published_at, message_expires_at, content_type, headers, properties, history, original, body"
)


def summary_row(letter: Letter, *, text_in: TextIn) -> tuple[Any, ...]:
    """What SUMMARY_COLUMNS hold of this letter."""
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
        clean_or_none(letter.error_type),
        clean_or_none(letter.error_code),
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
        clean_or_none(letter.version),
    )


def content_row(letter: Letter, *, text_in: TextIn) -> tuple[Any, ...]:
    """What CONTENT_COLUMNS hold of it."""
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
    )


def summary_from(row: Row, *, text_out: TextOut) -> LetterSummary:
    """The summary of one row with SUMMARY_COLUMNS."""
    return LetterSummary(
        id=text_out(row[0]),
        queue=text_out(row[1]),
        dead_letter_queue=text_out(row[2]),
        message_id=text_out(row[3]),
        key=or_none(row[4], text_out),
        tenant=or_none(row[5], text_out),
        message_type=or_none(row[6], text_out),
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
        previous=or_none(row[19], text_out),
        outstanding_job=or_none(row[20], text_out),
        body_bytes=row[21],
        version=row[22],
    )


def letter_from(row: Row, *, text_out: TextOut) -> Letter:
    """The letter of one row with SUMMARY_COLUMNS and CONTENT_COLUMNS."""
    summary = summary_from(row, text_out=text_out)
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
        content_type=or_none(content_type, text_out),
        headers=headers_from(or_none(headers, text_out)),
        properties=properties_from(or_none(properties, text_out)),
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
        history=history_from_json(or_none(history, text_out)),
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


def headers_from(text: str | None) -> Headers:
    """The headers; where a newer redrive wrote a kind this one cannot read, their text under `UNREADABLE`. What cannot
    be shown whole must still be shown, and must not stop its queue.
    """
    try:
        return headers_from_json(text)
    except (InvalidMessageError, ValueError):
        return {UNREADABLE: text}


def properties_from(text: str | None) -> Properties:
    """The properties; none where they cannot be read."""
    try:
        return properties_from_json(text)
    except (ValueError, TypeError):
        return NO_PROPERTIES


def or_none(value: Any, text_out: TextOut) -> str | None:
    """The text of a column that may be NULL."""
    return None if value is None else text_out(value)
