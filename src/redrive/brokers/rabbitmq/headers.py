"""A `Message` as AMQP properties, and back.

What AMQP has a place for goes there, so that other consumers read it as usual: the id, the content type, headers of
every kind a table holds exactly, and so on. What it has no place for lies in headers of our own:

    x-redrive-published-at   when it was published (UnixMs); says that redrive wrote the message
    x-redrive-key            the idempotency key where it is not the message id; void: none
    x-redrive-tenant, x-redrive-priority, x-redrive-expires-at
    x-redrive-history        earlier attempts of a copy, as JSON, at most `MAX_HISTORY_BYTES`
    x-redrive-original       what a retry's rewritten body had in place of what is there now
    x-redrive-due-at         a delayed copy is not for its handler before that
    x-redrive-route          exchange and routing key it came by, where it was passed on since (see `carrying`)
    x-redrive-rest           as JSON: whatever AMQP holds not at all, or not exactly (an integer over 64 bits, a time
                             with microseconds, a lone surrogate, an id over 255 bytes)

None of them shows in `Message.headers`. All may be forged by whoever publishes; junk in one counts as not there, and
nothing in here raises on what comes from the broker.

Never sent: what the broker counts from (`x-death` and its kin), `CC` and `BCC` (a copy would be routed to them again),
`user_id` (refused where it is another user's), a reply address of the broker's own. The last four travel in the rest,
so that the handler sees them at every attempt. `expiration` is set only where a message is published for the first
time straight to where it goes: on a copy that is to wait it would end the wait.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from redrive.brokers.rabbitmq.tables import (
    Content,
    Unreadable,
    Unwritable,
    field,
    read_content,
    short_string,
    table,
    write_content,
)
from redrive.core import wire
from redrive.core.attempts import HEADER_ATTEMPT
from redrive.core.letters.letter import Attempt
from redrive.core.message import (
    NO_HEADERS,
    NO_PROPERTIES,
    OWN_HEADER_PREFIX,
    HeaderValue,
    Message,
    Properties,
    idempotency_key,
    is_broker_header,
    user_headers,
)
from redrive.core.text import cut
from redrive.core.topology.ladder import HEADER_DUE_AT
from redrive.core.units import MAX_DELAY_MS, UnixMs
from redrive.errors import InvalidMessageError, SchemaTooNewError

HEADER_PUBLISHED_AT: Final = f"{OWN_HEADER_PREFIX}-published-at"
HEADER_KEY: Final = f"{OWN_HEADER_PREFIX}-key"
HEADER_TENANT: Final = f"{OWN_HEADER_PREFIX}-tenant"
HEADER_PRIORITY: Final = f"{OWN_HEADER_PREFIX}-priority"
HEADER_EXPIRES_AT: Final = f"{OWN_HEADER_PREFIX}-expires-at"
HEADER_HISTORY: Final = f"{OWN_HEADER_PREFIX}-history"
HEADER_ORIGINAL: Final = f"{OWN_HEADER_PREFIX}-original"
HEADER_ROUTE: Final = f"{OWN_HEADER_PREFIX}-route"
HEADER_REST: Final = f"{OWN_HEADER_PREFIX}-rest"

_FIELDS: Final = frozenset({
    HEADER_PUBLISHED_AT, HEADER_KEY, HEADER_TENANT, HEADER_PRIORITY, HEADER_EXPIRES_AT, HEADER_HISTORY, HEADER_ORIGINAL,
    HEADER_DUE_AT, HEADER_ROUTE, HEADER_REST,
})  # fmt: skip

VOLATILE: Final = frozenset({"x-delivery-count", "x-acquired-count"})
"""What a quorum queue adds to a hand-over: another one at every look, and no part of the message."""

MAX_HISTORY_BYTES: Final = 8_192
"""All own headers together stay below 16 kB; a whole header frame has to fit into 128 kB."""
MAX_HEADER_BYTES: Final = 131_052
"""What fits into one frame of the usual 128 kB."""
_HISTORY_OVERHEAD: Final = 40
MAX_PATCH_BYTES: Final = 32_768
"""A rewritten body that differs from the first one in a longer stretch is not kept beside it."""
_MAX_OLD_TEXT_BYTES: Final = 200

_ANONYMOUS: Final = "amqp-"
_PERSISTENT: Final = 2
_MAX_OCTET: Final = 255
_PSEUDO_REPLY_TO: Final = "amq.rabbitmq."
_ROUTED_AGAIN: Final = frozenset({"cc", "bcc"})

_MAX_TIMESTAMP: Final = 2**63
_PROPERTY_NAMES: Final = frozenset(each.name for each in fields(Properties))


@dataclass(slots=True, kw_only=True)
class Arrived:
    """What one delivery's bytes say."""

    message: Message
    history: tuple[Attempt, ...] = ()
    due_at: UnixMs | None = None
    deaths: Any = None
    """`x-death` as it came, however odd."""


# ---------------------------------------------------------------------------------------------------- writing


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """What a copy carries beyond its message. `headers` win over the message's own."""

    headers: Mapping[str, HeaderValue] | None = None
    history: tuple[Attempt, ...] = ()
    attempt: int | None = None
    due_at: UnixMs | None = None
    keeps_expiration: bool = False


NOTHING: Final = Extra()
FIRST: Final = Extra(keeps_expiration=True)
"""A message that is published for the first time, straight to where it goes."""


def to_wire(
    message: Message, *, exchange: str, routing_key: str, extra: Extra = NOTHING, limit: int = MAX_HEADER_BYTES
) -> bytes:
    """The content header's flags and values. `exchange` and `routing_key`: under which it will arrive. Where it would
    be longer than `limit`, the history is shortened, and left out at last; it may be too long all the same.

    Raises `InvalidMessageError` for a header kind that nothing carries.
    """
    header = _written(message, (exchange, routing_key), extra)
    if len(header) > limit and extra.history:
        bare = _written(message, (exchange, routing_key), replace(extra, history=()))
        room = max(0, limit - len(bare) - _HISTORY_OVERHEAD)
        header = bare
        if bounded_history(extra.history, room) is not None:
            header = _written(message, (exchange, routing_key), extra, history_bytes=room)
    return header


def _written(
    message: Message, route: tuple[str, str], extra: Extra, *, history_bytes: int = MAX_HISTORY_BYTES
) -> bytes:
    rest: dict[str, Any] = {}
    headers: dict[str, Any] = {}
    for name, value in message.headers.items():
        if not is_broker_header(name) and name not in _FIELDS:
            _put(headers, rest, (name, value))
    content = Content(headers=headers, delivery_mode=_PERSISTENT)
    _put_fields(content, message, headers=headers, rest=rest)
    _put_extra(headers, rest, extra, history_bytes=history_bytes)
    if message.properties is not NO_PROPERTIES:
        others = _put_rare(content, message.properties, route, keeps_expiration=extra.keeps_expiration)
        if others:
            rest["properties"] = others
    if rest:
        headers[HEADER_REST] = json.dumps(rest, separators=(",", ":"))
    try:
        return write_content(content)
    except Unwritable as error:
        raise InvalidMessageError(
            f'Message "{cut(message.id, _MAX_OLD_TEXT_BYTES)}" holds what no header can carry. It was not sent.'
        ) from error


def _put_fields(content: Content, message: Message, *, headers: dict[str, Any], rest: dict[str, Any]) -> None:
    headers[HEADER_PUBLISHED_AT] = message.published_at
    has_own_id = message.key is not None or not message.id.startswith(_ANONYMOUS)
    if has_own_id and _is_short(message.id):
        content.message_id = message.id
    else:
        rest["id"] = wire.tagged(message.id)
    if message.key != message.id:
        _put(headers, rest, (HEADER_KEY, message.key))
    if message.tenant is not None:
        _put(headers, rest, (HEADER_TENANT, message.tenant))
    if message.expires_at is not None:
        headers[HEADER_EXPIRES_AT] = message.expires_at
    if message.priority is not None:
        _put_priority(content, headers, message.priority, is_foreign=message.properties.delivery_mode is not None)
    if message.content_type is not None:
        if _is_short(message.content_type):
            content.content_type = message.content_type
        else:
            rest["content_type"] = message.content_type
    if message.original is not None:
        _put_original(headers, message)


def _put_priority(content: Content, headers: dict[str, Any], priority: int, *, is_foreign: bool) -> None:
    """AMQP's larger is more urgent, and a quorum queue of 4.x hands over by it: ours would go the wrong way round. What
    came with one from another publisher (who says a delivery mode, as we do not) keeps it.
    """
    if is_foreign and 0 <= priority <= _MAX_OCTET:
        content.priority = priority
    else:
        headers[HEADER_PRIORITY] = priority


def _put(headers: dict[str, Any], rest: dict[str, Any], entry: tuple[str, Any]) -> None:
    """Into the table where that keeps it exactly, else into the rest."""
    name, value = entry
    kind = type(value)
    if kind is str and value.isascii() and name.isascii() and len(name) <= _MAX_OCTET:
        pass
    elif not _is_exact(name, value):
        rest.setdefault("headers", {})[name] = wire.tagged(value)
        return
    if name.lower() in _ROUTED_AGAIN:
        rest.setdefault("headers", {})[name] = wire.tagged(value)
        return
    headers[name] = value


def _is_exact(name: str, value: Any) -> bool:
    try:
        short_string(name)
        field(value)
    except Unwritable:
        return False
    return True


def _put_extra(headers: dict[str, Any], rest: dict[str, Any], extra: Extra, *, history_bytes: int) -> None:
    if extra.headers:
        for name, value in extra.headers.items():
            _put(headers, rest, (name, value))
    if extra.attempt is not None:
        headers[HEADER_ATTEMPT] = extra.attempt
    if extra.due_at is not None:
        headers[HEADER_DUE_AT] = extra.due_at
    if extra.history and (text := bounded_history(extra.history, history_bytes)):
        headers[HEADER_HISTORY] = text


def _put_rare(
    content: Content, properties: Properties, route: tuple[str, str], *, keeps_expiration: bool
) -> dict[str, Any]:
    """Set what the wire has a place for; the others are returned."""
    others = {name: value for name in _NEVER_SENT if (value := getattr(properties, name)) is not None}
    for name, is_native in _SENT.items():
        value = getattr(properties, name)
        if value is None:
            continue
        if is_native(value) and (name != "expiration" or keeps_expiration):
            setattr(content, name, value)
        else:
            others[name] = value
    if properties.routing_key is not None and (properties.exchange, properties.routing_key) != route:
        others["routing_key"], others["exchange"] = properties.routing_key, properties.exchange
    return others


def is_expiration(text: str) -> bool:
    """Whether the broker takes it: whole milliseconds as text, at most ten years; anything else closes the channel."""
    return text.isascii() and text.isdigit() and len(text) <= 12 and int(text) <= MAX_DELAY_MS  # noqa: PLR2004


def _is_short(text: str) -> bool:
    if len(text) <= _MAX_OCTET and text.isascii():
        return True
    try:
        return len(text.encode()) <= _MAX_OCTET
    except UnicodeEncodeError:
        return False


def _is_reply_to(text: str) -> bool:
    return _is_short(text) and not text.startswith(_PSEUDO_REPLY_TO)


def _is_timestamp(seconds: int) -> bool:
    return 0 <= seconds < _MAX_TIMESTAMP


_NEVER_SENT: Final = ("user_id", "delivery_mode", "trace_id")
_SENT: Final[dict[str, Callable[[Any], bool]]] = {
    "type": _is_short,
    "correlation_id": _is_short,
    "app_id": _is_short,
    "content_encoding": _is_short,
    "reply_to": _is_reply_to,
    "expiration": is_expiration,
    "timestamp": _is_timestamp,
}
"""Properties the wire has a place for, and whether it takes a value."""


def bounded_history(history: tuple[Attempt, ...], limit: int = MAX_HISTORY_BYTES) -> str | None:
    """The history as JSON of at most `limit` bytes: tracebacks go first, then texts are cut, then the oldest go."""
    entries = [wire.attempt_document(entry) for entry in history]
    text = _history_text(entries)
    for shorten in (_without_traceback, _with_short_text):
        for place, entry in enumerate(entries):
            if len(text) <= limit:
                return text
            entries[place] = shorten(entry)
            text = _history_text(entries)
    while len(text) > limit and entries:
        del entries[0]
        text = _history_text(entries)
    return text if entries else None


def _history_text(entries: list[dict[str, Any]]) -> str:
    return json.dumps(entries, separators=(",", ":"))


def _without_traceback(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != "traceback"}


def _with_short_text(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: cut(value, _MAX_OLD_TEXT_BYTES) if isinstance(value, str) else value for name, value in entry.items()}


def _put_original(headers: dict[str, Any], message: Message) -> None:
    """The stretch in which the first body differs: usually the digits of an attempt number."""
    body, original = message.body, message.original_body
    limit = min(len(body), len(original))
    start = _common(body, original, limit)
    end = _common(body[::-1], original[::-1], limit - start)
    stretch = original[start : len(original) - end]
    if len(stretch) <= MAX_PATCH_BYTES:
        headers[HEADER_ORIGINAL] = {"start": start, "end": end, "bytes": stretch}


def keeps_original(message: Message) -> bool:
    """Whether the first body survives beside the rewritten one."""
    if message.original is None:
        return True
    headers: dict[str, Any] = {}
    _put_original(headers, message)
    return bool(headers)


def _common(left: bytes, right: bytes, limit: int) -> int:
    """How many leading bytes are equal, at most `limit`."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


# ---------------------------------------------------------------------------------------------------- reading


def from_wire(header: bytes, body: bytes, *, exchange: str, routing_key: str) -> Arrived:
    """The message of one delivery. Never raises: a content header that cannot be read is as if it were not there."""
    plain = _plain(header, body, (exchange, routing_key)) if header.startswith(_PLAIN_FLAGS) else None
    if plain is not None:
        return Arrived(message=plain)
    try:
        content = read_content(header)
    except Unreadable:
        content = Content()
    headers = content.headers or {}
    own = {name: headers.pop(name) for name in _FIELDS.intersection(headers)}
    for name in VOLATILE.intersection(headers):
        del headers[name]
    rest = _rest(own[HEADER_REST]) if HEADER_REST in own else {}
    if "headers" in rest:
        headers.update(rest["headers"])
        own.update({name: headers.pop(name) for name in _FIELDS.intersection(headers)})
    return Arrived(
        message=_message(content, body, own=own, rest=rest, route=_route(own, (exchange, routing_key))),
        history=_history(own[HEADER_HISTORY]) if HEADER_HISTORY in own else (),
        due_at=_whole(own.get(HEADER_DUE_AT)),
        deaths=headers.get("x-death"),
    )


_PLAIN_FLAGS: Final = write_content(
    Content(content_type="", headers={"a": 1}, delivery_mode=_PERSISTENT, message_id="")
)[:2]
_PLAIN_TABLE: Final = table({HEADER_PUBLISHED_AT: 2**40})[:-8]
_plain_time: Final = struct.Struct(">q").unpack_from


def _plain(header: bytes, body: bytes, route: tuple[str, str]) -> Message | None:
    """A message as most of redrive's own are: a content type, an id that is the key, when it was published, and nothing
    else. It is read a good deal faster than by going through all that might be there; None: it is not one.
    """
    if len(header) <= len(_PLAIN_FLAGS):
        return None
    end = 3 + header[2]
    at = end + len(_PLAIN_TABLE)
    id_at = at + 10
    if header[end:at] != _PLAIN_TABLE or len(header) < id_at or id_at + header[id_at - 1] != len(header):
        return None
    (published_at,) = _plain_time(header, at)
    try:
        message_id, content_type = header[id_at:].decode(), header[3:end].decode()
    except UnicodeDecodeError:
        return None
    if published_at < 0 or not message_id.strip():
        return None
    return Message(
        id=message_id,
        body=body,
        content_type=content_type,
        key=message_id,
        published_at=published_at,
        properties=_of_route(route),
    )


def _message(
    content: Content, body: bytes, *, own: dict[str, Any], rest: dict[str, Any], route: tuple[str, str]
) -> Message:
    headers = content.headers or NO_HEADERS
    message_id = rest.get("id", content.message_id)
    published_at = _whole(own.get(HEADER_PUBLISHED_AT))
    if message_id is None:
        message_id, key = _anonymous(content, headers, body), None
    elif HEADER_KEY in own:
        key = _text(own[HEADER_KEY])
    else:
        key = idempotency_key(None, message_id)
    priority = own.get(HEADER_PRIORITY, content.priority)
    return Message(
        id=message_id,
        body=body,
        content_type=rest.get("content_type", content.content_type),
        key=key,
        tenant=_text(own.get(HEADER_TENANT)),
        priority=priority if type(priority) is int else None,
        published_at=_whole((content.timestamp or 0) * 1_000) or 0 if published_at is None else published_at,
        expires_at=_whole(own.get(HEADER_EXPIRES_AT)),
        headers=headers,
        properties=_properties(content, rest.get("properties"), route, is_ours=published_at is not None),
        original=_original(own[HEADER_ORIGINAL], body) if HEADER_ORIGINAL in own else None,
    )


_BY_ROUTE: dict[tuple[str, str], Properties] = {}
_MAX_ROUTES: Final = 1_000


def _properties(content: Content, others: Any, route: tuple[str, str], *, is_ours: bool) -> Properties:
    plain = (
        content.correlation_id is None
        and content.type is None
        and content.reply_to is None
        and content.app_id is None
        and content.user_id is None
        and content.timestamp is None
        and content.expiration is None
        and content.content_encoding is None
    )
    mode = None if is_ours else content.delivery_mode
    if plain and others is None and mode is None:
        return _of_route(route)
    set_: dict[str, Any] = {
        "type": content.type,
        "correlation_id": content.correlation_id,
        "reply_to": content.reply_to,
        "app_id": content.app_id,
        "user_id": content.user_id,
        "content_encoding": content.content_encoding,
        "timestamp": content.timestamp,
        "expiration": content.expiration,
        "delivery_mode": mode,
        "exchange": route[0],
        "routing_key": route[1],
    }
    return Properties(**{**set_, **(others or {})})


def _of_route(route: tuple[str, str]) -> Properties:
    found = _BY_ROUTE.get(route)
    if found is None:
        if len(_BY_ROUTE) >= _MAX_ROUTES:
            _BY_ROUTE.clear()
        found = _BY_ROUTE[route] = Properties(exchange=route[0], routing_key=route[1])
    return found


def _anonymous(content: Content, headers: Mapping[str, HeaderValue], body: bytes) -> str:
    """An id for a message that has none: what it says. The same at every delivery; twins share it, which is why it is
    no idempotency key.
    """
    says = (
        sorted((name, repr(value)) for name, value in user_headers(headers).items()),
        content.type, content.correlation_id, content.reply_to, content.app_id, content.timestamp,
        content.content_type, content.content_encoding,
    )  # fmt: skip
    digest = hashlib.sha256(body)
    digest.update(repr(says).encode("utf-8", "surrogatepass"))
    return f"{_ANONYMOUS}{digest.hexdigest()[:32]}"


def _rest(text: Any) -> dict[str, Any]:
    """The parts of the rest that are what they should be."""
    try:
        loaded = json.loads(text)
        if not isinstance(loaded, dict):
            return {}
        found = {name: loaded[name] for name in ("id", "content_type") if isinstance(loaded.get(name), str)}
        if isinstance(loaded.get("headers"), dict):
            found["headers"] = {name: wire.untagged(value) for name, value in loaded["headers"].items()}
        if isinstance(loaded.get("properties"), dict):
            found["properties"] = _checked_properties(loaded["properties"])
    except (TypeError, ValueError, RecursionError, InvalidMessageError):
        return {}
    return found


def _checked_properties(document: dict[str, Any]) -> dict[str, Any]:
    numbers = {"delivery_mode", "timestamp"}
    return {
        name: value
        for name, value in document.items()
        if name in _PROPERTY_NAMES
        if (type(value) is int if name in numbers else isinstance(value, str | None))
    }


def _history(text: Any) -> tuple[Attempt, ...]:
    """The history, if it is one from beginning to end."""
    if not isinstance(text, str) or len(text) > MAX_HISTORY_BYTES:
        return ()
    try:
        entries = json.loads(text)
        if isinstance(entries, list) and all(map(_is_entry, entries)):
            return tuple(map(wire.attempt_from_document, entries))
    except (ValueError, RecursionError, InvalidMessageError, SchemaTooNewError):
        pass
    return ()


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and all(
        type(entry.get(name)) is int if name in _COUNTS else isinstance(entry.get(name), kinds)
        for name, kinds in _ENTRY.items()
    )


_COUNTS: Final = frozenset({"attempt", "at"})
_ENTRY: Final[dict[str, Any]] = {
    "attempt": int,
    "at": int,
    "outcome": str,
    "duration_ms": int | None,
    "next_delay_ms": int | None,
    **dict.fromkeys(("error_code", "error_type", "error_text", "traceback", "worker"), str | None),
}
"""Fields of a history entry and their kinds."""


def _original(patch: Any, body: bytes) -> bytes | None:
    """The first body; None where the header is not what `_put_original` writes."""
    if not isinstance(patch, dict):
        return None
    start, end, stretch = _whole(patch.get("start")), _whole(patch.get("end")), patch.get("bytes")
    if start is None or end is None or start + end > len(body) or not isinstance(stretch, bytes):
        return None
    return body[:start] + stretch + body[len(body) - end :]


def _route(own: dict[str, Any], route: tuple[str, str]) -> tuple[str, str]:
    match own.get(HEADER_ROUTE):
        case [str() as exchange, str() as routing_key]:
            return exchange, routing_key
        case _:
            return route


def _whole(value: Any) -> int | None:
    """None also for what no store has room for: a timestamp that somebody wrote in nanoseconds."""
    return value if type(value) is int and 0 <= value < _MAX_TIMESTAMP else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
