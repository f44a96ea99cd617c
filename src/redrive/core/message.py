"""A message and its headers as frozen values; the original bytes are kept exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Final, TypeAlias

from redrive.core.units import UnixMs
from redrive.core.values import value

HeaderValue: TypeAlias = (
    "bool | int | float | Decimal | datetime | str | bytes | list[HeaderValue] | dict[str, HeaderValue] | None"
)
"""Every kind an AMQP 0-9-1 table can hold. Kinds survive storage: true stays a bool, bytes stay bytes."""

Headers: TypeAlias = "Mapping[str, HeaderValue]"

NO_HEADERS: Final[Headers] = MappingProxyType({})


def _no_headers() -> Headers:
    return NO_HEADERS


OWN_HEADER_PREFIX: Final = "x-redrive"
"""Every header redrive writes starts with this (`x-redrive-…`, `x-redriven-…`)."""

HEADER_LETTER: Final = "x-redrive-letter"
"""Id of the dead letter this copy was redriven from; its success closes that letter."""
HEADER_FIRST_FAILED_AT: Final = "x-redrive-first-failed-at"
"""UnixMs of the first failure of the first letter in the chain; survives every redrive."""
HEADER_REDRIVEN_AT: Final = "x-redriven-at"
HEADER_REDRIVEN_BY: Final = "x-redriven-by"
HEADER_REDRIVEN_COUNT: Final = "x-redriven-count"
HEADER_REDRIVEN_BATCH: Final = "x-redriven-batch"
"""Instant (RFC 3339), actor, how many times, and redrive job id."""

OWN_HEADER_PREFIXES: Final = ("x-redrive-", "x-redriven-")

BROKER_HEADERS: Final = frozenset({"x-death", "x-delivery-count", "x-acquired-count", "x-original-expiration"})
BROKER_HEADER_PREFIXES: Final = ("x-first-death-", "x-last-death-", "x-opt-")
"""Headers a broker writes for itself. They are never sent back to one (RabbitMQ, x-death): it would go on
counting from them, or drop the message as a cycle. Other names that start with `x-` are the user's.
"""


def is_broker_header(name: str) -> bool:
    """Whether this header is the broker's own, to be left out of every copy that is published."""
    return name.lower() in BROKER_HEADERS or name.lower().startswith(BROKER_HEADER_PREFIXES)


def is_own_header(name: str) -> bool:
    """Whether this header is redrive's own."""
    return name.lower().startswith(OWN_HEADER_PREFIXES)


def whole_number(value: object) -> int | None:
    """A count as headers carry it: a whole number from 0, or its digits as text or bytes; None for anything else."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


_MAX_DIGITS: Final = 18
"""Longer ones are no count, and slow to read."""


def without_own(headers: Headers) -> Headers:
    """What anyone may publish: the headers without redrive's own. A message passed on would else carry the link of
    the one it came from, and a forged link would close somebody's dead letter.
    """
    if not any(map(is_own_header, headers)):
        return headers
    return {name: value for name, value in headers.items() if not is_own_header(name)}


def user_headers(headers: Headers) -> Headers:
    """Only the headers that are the user's: neither a broker's nor redrive's own."""
    return {name: value for name, value in headers.items() if not is_broker_header(name) and not is_own_header(name)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """The rarely set properties of a message (AMQP 0-9-1 names). Carried unchanged through retry, dead-letter
    and redrive. `timestamp` is the producer's own, in whole seconds as AMQP has it.
    """

    type: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    app_id: str | None = None
    user_id: str | None = None
    content_encoding: str | None = None
    delivery_mode: int | None = None
    timestamp: int | None = None
    expiration: str | None = None
    trace_id: str | None = None
    routing_key: str | None = None
    exchange: str | None = None


NO_PROPERTIES: Final = Properties()


@value
class Message:
    """What was published.

    `id` names the message; two copies of one message share it. `key` is the idempotency key: what the producer
    gave, else its message id; None (absent, empty or blank) switches idempotency off for this message.
    `priority`: smaller is more urgent, 1 the most; None (or 0) is served before every prioritised message, as
    BullMQ does. `expires_at`: past it the message is dead-lettered as EXPIRED instead of handled.
    `original`: the body as first published, where a retry rewrote it (the attempt number in it); else None.
    """

    id: str
    body: bytes
    content_type: str | None = None
    key: str | None = None
    tenant: str | None = None
    priority: int | None = None
    published_at: UnixMs = 0
    expires_at: UnixMs | None = None
    headers: Headers = field(default_factory=_no_headers)
    properties: Properties = NO_PROPERTIES
    original: bytes | None = None

    @property
    def original_body(self) -> bytes:
        """The bytes as the producer sent them."""
        return self.body if self.original is None else self.original


def idempotency_key(key: str | None, message_id: str | None) -> str | None:
    """The key that scopes idempotency: the explicit key, else the producer's message id; blank counts as absent."""
    for candidate in (key, message_id):
        if candidate is not None and candidate.strip():
            return candidate
    return None
