"""AMQP 0-9-1 header tables and content headers as bytes, every kind kept.

The client has a codec of its own, but one that makes whole numbers of doubles, drops the zeros of decimals and cannot
write floats. Types: RabbitMQ's own list (its errata to the specification), which is signed where the two differ.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from redrive.core.message import HeaderValue

MAX_SHORT_BYTES: Final = 255
MAX_DEPTH: Final = 64
"""Nested deeper than anything a client may send on (`wire.MAX_HEADER_DEPTH`); a guard against recursion."""

_INT32: Final = 2**31
_INT64: Final = 2**63
_MAX_SECONDS: Final = 253_402_300_799
"""The last second of the year 9999: no datetime is later."""
_MAX_SCALE: Final = 255
_INT32_DIGITS: Final = 10


class Unwritable(Exception):
    """No AMQP table holds this value exactly."""


class Unreadable(Exception):
    """These bytes are no table."""


# ---------------------------------------------------------------------------------------------------- writing

_pack_u32: Final = struct.Struct(">I").pack
_pack_string: Final = struct.Struct(">cI").pack
_pack_int: Final = struct.Struct(">ci").pack
_pack_long: Final = struct.Struct(">cq").pack
_pack_double: Final = struct.Struct(">cd").pack
_pack_decimal: Final = struct.Struct(">cBi").pack
_pack_time: Final = struct.Struct(">cQ").pack


def short_string(text: str) -> bytes:
    """Length and bytes. Raises `Unwritable` over 255 bytes or where the text is no UTF-8."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise Unwritable from error
    if len(data) > MAX_SHORT_BYTES:
        raise Unwritable
    return bytes((len(data),)) + data


def table(values: Mapping[str, HeaderValue]) -> bytes:
    """A table with its length. Raises `Unwritable`."""
    data = b"".join([short_string(name) + field(value) for name, value in values.items()])
    return _pack_u32(len(data)) + data


def field(value: HeaderValue) -> bytes:  # noqa: C901 - one line per kind
    """One value with its type. Raises `Unwritable` where reading it back would give something else."""
    kind = type(value)
    if kind is str:
        try:
            data = value.encode()  # type: ignore[union-attr]
        except UnicodeEncodeError as error:
            raise Unwritable from error
        return _pack_string(b"S", len(data)) + data
    if kind is int:
        return _integer(value)  # type: ignore[arg-type]
    if kind is bool:
        return b"t\x01" if value else b"t\x00"
    if value is None:
        return b"V"
    if kind is float:
        return _pack_double(b"d", value)
    if kind is bytes:
        return _pack_string(b"x", len(value)) + value  # type: ignore[arg-type, operator]
    if kind is list:
        data = b"".join([field(item) for item in value])  # type: ignore[union-attr]
        return _pack_string(b"A", len(data)) + data
    if kind is dict:
        return b"F" + table(value)  # type: ignore[arg-type]
    if kind is Decimal:
        return _decimal(value)  # type: ignore[arg-type]
    if isinstance(value, datetime):
        return _time(value)
    raise Unwritable


def _integer(value: int) -> bytes:
    if -_INT32 <= value < _INT32:
        return _pack_int(b"I", value)
    if -_INT64 <= value < _INT64:
        return _pack_long(b"l", value)
    raise Unwritable


def _decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or not -_MAX_SCALE <= exponent <= 0:
        raise Unwritable
    if len(digits) > _INT32_DIGITS:
        raise Unwritable
    number = int("".join(map(str, digits)) or "0")
    if number >= _INT32 or (sign and not number):
        raise Unwritable
    return _pack_decimal(b"D", -exponent, -number if sign else number)


def _time(value: datetime) -> bytes:
    # Whole seconds of UTC are all that fits; another zone would come back as another value of the same instant.
    if value.tzinfo is not UTC or value.microsecond or value.fold:
        raise Unwritable
    seconds = int(value.timestamp())
    if seconds < 0:
        raise Unwritable
    return _pack_time(b"T", seconds)


# ---------------------------------------------------------------------------------------------------- reading

_u32: Final = struct.Struct(">I").unpack_from
_i32: Final = struct.Struct(">i").unpack_from
_i64: Final = struct.Struct(">q").unpack_from
_u64: Final = struct.Struct(">Q").unpack_from
_u16: Final = struct.Struct(">H").unpack_from
_double: Final = struct.Struct(">d").unpack_from
_scaled: Final = struct.Struct(">Bi").unpack_from

_FIXED: Final[dict[int, tuple[Any, int]]] = {
    ord("b"): (struct.Struct(">b").unpack_from, 1),
    ord("B"): (struct.Struct(">B").unpack_from, 1),
    ord("s"): (struct.Struct(">h").unpack_from, 2),
    ord("U"): (struct.Struct(">h").unpack_from, 2),
    ord("u"): (_u16, 2),
    ord("I"): (_i32, 4),
    ord("i"): (_u32, 4),
    ord("l"): (_i64, 8),
    ord("L"): (_i64, 8),
    ord("f"): (struct.Struct(">f").unpack_from, 4),
    ord("d"): (_double, 8),
}

_STRING, _INTEGER, _LONG, _BOOL, _VOID = ord("S"), ord("I"), ord("l"), ord("t"), ord("V")
_BYTES, _LIST, _TABLE, _DECIMAL, _TIME = ord("x"), ord("A"), ord("F"), ord("D"), ord("T")


def read_table(data: bytes, at: int = 0) -> tuple[dict[str, Any], int]:
    """The table that starts at `at`, and where it ends. Raises `Unreadable`."""
    try:
        return _read_table(data, at, 0)
    except (struct.error, IndexError, ValueError, OverflowError, OSError) as error:
        raise Unreadable from error


def _read_table(data: bytes, at: int, depth: int) -> tuple[dict[str, Any], int]:
    (size,) = _u32(data, at)
    at += 4
    end = at + size
    if end > len(data) or depth > MAX_DEPTH:
        raise Unreadable
    values: dict[str, Any] = {}
    while at < end:
        length = data[at]
        start = at + 1
        at = start + length
        # A name that is no UTF-8 is shown with its bytes as surrogates: no other name turns into it.
        name = data[start:at].decode("utf-8", "surrogateescape")
        values[name], at = _read_field(data, at, depth)
    if at != end:
        raise Unreadable
    return values, end


def _read_field(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    kind = data[at]
    at += 1
    if kind == _STRING:
        (length,) = _u32(data, at)
        return _text(data[at + 4 : at + 4 + length], length), at + 4 + length
    if kind == _BOOL:
        return data[at] != 0, at + 1
    if kind == _VOID:
        return None, at
    if kind == _BYTES:
        (length,) = _u32(data, at)
        return _exact(data[at + 4 : at + 4 + length], length), at + 4 + length
    if kind == _TABLE:
        return _read_table(data, at, depth + 1)
    if kind == _LIST:
        return _read_list(data, at, depth + 1)
    if kind == _TIME:
        return _moment(*_u64(data, at)), at + 8
    if kind == _DECIMAL:
        scale, number = _scaled(data, at)
        return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale)), at + 5
    if kind in _FIXED:
        unpack, size = _FIXED[kind]
        return unpack(data, at)[0], at + size
    raise Unreadable


def _read_list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    (size,) = _u32(data, at)
    at += 4
    end = at + size
    if end > len(data) or depth > MAX_DEPTH:
        raise Unreadable
    items = []
    while at < end:
        item, at = _read_field(data, at, depth)
        items.append(item)
    return items, end


def _exact(data: bytes, length: int) -> bytes:
    if len(data) != length:
        raise Unreadable
    return data


def _text(data: bytes, length: int) -> str | bytes:
    try:
        return _exact(data, length).decode()
    except UnicodeDecodeError:
        return data


def _moment(seconds: int) -> datetime | int:
    # Some clients write milliseconds: a number is kept then, for no datetime is that late.
    return datetime.fromtimestamp(seconds, UTC) if seconds <= _MAX_SECONDS else seconds


# ------------------------------------------------------------------------------------------------ content headers

_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS, _DELIVERY_MODE = 1 << 15, 1 << 14, 1 << 13, 1 << 12
_PRIORITY, _CORRELATION_ID, _REPLY_TO, _EXPIRATION = 1 << 11, 1 << 10, 1 << 9, 1 << 8
_MESSAGE_ID, _TIMESTAMP, _TYPE, _USER_ID, _APP_ID = 1 << 7, 1 << 6, 1 << 5, 1 << 4, 1 << 3


@dataclass(slots=True, kw_only=True)
class Content:
    """The properties of one message as the wire has them; None: not set."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, Any] | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None


_BEFORE: Final = ((_CONTENT_TYPE, "content_type"), (_CONTENT_ENCODING, "content_encoding"))
_BETWEEN: Final = (
    (_CORRELATION_ID, "correlation_id"), (_REPLY_TO, "reply_to"), (_EXPIRATION, "expiration"),
    (_MESSAGE_ID, "message_id"),
)  # fmt: skip
_AFTER: Final = ((_TYPE, "type"), (_USER_ID, "user_id"), (_APP_ID, "app_id"))
_SHORT_PROPERTIES: Final = _CORRELATION_ID | _REPLY_TO | _EXPIRATION
_LATE_PROPERTIES: Final = _TYPE | _USER_ID | _APP_ID


def write_content(content: Content) -> bytes:  # noqa: C901 - one step per property
    """Flags and values, in the order of the specification. Raises `Unwritable`."""
    flags = 0
    pieces = [b""]
    for flag, name in _BEFORE:
        if (text := getattr(content, name)) is not None:
            flags |= flag
            pieces.append(short_string(text))
    if content.headers:
        flags |= _HEADERS
        pieces.append(table(content.headers))
    if content.delivery_mode is not None:
        flags |= _DELIVERY_MODE
        pieces.append(bytes((content.delivery_mode,)))
    if content.priority is not None:
        flags |= _PRIORITY
        pieces.append(bytes((content.priority,)))
    for flag, name in _BETWEEN:
        if (text := getattr(content, name)) is not None:
            flags |= flag
            pieces.append(short_string(text))
    if content.timestamp is not None:
        flags |= _TIMESTAMP
        pieces.append(struct.pack(">Q", content.timestamp))
    for flag, name in _AFTER:
        if (text := getattr(content, name)) is not None:
            flags |= flag
            pieces.append(short_string(text))
    pieces[0] = struct.pack(">H", flags)
    return b"".join(pieces)


def with_field(data: bytes, name: str, value: HeaderValue) -> bytes:
    """These flags and values with one more header behind the others, every other byte as it was. Bytes that are none
    stay as they are.
    """
    try:
        (flags,) = _u16(data, 0)
        at = 2
        for flag, _ in _BEFORE:
            if flags & flag:
                at += 1 + data[at]
        entry = short_string(name) + field(value)
        if not flags & _HEADERS:
            return struct.pack(">H", flags | _HEADERS) + data[2:at] + _pack_u32(len(entry)) + entry + data[at:]
        (size,) = _u32(data, at)
    except (struct.error, IndexError, Unwritable):
        return data
    end = at + 4 + size
    return data[:at] + _pack_u32(size + len(entry)) + data[at + 4 : end] + entry + data[end:]


def read_content(data: bytes) -> Content:
    """The properties that are set. Raises `Unreadable`."""
    try:
        return _read_content(data)
    except (struct.error, IndexError, ValueError, OverflowError, OSError) as error:
        raise Unreadable from error


def _read_content(data: bytes) -> Content:  # noqa: C901 - one step per property
    (flags,) = _u16(data, 0)
    at = 2
    content = Content()
    if flags & 1:
        raise Unreadable
    if flags & _CONTENT_TYPE:
        content.content_type, at = _short(data, at)
    if flags & _CONTENT_ENCODING:
        content.content_encoding, at = _short(data, at)
    if flags & _HEADERS:
        content.headers, at = _read_table(data, at, 0)
    if flags & _DELIVERY_MODE:
        content.delivery_mode = data[at]
        at += 1
    if flags & _PRIORITY:
        content.priority = data[at]
        at += 1
    if flags & _SHORT_PROPERTIES:
        at = _read_some(content, _BETWEEN[:3], data, place=(flags, at))
    if flags & _MESSAGE_ID:
        content.message_id, at = _short(data, at)
    if flags & _TIMESTAMP:
        (content.timestamp,) = _u64(data, at)
        at += 8
    if flags & _LATE_PROPERTIES:
        _read_some(content, _AFTER, data, place=(flags, at))
    return content


def _read_some(content: Content, names: tuple[tuple[int, str], ...], data: bytes, *, place: tuple[int, int]) -> int:
    flags, at = place
    for flag, name in names:
        if flags & flag:
            text, at = _short(data, at)
            setattr(content, name, text)
    return at


def _short(data: bytes, at: int) -> tuple[str, int]:
    start = at + 1
    end = start + data[at]
    if end > len(data):
        raise Unreadable
    return data[start:end].decode("utf-8", "surrogateescape"), end
