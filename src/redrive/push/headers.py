"""A delivery as the headers of an HTTP request. Nothing a publisher wrote can become another header.

| header | holds |
|---|---|
| `content-type`, `content-encoding` | the message's own; `application/octet-stream` where it has none |
| `webhook-id` | the message id: the same in every attempt, so it is the key to tell repeats by |
| `webhook-timestamp`, `webhook-signature` | unix seconds of this request; the signature, where there is a secret |
| `redrive-queue`, `redrive-attempt`, `redrive-max-attempts` | this delivery |
| `redrive-key`, `redrive-tenant`, `redrive-type`, `redrive-correlation-id`, `redrive-reply-to`, `redrive-app-id`, \
`redrive-routing-key`, `redrive-exchange`, `redrive-timestamp`, `redrive-published-at`, `redrive-priority` | the \
message's properties, where it has them |
| `traceparent`, `tracestate` | the message's headers of these names (W3C Trace Context), where they are well formed |
| `redrive-header-<name>` | every other header of the user's |
| `redrive-headers-omitted` | how many properties and headers of the message did not fit |

Names and values are percent-encoded (UTF-8) where HTTP does not allow their characters; `%` is `%25`. Numbers and
booleans are text, an instant is RFC 3339, bytes are `:base64:`, lists and tables are JSON, None is empty.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final
from urllib.parse import quote

from redrive.core.message import HeaderValue, Message, user_headers
from redrive.core.units import UnixMs
from redrive.ingest.schemes import StandardWebhooks, is_event_id

MAX_HEADERS: Final = 64
MAX_VALUE_BYTES: Final = 4_096
MAX_TOTAL_BYTES: Final = 8_192
"""Of all that came with the message. Common servers refuse more than 16 kB of headers, some more than 8."""

MAX_SHORT_BYTES: Final = 255
DEFAULT_TYPE: Final = "application/octet-stream"

_NAME_CHARS: Final = "!#$&'*+-.^_`|~"
"""What a header's name may hold beside letters and digits (RFC 9110 §5.6.2), without the percent sign."""
_VALUE_CHARS: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_TRACE: Final = {
    "traceparent": re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII),
    "tracestate": re.compile(r"[\x20-\x7e]{1,512}", re.ASCII),
}
_PROPERTIES: Final = (
    "type", "correlation_id", "reply_to", "app_id", "routing_key", "exchange", "timestamp",
)  # fmt: skip


def request_headers(
    message: Message, *, queue: str, attempt: int, max_attempts: int, now: UnixMs, keys: Sequence[bytes] = ()
) -> dict[str, str]:
    """All headers of the request, names in lower case. `keys`: HMAC keys; each makes one signature."""
    webhook_id, timestamp = _webhook_id(message.id), now // 1_000
    headers = {
        "content-type": _short(message.content_type) or DEFAULT_TYPE,
        "webhook-id": webhook_id,
        "webhook-timestamp": str(timestamp),
        "redrive-queue": _clean(queue),
        "redrive-attempt": str(attempt),
        "redrive-max-attempts": str(max_attempts),
        **_fitting([*_facts(message), *_users_own(message)]),
    }
    encoding = _short(message.properties.content_encoding)
    if encoding:
        headers["content-encoding"] = encoding
    if keys:
        headers["webhook-signature"] = StandardWebhooks().sign(
            message.body, event_id=webhook_id, timestamp=timestamp, keys=keys
        )
    return headers


def _webhook_id(message_id: str) -> str:
    """The id as a header can carry it; what is too long is its hash, which is as good for telling repeats."""
    shown = quote(message_id, safe=_NAME_CHARS + "/:=@,;", errors="replace")
    return shown if is_event_id(shown) else hashlib.sha256(message_id.encode("utf-8", "surrogatepass")).hexdigest()


def _short(value: str | None) -> str:
    """A value that servers act upon: as it is, or not at all where it is absurd."""
    text = _clean(value or "")
    return text if len(text) <= MAX_SHORT_BYTES else ""


def _facts(message: Message) -> Iterator[tuple[str, str]]:
    properties = message.properties
    pairs = [
        ("key", message.key),
        ("tenant", message.tenant),
        ("priority", message.priority),
        ("published-at", message.published_at or None),
        *((name.replace("_", "-"), getattr(properties, name)) for name in _PROPERTIES),
    ]
    return ((f"redrive-{name}", _clean(_text(value))) for name, value in pairs if value is not None)


def _users_own(message: Message) -> Iterator[tuple[str, str]]:
    for name, value in user_headers(message.headers).items():
        low = name.lower()
        if low in _TRACE and isinstance(value, str) and _TRACE[low].fullmatch(value):
            yield low, value
        else:
            yield f"redrive-header-{quote(low, safe=_NAME_CHARS, errors='replace')}", _clean(_text(value))


def _fitting(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """As many as a server bears, first come first served; one too large does not keep out those behind it."""
    headers: dict[str, str] = {}
    total = omitted = 0
    for name, text in pairs:
        size = len(name) + len(text)
        if len(text) > MAX_VALUE_BYTES or total + size > MAX_TOTAL_BYTES or len(headers) >= MAX_HEADERS:
            omitted += 1
        else:
            total += size
            headers[name] = text
    return headers if not omitted else {**headers, "redrive-headers-omitted": str(omitted)}


def _text(value: HeaderValue) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case bytes():
            return f":{base64.b64encode(value).decode('ascii')}:"
        case datetime():
            return value.isoformat()
        case list() | dict():
            return json.dumps(value, default=_text, ensure_ascii=True)
        case _:
            return str(value)


def _clean(text: str) -> str:
    """One line of printable ASCII without blanks at its ends, which HTTP would strip."""
    encoded = quote(text, safe=_VALUE_CHARS, errors="replace")
    bare = encoded.strip(" ")
    lead = len(encoded) - len(encoded.lstrip(" "))
    trail = len(encoded) - len(encoded.rstrip(" ")) if bare else 0
    return "%20" * lead + bare + "%20" * trail
