"""Rows to values of the core and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from redrive.core.idempotency import ClaimRecord, ClaimState, LostStart
from redrive.core.letters.letter import Attempt, AttemptOutcome, Letter, ReviewState
from redrive.core.message import NO_HEADERS, NO_PROPERTIES, OWN_HEADER_PREFIX, Headers, Message, Properties
from redrive.core.policy.fairness import group_of
from redrive.core.ports import LetterSummary
from redrive.core.settlement import Reason
from redrive.core.text import clean, cut
from redrive.core.wire import (
    attempt_document,
    attempt_from_document,
    headers_from_json,
    headers_json,
    history_from_json,
    history_json,
    properties_from_json,
    properties_json,
)
from redrive.errors import InvalidMessageError, SchemaTooNewError
from redrive.sqlite.values import text_in, text_or_none_out, text_out

Row = Sequence[Any]

UNREADABLE: Final = f"{OWN_HEADER_PREFIX}-unreadable-headers"
"""Header that holds the stored text of headers this redrive cannot read."""

_encode: Final = json.JSONEncoder(separators=(",", ":")).encode

# ---------------------------------------------------------------------------------------------------- messages


def message_row(queue_id: int, message: Message) -> tuple[Any, ...]:
    """One row for INSERT_MESSAGES; its body is the message as first published."""
    headers, properties = message.headers, message.properties
    return (
        queue_id,
        text_in(message.id),
        text_in(message.key),
        text_in(message.tenant),
        message.priority,
        message.published_at,
        message.expires_at,
        text_in(message.content_type),
        headers_json(headers) if headers else None,
        None if properties is NO_PROPERTIES else properties_json(properties),
        message.body if message.original is None else message.original,
        None if message.tenant is None else _turn_group(message.tenant),
    )


def _turn_group(tenant: str) -> str | None:
    group = group_of(tenant)
    return None if group == tenant else group


def message_from(row: Row, at: int) -> Message:
    """The message whose columns, without queue_id and with the rewritten body last, start at `row[at]`."""
    message_id, key, tenant, priority, published_at, expires_at, content_type, headers, properties, body, rewritten = (
        row[at : at + 11]
    )
    return Message(
        id=message_id if type(message_id) is str else text_out(message_id),
        key=key if type(key) is str else text_or_none_out(key),
        tenant=tenant if tenant is None else text_out(tenant),
        priority=priority,
        published_at=published_at,
        expires_at=expires_at,
        content_type=content_type if type(content_type) is str else text_or_none_out(content_type),
        headers=NO_HEADERS if headers is None else headers_from(headers),
        properties=NO_PROPERTIES if properties is None else properties_from(properties),
        body=body if rewritten is None else rewritten,
        original=None if rewritten is None else body,
    )


def headers_from(text: str | None) -> Headers:
    """The headers; where a newer redrive wrote a kind this one cannot read, their text under `UNREADABLE`. A message
    that cannot be shown whole must not stop its queue.
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


# ---------------------------------------------------------------------------------------------------- history


def attempt_text(entry: Attempt) -> str:
    """One history entry as it is kept in redrive_attempt."""
    return _encode(attempt_document(entry))


def attempt_from(text: str) -> Attempt:
    """The entry `attempt_text` wrote, or the one that a rescue wrote in SQL; a stand-in where it cannot be read."""
    try:
        return attempt_from_document(json.loads(text))
    except (InvalidMessageError, SchemaTooNewError, ValueError):
        return Attempt(attempt=0, outcome=AttemptOutcome.FAILED, at=0, error_text=cut(text))


# ---------------------------------------------------------------------------------------------------- claims

CLAIM_STATES: Final = (
    ClaimState.RECEIVED,
    ClaimState.PROCESSING,
    ClaimState.PROCESSED,
    ClaimState.FAILED,
    ClaimState.DEAD_LETTERED,
)
"""By the number stored."""
RECEIVED, PROCESSING, PROCESSED, FAILED, DEAD_LETTERED = range(5)

CLAIM_COLUMNS: Final = "state, attempts, cycle, token, owner, lease_until, expires_at, digest, updated_at"
WHOLE_CLAIM_COLUMNS: Final = f"{CLAIM_COLUMNS}, lost_by, lost_at"
"""The embedded broker tells of lost starts in a message's own history, and needs them not with the claim."""


def claim_from(row: Row, *, queue: str, key: str) -> ClaimRecord:
    """The record of one row with CLAIM_COLUMNS, or with WHOLE_CLAIM_COLUMNS."""
    state, attempts, cycle, token, owner, lease_until, expires_at, digest, updated_at, *lost = row
    return ClaimRecord(
        queue=queue,
        key=key,
        state=CLAIM_STATES[state],
        attempts=attempts,
        cycle=cycle,
        token=token,
        owner=owner,
        lease_until=lease_until,
        expires_at=expires_at,
        digest=digest,
        updated_at=updated_at,
        lost=LostStart(worker=lost[0], at=lost[1]) if lost and lost[0] is not None else None,
    )


# ---------------------------------------------------------------------------------------------------- letters

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


def summary_row(letter: Letter, *, letter_id: str) -> tuple[Any, ...]:
    """One row of redrive_letter. Texts a person reads are cleaned; names and ids are kept exactly."""
    message = letter.message
    return (
        text_in(letter_id),
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


def content_row(seq: int, letter: Letter) -> tuple[Any, ...]:
    """One row of redrive_letter_content, seq first."""
    message = letter.message
    return (
        seq,
        text_in(letter.system),
        message.priority,
        message.published_at,
        message.expires_at,
        text_in(message.content_type),
        headers_json(message.headers),
        properties_json(message.properties),
        history_json(letter.history),
        message.original,
        message.body,
    )


def summary_from(row: Row) -> LetterSummary:
    """The summary of one row with SUMMARY_COLUMNS."""
    texts = [value if isinstance(value, str) or value is None else text_out(value) for value in row[:11]]
    return LetterSummary(
        id=texts[0] or "",
        queue=texts[1] or "",
        dead_letter_queue=texts[2] or "",
        message_id=texts[3] or "",
        key=texts[4],
        tenant=texts[5],
        message_type=texts[6],
        reason_code=texts[7] or "",
        reason_text=texts[8] or "",
        error_type=texts[9],
        error_code=texts[10],
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
        headers=headers_from(headers),
        properties=properties_from(properties),
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
        history=history_from_json(history),
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


def _cleaned(text: str | None) -> str | None:
    return None if text is None else clean(text)
