"""The line of a letter, as a shape: an import refuses what has a field of another kind before it comes to a store."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

from redrive.core.letters.letter import AttemptOutcome, ReviewState

Text: TypeAlias = Annotated[str, Meta(max_length=2_048)]
"""As long as a name of a message may be."""
LongText: TypeAlias = Annotated[str, Meta(max_length=1_000_000)]
Number: TypeAlias = Annotated[int, Meta(ge=-(2**62), le=2**62)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Instant: TypeAlias = Annotated[int, Meta(ge=0, le=253_402_300_799_999)]
"""Up to the end of the year 9999: what comes later has no RFC 3339."""
Body: TypeAlias = str | dict[str, str]


class PropertiesLine(Struct, frozen=True, kw_only=True):
    """AMQP properties."""

    type: Text | None = None
    correlation_id: Text | None = None
    reply_to: Text | None = None
    app_id: Text | None = None
    user_id: Text | None = None
    content_encoding: Text | None = None
    delivery_mode: Number | None = None
    timestamp: Number | None = None
    expiration: Text | None = None
    trace_id: Text | None = None
    routing_key: Text | None = None
    exchange: Text | None = None


class MessageLine(Struct, kw_only=True):
    """The message of a letter."""

    id: Text
    body: Body
    published_at: Instant
    original: Body | None = None
    content_type: Text | None = None
    key: Text | None = None
    tenant: Text | None = None
    priority: Number | None = None
    expires_at: Instant | None = None
    headers: dict[str, Any] = {}
    properties: PropertiesLine = PropertiesLine()


class AttemptLine(Struct, kw_only=True):
    """One attempt of its history."""

    attempt: Number
    outcome: AttemptOutcome
    at: Instant
    duration_ms: Number | None = None
    error_code: Text | None = None
    error_type: Text | None = None
    error_text: LongText | None = None
    traceback: LongText | None = None
    worker: Text | None = None
    next_delay_ms: Number | None = None


class LetterLine(Struct, kw_only=True):
    """A letter. A field that a later version added is passed over."""

    id: Annotated[str, Meta(min_length=1, max_length=1_000)]
    system: Text
    queue: Annotated[str, Meta(min_length=1, max_length=2_048)]
    dead_letter_queue: Text
    reason_code: Text
    reason_text: LongText
    message: MessageLine
    attempt_count: Count
    first_failed_at: Instant
    dead_lettered_at: Instant
    schema: Number = 1
    state: ReviewState = ReviewState.PENDING
    error_type: Text | None = None
    error_code: Text | None = None
    fingerprint: Text = ""
    group_title: Text = ""
    expires_at: Instant | None = None
    redrive_count: Count = 0
    previous: Text | None = None
    outstanding_job: Text | None = None
    version: Text | None = None
    history: Annotated[list[AttemptLine], Meta(max_length=100_000)] = []
