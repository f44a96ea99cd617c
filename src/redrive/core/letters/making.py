"""A letter from a message that was given up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from redrive.core.letters.fingerprint import fingerprint, group_title
from redrive.core.letters.letter import Attempt, Letter, letter_id
from redrive.core.message import (
    HEADER_FIRST_FAILED_AT,
    HEADER_LETTER,
    HEADER_REDRIVEN_COUNT,
    Headers,
    Message,
    whole_number,
)
from redrive.core.policy.failure import Failure
from redrive.core.settlement import Reason
from redrive.core.units import Millis, UnixMs

MAX_REDRIVE_COUNT: Final = 1_000_000
MAX_LETTER_ID_CHARS: Final = 200


def letter_of(
    message: Message,
    *,
    system: str,
    queue: str,
    dead_letter_queue: str,
    reason: Reason,
    attempt: int,
    history: Sequence[Attempt],
    now: UnixMs,
    position: str,
    cycle: int | None,
    failure: Failure | None = None,
    version: str | None = None,
    ttl_ms: Millis | None = None,
) -> Letter:
    """The dead letter of this message.

    `attempt`: attempts made. `history` ends with the attempt that just failed. `cycle` is the claim's; None where
    there is no claim (idempotency off, no key): the id then comes from `position`, so that every death of a message
    without a claim makes its own letter. `failure` None: given up without running (expired, worker lost).
    `version`: of the app that gave it up. `ttl_ms` None: kept for ever. Links to the letter before, its redrive count
    and first failure come from the message's own headers; malformed ones count as absent.
    """
    last = history[-1] if history else None
    error_type = failure.error_type if failure is not None else last.error_type if last is not None else None
    error_code = failure.code if failure is not None else last.error_code if last is not None else None
    text = failure.text if failure is not None else reason.text
    traceback = last.traceback if last is not None else None
    code = reason.code if failure is None else failure.code  # given up without running: the reason makes the group
    return Letter(
        id=letter_id(
            queue,
            key=message.key if cycle is not None else None,
            cycle=cycle or 0,
            message_id=message.id,
            position=position,
            published_at=message.published_at,
        ),
        system=system,
        queue=queue,
        dead_letter_queue=dead_letter_queue,
        message=message,
        reason=reason,
        error_type=error_type,
        error_code=error_code,
        attempt_count=attempt,
        history=tuple(history),
        fingerprint=fingerprint(queue, error_type=error_type, error_code=code, text=text, traceback=traceback),
        group_title=group_title(error_type=error_type, error_code=code, text=text, traceback=traceback),
        first_failed_at=_first_failed_at(message.headers, history, now),
        dead_lettered_at=now,
        expires_at=None if ttl_ms is None else now + ttl_ms,
        redrive_count=redrive_count(message.headers),
        previous=previous_letter(message.headers),
        version=version,
    )


def redrive_count(headers: Headers) -> int:
    """How often this message was redriven, by its own header; 0 where that is absent or junk."""
    return _whole(headers.get(HEADER_REDRIVEN_COUNT), highest=MAX_REDRIVE_COUNT) or 0


def previous_letter(headers: Headers) -> str | None:
    """The letter this copy was redriven from, by its own header; None where that is absent or junk."""
    value = headers.get(HEADER_LETTER)
    return value if isinstance(value, str) and 0 < len(value) <= MAX_LETTER_ID_CHARS and value.isprintable() else None


def _first_failed_at(headers: Headers, history: Sequence[Attempt], now: UnixMs) -> UnixMs:
    carried = _whole(headers.get(HEADER_FIRST_FAILED_AT), highest=now)
    if carried is not None:
        return carried
    return history[0].at if history else now


def _whole(value: Any, *, highest: int) -> int | None:
    number = whole_number(value)
    return number if number is not None and number <= highest else None
