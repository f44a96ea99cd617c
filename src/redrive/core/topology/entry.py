"""How a dead letter lies in a broker's own dead-letter queue: the original message, and in headers why it lies there.

Other tools read it there and may move it back as it is: the body is the producer's, the headers a broker would go on
counting from are gone (the deaths it had counted are kept under `HEADER_DEATHS`), and `x-redrive-letter` names the
letter, so that the copy's success closes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from redrive.core.letters.letter import Attempt, Letter
from redrive.core.message import (
    HEADER_FIRST_FAILED_AT,
    HEADER_LETTER,
    HEADER_REDRIVEN_AT,
    HEADER_REDRIVEN_BATCH,
    HEADER_REDRIVEN_BY,
    HEADER_REDRIVEN_COUNT,
    OWN_HEADER_PREFIX,
    HeaderValue,
    Message,
    user_headers,
)
from redrive.core.ports import Outgoing
from redrive.core.text import cut
from redrive.core.topology.wiring import DeadLetterRoute, LadderRetry, Wiring

HEADER_DEATHS: Final = f"{OWN_HEADER_PREFIX}-deaths"
"""What stood in `x-death` when the message was given up."""
HEADER_QUEUE: Final = f"{OWN_HEADER_PREFIX}-queue"
"""The consumer queue it was given up in: where it goes back to."""
HEADER_REASON_CODE: Final = f"{OWN_HEADER_PREFIX}-reason-code"
HEADER_REASON_TEXT: Final = f"{OWN_HEADER_PREFIX}-reason-text"
HEADER_ATTEMPTS: Final = f"{OWN_HEADER_PREFIX}-attempts"
"""Attempts that were made."""

MAX_TEXT_BYTES: Final = 1_000
"""Of a reason or an error in a header; the store has it whole."""

_KEPT: Final = (HEADER_REDRIVEN_AT, HEADER_REDRIVEN_BY, HEADER_REDRIVEN_COUNT, HEADER_REDRIVEN_BATCH)


def default_wiring(queue: str, dead_letter_queue: str) -> Wiring:
    """A consumer queue of which the topology says nothing: any delay, and a dead-letter queue of its own."""
    route = DeadLetterRoute(exchange="", routing_key=dead_letter_queue)
    return Wiring(queue=queue, retry=LadderRetry(), dead_letter=route, dead_letter_queue=dead_letter_queue)


def dead_letter_outgoing(letter: Letter, wiring: Wiring | None) -> Outgoing | None:
    """What to publish for this letter; None where it has no dead-letter queue, or the broker itself moves the message
    there when it is rejected.
    """
    if not letter.dead_letter_queue:
        return None
    wired = default_wiring(letter.queue, letter.dead_letter_queue) if wiring is None else wiring
    route = wired.dead_letter
    if route.by_reject:
        return None
    return Outgoing(queue=route.routing_key, exchange=route.exchange, message=entry_message(letter, route.headers))


def entry_message(letter: Letter, named: Mapping[str, str]) -> Message:
    """The message itself. `named`: header names by what they hold, as in `DeadLetterRoute.headers`."""
    message = letter.message
    return replace(
        message,
        body=message.original_body,
        original=None,
        expires_at=None,
        headers={**user_headers(message.headers), **_own(letter), **_named(letter, named)},
        # It would leave the dead-letter queue by itself.
        properties=replace(message.properties, expiration=None),
    )


def _own(letter: Letter) -> dict[str, HeaderValue]:
    old = letter.message.headers
    headers: dict[str, HeaderValue] = {name: old[name] for name in _KEPT if name in old}
    deaths = old.get("x-death", old.get(HEADER_DEATHS))
    if deaths is not None:
        headers[HEADER_DEATHS] = deaths
    return headers | {
        HEADER_LETTER: letter.id,
        HEADER_QUEUE: letter.queue,
        HEADER_REASON_CODE: letter.reason.code,
        HEADER_REASON_TEXT: cut(letter.reason.text, MAX_TEXT_BYTES),
        HEADER_ATTEMPTS: letter.attempt_count,
        HEADER_FIRST_FAILED_AT: letter.first_failed_at,
    }


def _named(letter: Letter, named: Mapping[str, str]) -> dict[str, HeaderValue]:
    if not named:
        return {}
    last = letter.history[-1] if letter.history else None
    status = status_of(letter)
    held: dict[str, HeaderValue] = {
        "queue": letter.queue,
        "status_code": status,
        "error": _error(letter, last) if status is None or letter.error_type is not None else None,
        "retry_count": max(0, letter.attempt_count - 1),
        "reason_code": letter.reason.code,
        "reason_text": cut(letter.reason.text, MAX_TEXT_BYTES),
        "attempts": letter.attempt_count,
    }
    return {name: held[what] for what, name in named.items() if held.get(what) is not None}


def status_of(letter: Letter) -> int | None:
    """The HTTP status of the last failure, where it was one."""
    code = letter.error_code or ""
    digits = code.removeprefix("HTTP_")
    return int(digits) if code != digits and digits.isascii() and digits.isdigit() else None


def _error(letter: Letter, last: Attempt | None) -> str:
    text = letter.reason.text if last is None or last.error_text is None else last.error_text
    return cut(text, MAX_TEXT_BYTES)
