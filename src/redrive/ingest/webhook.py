"""What the gateway hands to a `build` function, and what it wants back.

`build` turns a verified webhook into the message to enqueue. It is pure: everything it may need (the time, the trace
id) is in the `Webhook`. It refuses a body with `InvalidBody` (400) or `InvalidField` (422).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from redrive.core.message import HeaderValue
from redrive.core.units import UnixMs
from redrive.ingest.signatures import RawHeaders, Verified

MAX_KEY_CHARS: Final = 512
"""An idempotency key longer than this is refused: it is stored with every record."""


class InvalidBody(Exception):
    """The body is not what this gateway takes. The text goes to the sender; nothing was enqueued."""


class InvalidField(Exception):
    """One field of the body is absent or wrong. Name and text go to the sender; nothing was enqueued."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(field, text)
        self.field = field
        self.text = text


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A request whose signature held. `body` is the bytes as received; `verified` says by which secret."""

    source: str
    body: bytes
    headers: RawHeaders
    content_type: str | None
    trace_id: str
    received_at: UnixMs
    scheme: str
    verified: Verified


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The message to enqueue. `key` decides what is a duplicate: same key, same received bytes. `event_id` is what
    the answer calls the event.
    """

    key: str
    event_id: str
    body: bytes
    content_type: str | None = "application/json"
    type: str | None = None
    tenant: str | None = None
    headers: Mapping[str, HeaderValue] = field(default_factory=dict)


Build: TypeAlias = Callable[[Webhook], Envelope]


def raw_message(*, id_field: str | None = None) -> Build:
    """A build function that enqueues the received bytes unchanged, whatever they are (an empty body too).

    The key is `<source>:<id>`, the id being the scheme's own (webhook-id, X-GitHub-Delivery), else the string in
    `id_field` of a JSON object (Stripe: `id_field="id"`), else the SHA-256 of the body, so that equal bytes are one
    event.
    """

    def build(webhook: Webhook) -> Envelope:
        event_id = webhook.verified.event_id
        if event_id is None and id_field is not None:
            event_id = _id_in(webhook.body, id_field)
        if event_id is None:
            event_id = body_digest(webhook.body)
        return Envelope(
            key=f"{webhook.source}:{event_id}",
            event_id=event_id,
            body=webhook.body,
            content_type=webhook.content_type,
            headers={"x-webhook-source": webhook.source},
        )

    return build


def body_digest(body: bytes) -> str:
    """SHA-256 of the bytes as received, in hex: what makes another body under the same key a conflict."""
    return hashlib.sha256(body).hexdigest()


def json_fields(body: bytes) -> dict[str, msgspec.Raw]:
    """The members of a JSON object, values as the very bytes the sender wrote (numbers keep their digits).

    Raises `InvalidBody` for anything that is not one UTF-8 JSON object, however deeply nested or broken.
    """
    try:
        body.decode("utf-8")
        return _OBJECT.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidBody("The body is not a JSON object.") from None


def json_text(fields: Mapping[str, msgspec.Raw], name: str) -> str | None:
    """A member that must be a string; None where it is absent or null. Raises `InvalidField`."""
    value = fields.get(name)
    if value is None or bytes(value) == b"null":
        return None
    try:
        text = _TEXT.decode(value)
    except msgspec.MsgspecError:
        raise InvalidField(name, f"{name} must be a string.") from None
    return text


_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT: Final = msgspec.json.Decoder(str)


def _id_in(body: bytes, id_field: str) -> str:
    text = json_text(json_fields(body), id_field)
    if text is None or not is_identifier(text):
        raise InvalidField(id_field, f"{id_field} is required: the sender's id of the event.")
    return text


def is_identifier(text: str, *, limit: int = MAX_KEY_CHARS) -> bool:
    """Whether text can stand as an id or key: not blank, printable, at most `limit` characters."""
    return bool(text.strip()) and len(text) <= limit and text.isprintable()
