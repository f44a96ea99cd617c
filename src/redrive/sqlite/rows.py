"""Rows to values of the core and back."""

from __future__ import annotations

import json
from typing import Any, Final

from redrive.core.idempotency import ClaimRecord, ClaimState, LostStart
from redrive.core.letters import rows
from redrive.core.letters.letter import Attempt, AttemptOutcome, Letter
from redrive.core.letters.rows import Row, headers_from, properties_from
from redrive.core.message import NO_HEADERS, NO_PROPERTIES, Message
from redrive.core.policy.fairness import group_of
from redrive.core.ports import LetterSummary
from redrive.core.text import cut
from redrive.core.wire import (
    attempt_document,
    attempt_from_document,
    headers_json,
    properties_json,
)
from redrive.errors import InvalidMessageError, SchemaTooNewError
from redrive.sqlite.values import text_in, text_or_none_out, text_out

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


def summary_row(letter: Letter, *, letter_id: str) -> tuple[Any, ...]:
    """One row of redrive_letter."""
    return (text_in(letter_id), *rows.summary_row(letter, text_in=text_in)[1:])


def content_row(seq: int, letter: Letter) -> tuple[Any, ...]:
    """One row of redrive_letter_content, seq first."""
    return (seq, *rows.content_row(letter, text_in=text_in))


def summary_from(row: Row) -> LetterSummary:
    """The summary of one row with SUMMARY_COLUMNS."""
    return rows.summary_from(row, text_out=text_out)


def letter_from(row: Row) -> Letter:
    """The letter of one row with SUMMARY_COLUMNS and CONTENT_COLUMNS."""
    return rows.letter_from(row, text_out=text_out)
