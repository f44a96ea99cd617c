"""The message that a redrive sends for a letter: the original bytes, a fresh budget, and where it came from."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from redrive.core.json_patch import Patch, edited_body
from redrive.core.kept import carried
from redrive.core.letters.foreign import tells_of_death
from redrive.core.letters.letter import Letter
from redrive.core.message import (
    HEADER_FIRST_FAILED_AT,
    HEADER_LETTER,
    HEADER_REDRIVEN_AT,
    HEADER_REDRIVEN_BATCH,
    HEADER_REDRIVEN_BY,
    HEADER_REDRIVEN_COUNT,
    OWN_HEADER_PREFIX,
    Headers,
    Message,
    user_headers,
    whole_number,
)
from redrive.core.redrive import Job
from redrive.core.text import cut
from redrive.core.units import MAX_DELAY_MS, Millis, UnixMs, rfc3339

HEADER_EDITED: Final = f"{OWN_HEADER_PREFIX}-edited"
"""On a copy whose body is not the letter's: the job named beside it has changed it."""

MAX_ACTOR_BYTES: Final = 200
"""Most bytes of who redrove a message, in its header."""


def redriven_message(letter: Letter, job: Job, *, now: UnixMs, patch: Patch = ()) -> Message:
    """The copy to send: same id, key, properties and user headers, and the body as the producer sent it, but for what
    `patch` (of the job) changes; such a copy says so in a header. Raises `PatchRefused` where the patch does not fit.

    It does not expire by its old deadline; with `keep_ttl` it lives as long again as it was first given. A broker's
    own headers are left out: it would go on counting from them; and so is what other producers write of a death.
    Redrive's own are replaced, never added up, so that fifty rounds make them no longer. Whether old attempts count on
    (`keep_attempts`) is the claim's business. What a handler kept with the message goes along: what was done stays
    done.
    """
    keeps_ttl = job.options.keep_ttl
    body = carried(letter.message.body, letter.message.original_body)
    properties = letter.message.properties
    ttl_ms = _ttl_ms(letter.message) if keeps_ttl else None
    return replace(
        letter.message,
        body=edited_body(patch, body) if patch else body,
        original=None,
        published_at=now,
        expires_at=None if ttl_ms is None else now + ttl_ms,
        headers=_headers(letter, job, now),
        properties=properties if keeps_ttl or properties.expiration is None else replace(properties, expiration=None),
    )


def _headers(letter: Letter, job: Job, now: UnixMs) -> Headers:
    return {
        **{name: value for name, value in user_headers(letter.message.headers).items() if not tells_of_death(name)},
        HEADER_LETTER: letter.id,
        HEADER_FIRST_FAILED_AT: letter.first_failed_at,
        HEADER_REDRIVEN_AT: rfc3339(now),
        HEADER_REDRIVEN_BY: cut(job.actor, MAX_ACTOR_BYTES),
        HEADER_REDRIVEN_COUNT: letter.redrive_count + 1,
        HEADER_REDRIVEN_BATCH: job.id,
        **({} if job.options.edit is None else {HEADER_EDITED: True}),
    }


def _ttl_ms(message: Message) -> Millis | None:
    """How long the message was first given to live: by its own deadline, else by AMQP's `expiration` (text of ms)."""
    if message.expires_at is not None:
        return max(0, message.expires_at - message.published_at)
    ttl_ms = whole_number(message.properties.expiration)
    return None if ttl_ms is None else min(ttl_ms, MAX_DELAY_MS)
