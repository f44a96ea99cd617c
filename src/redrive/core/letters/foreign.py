"""A letter from what lies in a broker's dead-letter queue, whoever put it there.

Each producer writes in headers of its own why a message is dead. `READERS` has one reader for each, the first that
knows its mark is asked; Dramatiq writes in the body (see `dramatiq`). What none of them says, the broker's `x-death`
may (redrive.core.in_place). Headers are as any program may have left them: whatever does not fit counts as absent,
nothing raises.

The id of a letter is made of what stays the same however often the message is handed over: the queue, the message's
id, its body, its headers but for the broker's count of deliveries, and its death. So a message that is stored and then
handed over once more, after a crash before its acknowledgement, is the same letter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from redrive.core.in_place import attempts_of, dead_since, origin_queue, reason_of, redriven_count
from redrive.core.letters.dramatiq import Told, told_in
from redrive.core.letters.fingerprint import fingerprint, group_title
from redrive.core.letters.letter import COLLECTED_ID, Letter
from redrive.core.letters.making import MAX_REDRIVE_COUNT, previous_letter
from redrive.core.message import HEADER_FIRST_FAILED_AT, Headers, Message, whole_number
from redrive.core.settlement import Reason
from redrive.core.text import clean, cut
from redrive.core.topology.entry import HEADER_QUEUE
from redrive.core.units import Millis, UnixMs
from redrive.core.wire import headers_json, letter_from_document
from redrive.errors import RedriveError

UNKNOWN: Final = Reason(code="DEAD_LETTERED_BY_BROKER", text="the message does not say why it is dead")
MAX_TEXT_BYTES: Final = 4_000
MAX_TRACEBACK_BYTES: Final = 8_000
MAX_NAME_CHARS: Final = 255
MAX_ATTEMPTS: Final = 1_000_000
_INT32, _INT64 = 2**31, 2**63
HEADER_TRACES: Final = "x-bullmq-stacktraces"
"""Of a job from BullMQ's failed set: traces of the failures before the last, a JSON list."""
_COUNTS_DELIVERIES: Final = frozenset({"x-delivery-count", "x-acquired-count"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a producer's headers say; None, or empty, what they do not."""

    queue: str | None = None
    error_type: str | None = None
    error_code: str | None = None
    text: str = ""
    traceback: str | None = None
    attempts: int = 0
    first_failed_at: UnixMs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """How one producer writes. `mark`: a header only it writes. `history`: headers (a name, or the start of one with a
    `*`) that tell of the death and do not go back with the message. `source`: where that is documented.
    """

    name: str
    mark: str
    read: Callable[[Headers], Said]
    history: tuple[str, ...]
    source: str


def _nservicebus(headers: Headers) -> Said:
    delayed = whole_number(headers.get("NServiceBus.DelayedRetries")) or 0
    immediate = whole_number(headers.get("NServiceBus.ImmediateRetries")) or 0
    queue = _text(headers.get("NServiceBus.FailedQ"))
    return Said(
        queue=None if queue is None else queue.partition("@")[0],
        error_type=_text(headers.get("NServiceBus.ExceptionInfo.ExceptionType")),
        text=_text(headers.get("NServiceBus.ExceptionInfo.Message")) or "",
        traceback=_text(headers.get("NServiceBus.ExceptionInfo.StackTrace")),
        attempts=1 + delayed + immediate,
        first_failed_at=_wire_time(_text(headers.get("NServiceBus.TimeOfFailure"))),
    )


def _masstransit(headers: Headers) -> Said:
    address = _text(headers.get("MT-Fault-InputAddress"))
    return Said(
        queue=None if address is None else address.partition("?")[0].rstrip("/").rpartition("/")[2] or None,
        error_type=_text(headers.get("MT-Fault-ExceptionType")),
        text=_text(headers.get("MT-Fault-Message")) or _text(headers.get("MT-Reason")) or "",
        traceback=_text(headers.get("MT-Fault-StackTrace")),
        attempts=1 + (whole_number(headers.get("MT-Fault-RetryCount")) or 0),
        first_failed_at=_iso_time(_text(headers.get("MT-Fault-Timestamp"))),
    )


def _spring(headers: Headers) -> Said:
    trace = _text(headers.get("x-exception-stacktrace"))
    first = (trace or "").lstrip().splitlines()[:1]
    kind = first[0].partition(":")[0].strip() if first else ""
    return Said(
        error_type=kind if kind and " " not in kind else None,
        text=_text(headers.get("x-exception-message")) or (first[0] if first else ""),
        traceback=trace,
    )


def _celery(headers: Headers) -> Said:
    return Said(attempts=1 + (whole_number(headers.get("retries")) or 0))


def _bus(headers: Headers) -> Said:
    status = whole_number(headers.get("x-final-status-code"))
    return Said(
        queue=_text(headers.get("x-original-queue")),
        error_code=None if status is None else f"HTTP_{status}",
        text=_text(headers.get("x-final-error")) or "",
        attempts=1 + (whole_number(headers.get("x-final-retry-count")) or 0),
    )


READERS: Final = (
    Reader(
        name="NServiceBus",
        mark="NServiceBus.FailedQ",
        read=_nservicebus,
        history=(
            "NServiceBus.FailedQ", "NServiceBus.TimeOfFailure", "NServiceBus.ExceptionInfo.*", "NServiceBus.Retries*",
            "NServiceBus.DelayedRetries", "NServiceBus.ImmediateRetries", "ServiceControl.EditOf",
        ),
        source="docs.particular.net: Message headers, Error forwarding headers",
    ),
    Reader(
        name="MassTransit",
        mark="MT-Fault-ExceptionType",
        read=_masstransit,
        history=("MT-Fault-*", "MT-Reason"),
        source="masstransit.io: Exceptions, Error headers",
    ),
    Reader(
        name="Spring AMQP",
        mark="x-exception-stacktrace",
        read=_spring,
        history=("x-exception-*", "x-original-exchange", "x-original-routingKey"),
        source="docs.spring.io: Spring AMQP, RepublishMessageRecoverer",
    ),
    Reader(
        name="a bus",
        mark="x-final-retry-count",
        read=_bus,
        history=("x-original-queue", "x-final-*"),
        source="the convention of buses that write a final status",
    ),
    Reader(
        name="Celery",
        mark="task",
        read=_celery,
        history=(),
        source="docs.celeryq.dev: Message Protocol, version 2",
    ),
)  # fmt: skip
_NAMES: Final = frozenset(
    {HEADER_TRACES, *(name.lower() for each in READERS for name in each.history if not name.endswith("*"))}
)
_STARTS: Final = tuple(name[:-1].lower() for each in READERS for name in each.history if name.endswith("*"))


def tells_of_death(name: str) -> bool:
    """Whether a header is one that some producer writes on its dead letters, and that must not go back with them."""
    return name.lower() in _NAMES or name.lower().startswith(_STARTS)


def reader_of(headers: Headers) -> Reader | None:
    """Whose dead letter it is; None: the broker's own, or nobody's we know."""
    return next((each for each in READERS if each.mark in headers), None)


def found_letter(
    message: Message,
    *,
    dead_letter_queue: str,
    system: str,
    now: UnixMs,
    as_queue: str | None = None,
    ttl_ms: Millis | None = None,
) -> Letter:
    """The letter of a message that lies in this dead-letter queue. `as_queue`: where it came from, if it does not say;
    None, and it does not say either: its queue is the dead-letter queue itself, and it is redriven only with a target.
    `ttl_ms` None: kept for ever.

    redrive's own letters are given back as they are, with their id.
    """
    own = _own_letter(message)
    if own is not None:
        return own
    headers = message.headers
    reader = reader_of(headers)
    dramatiq = told_in(message.body) if reader is None else None
    said = _said(dramatiq) if reader is None else reader.read(headers)
    queue = _name(said.queue) or _name(origin_queue(headers, own=dead_letter_queue)) or as_queue or dead_letter_queue
    reason = _reason(headers, said)
    died = min(dead_since(headers, message.properties.timestamp) or now, now)
    attempts = min(said.attempts or attempts_of(headers, queue=queue), MAX_ATTEMPTS)
    trace = None if said.traceback is None else cut(clean(said.traceback), MAX_TRACEBACK_BYTES)
    error_type = _short(said.error_type)
    code = said.error_code or reason.code
    first = min(said.first_failed_at or whole_number(headers.get(HEADER_FIRST_FAILED_AT)) or died, died)
    return Letter(
        id=found_id(message, dead_letter_queue=dead_letter_queue),
        system=system,
        queue=queue,
        dead_letter_queue=dead_letter_queue,
        message=message if dramatiq is None else _typed(message, dramatiq.actor),
        reason=reason,
        error_type=error_type,
        error_code=said.error_code,
        attempt_count=attempts,
        fingerprint=fingerprint(queue, error_type=error_type, error_code=code, text=reason.text, traceback=trace),
        group_title=group_title(error_type=error_type, error_code=code, text=reason.text, traceback=trace),
        first_failed_at=max(0, first),
        dead_lettered_at=max(0, died),
        expires_at=None if ttl_ms is None else now + ttl_ms,
        redrive_count=min(redriven_count(headers), MAX_REDRIVE_COUNT),
        previous=None if HEADER_QUEUE in headers else previous_letter(headers),
    )


def found_id(message: Message, *, dead_letter_queue: str, copy: int = 0) -> str:
    """The id of the letter of this message. `copy`: of messages that are alike in everything, which one."""
    if HEADER_QUEUE in message.headers:
        told = previous_letter(message.headers)
        if told is not None:
            return told
    headers = {name: value for name, value in message.headers.items() if name not in _COUNTS_DELIVERIES}
    # A quorum queue hands headers over in another order the second time.
    sorted_headers = json.dumps(json.loads(headers_json(headers) or "{}"), sort_keys=True)
    parts = (dead_letter_queue, message.id, sorted_headers, str(copy))
    framed = "\0".join(f"{len(part)}:{part}" for part in parts).encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(framed)
    digest.update(hashlib.sha256(message.body).digest())
    return f"{COLLECTED_ID}{digest.hexdigest()[:23]}"


def _said(told: Told | None) -> Said:
    if told is None:
        return Said()
    return Said(
        queue=told.queue,
        error_type=told.error_type,
        text=told.text,
        traceback=told.traceback,
        attempts=told.attempts,
        first_failed_at=told.failed_at,
    )


def _typed(message: Message, actor: str) -> Message:
    """With the name of its actor as its type, for who searches; one that has a type keeps it."""
    if message.properties.type is not None or len(actor.encode("utf-8", "surrogatepass")) > MAX_NAME_CHARS:
        return message
    return replace(message, properties=replace(message.properties, type=actor))


def _own_letter(message: Message) -> Letter | None:
    """A letter that redrive wrote as a document; None where this is none, or holds numbers redrive never writes."""
    if not message.body.startswith(b'{"schema":'):
        return None
    try:
        document = json.loads(message.body)
        letter = letter_from_document(document) if isinstance(document, dict) and "reason_code" in document else None
    except (ValueError, RecursionError, RedriveError):
        return None
    return letter if letter is not None and _is_storable(letter) else None


def _is_storable(letter: Letter) -> bool:
    """Whether every store has room for its numbers: counts of 32 bits, all others of 64."""
    message = letter.message
    counts = (letter.attempt_count, letter.redrive_count)
    numbers = (letter.first_failed_at, letter.dead_lettered_at, message.published_at)
    may_be_none = (letter.expires_at, message.expires_at, message.priority)
    return all(type(count) is int and 0 <= count < _INT32 for count in counts) and all(
        type(number) is int and -_INT64 <= number < _INT64
        for number in (*numbers, *(each for each in may_be_none if each is not None))
    )


def _reason(headers: Headers, said: Said) -> Reason:
    code, text = reason_of(headers)
    wanted = said.text or text
    return Reason(
        code=clean(said.error_code or code or code_of(said.error_type) or UNKNOWN.code)[:MAX_NAME_CHARS],
        text=told(wanted),
    )


def told(text: str) -> str:
    """A reason's text as a letter keeps it; blanks alone say nothing."""
    kept = cut(clean(text), MAX_TEXT_BYTES)
    return kept if kept.strip() else UNKNOWN.text


def code_of(error_type: str | None) -> str | None:
    """A reason code from the name of an error: `System.TimeoutException` is `TIMEOUT_EXCEPTION`."""
    if error_type is None:
        return None
    last = error_type.rpartition(".")[2] or error_type
    return (
        "".join(
            f"_{letter}" if letter.isupper() and at and not last[at - 1].isupper() else letter
            for at, letter in enumerate(last[:MAX_NAME_CHARS])
        ).upper()
        or None
    )


def _name(text: str | None) -> str | None:
    return text if text and len(text.encode("utf-8", "surrogatepass")) <= MAX_NAME_CHARS else None


def _short(text: str | None) -> str | None:
    return None if text is None else cut(clean(text), MAX_NAME_CHARS) or None


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


def _wire_time(text: str | None) -> UnixMs | None:
    """NServiceBus writes "2026-01-31 12:00:00:250123 Z"."""
    if text is None:
        return None
    try:
        return _ms(datetime.strptime(text.strip(), "%Y-%m-%d %H:%M:%S:%f Z").replace(tzinfo=UTC))
    except ValueError:
        return _iso_time(text)


def _iso_time(text: str | None) -> UnixMs | None:
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text.strip())
        return _ms(at if at.tzinfo is not None else at.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return None


def _ms(at: datetime) -> UnixMs:
    return int(at.timestamp() * 1_000)
