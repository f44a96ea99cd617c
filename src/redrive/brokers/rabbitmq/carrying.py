"""Carrying: a message as it is passed on from queue to queue of a bundle, its bytes unchanged as far as that may be.

What has to change, and why:
- `CC` and `BCC` would route copies again, `user_id` would be refused, a reply address of the broker's own is not ours:
  such a message is written anew, as a retry's copy is (see `headers`);
- what a quorum queue has counted for the queue it comes from (`x-delivery-count`) is no part of the message;
- exchange and routing key under which it came to its queue are kept in a header (`x-redrive-route`), where they are
  others than those of the queue itself.
"""

from __future__ import annotations

import struct
from typing import Final

from redrive.brokers.rabbitmq.headers import HEADER_ROUTE, HEADER_TENANT, VOLATILE, Extra, to_wire
from redrive.brokers.rabbitmq.pushed import Pushed
from redrive.brokers.rabbitmq.tables import (
    Content,
    Unreadable,
    Unwritable,
    read_content,
    with_field,
    write_content,
)
from redrive.core.policy.fairness import NO_TENANT, group_of

_SUSPICIOUS: Final = (b"CC", *(name.encode() for name in sorted(VOLATILE)))
_ROUTE: Final = HEADER_ROUTE.encode()
_FORGED: Final = VOLATILE | {HEADER_ROUTE}
"""What nobody but a sorter and a queue may have said."""
_USER_ID, _REPLY_TO = 1 << 4, 1 << 9
_PSEUDO: Final = "amq.rabbitmq."
_TENANT: Final = HEADER_TENANT.encode()
_TENANT_FIELD: Final = bytes((len(_TENANT),)) + _TENANT + b"S"
_u16: Final = struct.Struct(">H").unpack_from
_u32: Final = struct.Struct(">I").unpack_from


def group_in(pushed: Pushed) -> str:
    """The group of tenants the message takes its turns with. Never raises."""
    header = pushed.header
    at = header.find(_TENANT)
    if at < 0 and b"x-redrive-rest" not in header:
        return NO_TENANT
    start = at + len(_TENANT) + 5
    if header[at - 1 : start - 4] != _TENANT_FIELD or header.find(_TENANT, start) >= 0:
        # In the rest, twice, within another value, or no text.
        return group_of(pushed.read().message.tenant)
    (size,) = _u32(header, start - 4)
    try:
        return group_of(header[start : start + size].decode())
    except UnicodeDecodeError:
        return group_of(pushed.read().message.tenant)


def carried(pushed: Pushed, *, queue: str, inner: frozenset[str], limit: int) -> bytes:
    """Its content header for the next queue. `queue`: the fair queue; `inner`: the other names of its bundle. `limit`:
    most bytes the connection takes.
    """
    header = pushed.header
    exchange, key = pushed.route
    is_passed_on = not exchange and key in inner
    (flags,) = _u16(header, 0)
    if (
        flags & (_USER_ID | _REPLY_TO)
        or any(name in header for name in _SUSPICIOUS)
        or (not is_passed_on and _ROUTE in header)
    ):
        header = _cleaned(pushed, queue=queue, limit=limit, without=VOLATILE if is_passed_on else _FORGED)
    if not is_passed_on and (exchange, key) != ("", queue):
        marked = with_field(header, HEADER_ROUTE, [exchange, key])
        header = marked if len(marked) <= limit else header
    return header


def _cleaned(pushed: Pushed, *, queue: str, limit: int, without: frozenset[str]) -> bytes:
    try:
        content = read_content(pushed.header)
    except Unreadable:
        return pushed.header
    headers = content.headers or {}
    if _may_not_pass(content, headers):
        arrived = pushed.read()
        extra = Extra(history=arrived.history, due_at=arrived.due_at, keeps_expiration=True)
        return to_wire(arrived.message, exchange="", routing_key=queue, extra=extra, limit=limit)
    if not without.intersection(headers):
        return pushed.header
    content.headers = {name: value for name, value in headers.items() if name not in without}
    try:
        return write_content(content)
    except Unwritable:
        return pushed.header


def _may_not_pass(content: Content, headers: dict[str, object]) -> bool:
    return (
        content.user_id is not None
        or (content.reply_to or "").startswith(_PSEUDO)
        or any(name.upper() in ("CC", "BCC") for name in headers)
    )
