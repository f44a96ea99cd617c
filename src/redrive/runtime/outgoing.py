"""From what a user publishes to the message the broker keeps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from redrive.core import message as messages
from redrive.core.message import NO_HEADERS, NO_PROPERTIES, Headers, Message, Properties
from redrive.core.ports import Outgoing
from redrive.core.text import clean
from redrive.core.units import Duration, UnixMs, duration_ms
from redrive.core.wire import check_headers
from redrive.errors import InvalidMessageError

JSON_TYPE: Final = "application/json"
TEXT_TYPE: Final = "text/plain; charset=utf-8"

MAX_PRIORITY: Final = 2_097_151
"""As BullMQ has it."""

MAX_TEXT_CHARS: Final = 2_048
"""Of an id, a key, a tenant and their like."""

_encode_json: Final = msgspec.json.Encoder().encode
_BYTES: Final = (bytes, bytearray, memoryview)
_PROPERTY_NAMES: Final = frozenset(Properties.__dataclass_fields__)


def make_outgoing(
    queue: str,
    payload: Any,
    now: UnixMs,
    *,
    max_body_bytes: int,
    delay: Duration | None = None,
    tenant: str | None = None,
    idempotency_key: str | None = None,
    priority: int | None = None,
    headers: Headers | None = None,
    type: str | None = None,  # noqa: A002 - the message property's own name
    ttl: Duration | None = None,
    message_id: str | None = None,
    content_type: str | None = None,
    trace_id: str | None = None,
    once: bool = False,
    digest: str | None = None,
    exchange: str = "",
    keyed: bool = False,
    **properties: Any,
) -> Outgoing:
    """The arguments of `Redrive.publish` as a message ready to send. `keyed`: an id that is made here is the key, too.

    Raises `InvalidMessageError`; nothing is sent.
    """
    if not queue and not exchange:
        raise InvalidMessageError("A message needs a queue to go to. Nothing was sent.")
    for text in (message_id, idempotency_key, trace_id):
        if text is not None and not _is_plain(text):
            _check_text(text)
    for text in (queue, exchange, tenant, content_type, type):
        if text and text not in _seen_plain:
            _see(text)
    if priority is not None and not 0 <= priority <= MAX_PRIORITY:
        raise InvalidMessageError(f"priority is {priority}: it must be from 0 to {MAX_PRIORITY}. Nothing was sent.")
    body, found_type = encode(payload)
    if len(body) > max_body_bytes:
        raise InvalidMessageError(
            f'The body for "{queue}" has {len(body)} bytes, more than max_body_bytes ({max_body_bytes}). Not sent.'
        )
    own_id = new_message_id(now) if message_id is None or not message_id.strip() else message_id
    message = Message(
        id=own_id,
        body=body,
        content_type=found_type if content_type is None else content_type,
        key=messages.idempotency_key(idempotency_key, own_id if keyed else message_id),
        tenant=tenant,
        priority=priority,
        published_at=now,
        expires_at=None if ttl is None else now + duration_ms(ttl, field="ttl"),
        headers=messages.without_own(check_headers(headers)) if headers else NO_HEADERS,
        properties=_properties(properties, type, trace_id),
    )
    due_at = None if delay is None else now + duration_ms(delay, field="delay")
    return Outgoing(queue=queue, message=message, exchange=exchange, due_at=due_at, once=once, digest=digest)


def encode(payload: Any) -> tuple[bytes, str | None]:
    """A payload as bytes and its content type: bytes as they are, text as UTF-8, a pydantic model by its own JSON,
    anything else by msgspec. Raises `InvalidMessageError` for what has no JSON form.
    """
    if isinstance(payload, _BYTES):
        return bytes(payload), None
    try:
        if isinstance(payload, str):
            return payload.encode(), TEXT_TYPE
        dump = getattr(payload, "model_dump_json", None)
        if dump is not None:
            return dump().encode(), JSON_TYPE
        return _encode_json(payload), JSON_TYPE
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        kind = type(payload).__name__
        raise InvalidMessageError(f"A {kind} cannot be sent: {error}. Nothing was sent.") from error


_ID_BYTES: Final = 10
_IDS_PER_READ: Final = 256
_ready_parts: Final[list[str]] = []
"""Random parts of ids to come, read from the system many at once: each read gives the interpreter lock away."""

# A forked child must not hand out the parent's.
os.register_at_fork(after_in_child=_ready_parts.clear)


def new_message_id(now: UnixMs) -> str:
    """An id nobody else makes; ids of one millisecond sort beside each other."""
    try:
        part = _ready_parts.pop()
    except IndexError:
        part, *others = os.urandom(_ID_BYTES * _IDS_PER_READ).hex(" ", -_ID_BYTES).split()
        _ready_parts.extend(others)
    return f"{now:012x}{part}"


_SEEN_MAX: Final = 1_000
_seen_plain: Final[set[str]] = set()
"""Names that come again and again and were checked before: queues, tenants, types."""


def _see(text: str) -> None:
    _check_text(text)
    if len(_seen_plain) >= _SEEN_MAX:
        _seen_plain.clear()
    _seen_plain.add(text)


def _is_plain(text: object) -> bool:
    return type(text) is str and len(text) <= MAX_TEXT_CHARS and text.isascii() and "\x00" not in text


def _check_text(text: object) -> None:
    """What names a message must be text that every broker and store can hold."""
    if not isinstance(text, str) or len(text) > MAX_TEXT_CHARS or not _is_clean(text):
        raise InvalidMessageError(
            f"{text!r:.80} cannot name a message or a part of it. Nothing was sent.",
            hint=f"Use text of at most {MAX_TEXT_CHARS} characters, without NUL and lone surrogates.",
        )


def _is_clean(text: str) -> bool:
    return "\x00" not in text and (text.isascii() or clean(text) == text)


def _properties(given: Mapping[str, Any], message_type: str | None, trace_id: str | None) -> Properties:
    if not given and message_type is None and trace_id is None:
        return NO_PROPERTIES
    named = {**given, "type": message_type, "trace_id": trace_id}
    values = {name: value for name, value in named.items() if value is not None}
    unknown = values.keys() - _PROPERTY_NAMES
    if unknown:
        raise InvalidMessageError(f"A message has no property {min(unknown)!r}. Nothing was sent.")
    return Properties(**values)
