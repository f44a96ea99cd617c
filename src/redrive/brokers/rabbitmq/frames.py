"""Frames of AMQP 0-9-1 that pass once per message, as bytes. The rare ones are the client's business."""

from __future__ import annotations

import struct
from typing import Final

from redrive.brokers.rabbitmq.tables import short_string

FRAME_END: Final = 0xCE
OVERHEAD: Final = 8
"""Bytes of a frame around its payload: type, channel, size, end."""
CONTENT_PREFIX: Final = 12
"""Bytes of a content header before its flags: class, weight, body size."""

METHOD, HEADER, BODY = 1, 2, 3
"""Types of frames."""

DELIVER, RETURN, ACK, NACK = 60 << 16 | 60, 60 << 16 | 50, 60 << 16 | 80, 60 << 16 | 120
_PUBLISH: Final = 60 << 16 | 40

_MULTIPLE, _REQUEUE, _MANDATORY = 1, 2, 1

_ack: Final = struct.Struct(">BHIIQBB").pack
_frame_head: Final = struct.Struct(">BHI").pack
_content_head: Final = struct.Struct(">BHIHHQ").pack
_END: Final = bytes((FRAME_END,))
_BASIC: Final = 60
_ACK_SIZE: Final = 13


def ack(channel: int, tag: int, *, multiple: bool = False) -> bytes:
    """basic.ack"""
    return _ack(METHOD, channel, _ACK_SIZE, ACK, tag, _MULTIPLE if multiple else 0, FRAME_END)


def nack(channel: int, tag: int, *, requeue: bool) -> bytes:
    """basic.nack of one delivery"""
    return _ack(METHOD, channel, _ACK_SIZE, NACK, tag, _REQUEUE if requeue else 0, FRAME_END)


def publish_method(channel: int, exchange: str, routing_key: str) -> bytes:
    """basic.publish, mandatory: what no queue takes is returned. The content follows."""
    where = short_string(exchange) + short_string(routing_key)
    return _method(channel, struct.pack(">IH", _PUBLISH, 0) + where + bytes((_MANDATORY,)))


def content(channel: int, header: bytes, body: bytes, *, max_body: int) -> bytes:
    """Content header and body frames. `header`: flags and values; `max_body`: most bytes of one frame's payload."""
    size = len(body)
    head = _content_head(HEADER, channel, CONTENT_PREFIX + len(header), _BASIC, 0, size) + header + _END
    if size <= max_body:
        return head + _frame_head(BODY, channel, size) + body + _END if size else head
    pieces = [head]
    for start in range(0, size, max_body):
        piece = body[start : start + max_body]
        pieces += (_frame_head(BODY, channel, len(piece)), piece, _END)
    return b"".join(pieces)


def _method(channel: int, payload: bytes) -> bytes:
    return _frame_head(METHOD, channel, len(payload)) + payload + _END
