"""The signature schemes that come with redrive, each a value with the `Scheme` protocol.

| scheme | signed bytes | signature | signs a time |
|---|---|---|---|
| `TimestampedHmac` | `timestamp.body` | hex or base64, `sha256=` allowed | yes |
| `StandardWebhooks` | `id.timestamp.body` | `v1,base64`, several | yes |
| `GitHub` | `body` | `sha256=hex`, lower case | no |
| `Stripe` | `timestamp.body` | `t=…,v1=hex`, several `v1` | yes |

Weak spot of `GitHub`: nothing in the scheme says when a request was signed, and its delivery id is not signed, so
whoever has seen one request can send it again under a new id. Its receiver must bear that (a repeat under the same
id is a duplicate, as everywhere).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from redrive.core.units import Millis, UnixMs
from redrive.errors import ConfigurationError
from redrive.ingest.signatures import (
    MAX_SIGNATURES,
    RawHeaders,
    Refusal,
    Verified,
    base64_text,
    digests,
    header_values,
    matching,
    plain_key,
    signed_time,
    sole_header,
)

MAX_EVENT_ID_CHARS: Final = 255
"""Longer ids, and ids with blanks or control characters, are not taken from a header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampedHmac:
    """HMAC-SHA256 of `"{timestamp}.{raw body}"`.

    The signature is hex (either case) or base64 with padding, with or without `sha256=` in front.
    """

    timestamp_header: str = "x-signature-timestamp"
    signature_header: str = "x-signature"
    name: str = "hmac-sha256"

    def key(self, secret: str) -> bytes:
        """The secret's UTF-8 bytes."""
        return plain_key(secret)

    def verify(
        self, headers: RawHeaders, body: bytes, *, keys: Sequence[bytes], now: UnixMs, tolerance_ms: Millis
    ) -> Verified | Refusal:
        """See `Scheme.verify`."""
        text = sole_header(headers, self.timestamp_header, missing=Refusal.TIMESTAMP_MISSING)
        timestamp = signed_time(text, now=now, tolerance_ms=tolerance_ms)
        presented = sole_header(headers, self.signature_header)
        if isinstance(presented, Refusal):
            return presented
        if isinstance(timestamp, Refusal):
            return timestamp
        bare = presented.removeprefix("sha256=")
        # Hex in either case is one signature: many HMAC libraries print capitals.
        folded = bare.lower() if len(bare) == _HEX_CHARS else bare
        expected = [(d.hex(), base64_text(d)) for d in digests(keys, f"{text}.".encode("ascii"), body)]
        found = matching(expected, [folded])
        if found is None:
            return Refusal.SIGNATURE_MISMATCH
        return Verified(secret_index=found[0], signature=bare, timestamp=timestamp)


_HEX_CHARS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StandardWebhooks:
    """Standard Webhooks with symmetric keys: `whsec_…` secrets, `v1` signatures; others are passed over."""

    name: str = "standard-webhooks"

    def key(self, secret: str) -> bytes:
        """The bytes behind `whsec_<base64>`; raises `ConfigurationError` when they are not base64 or none."""
        text = secret.strip().removeprefix("whsec_")
        try:
            key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not key:
            raise ConfigurationError(
                "A Standard Webhooks secret is not base64.", hint="Write it as the sender shows it: whsec_ and base64."
            )
        return key

    def verify(
        self, headers: RawHeaders, body: bytes, *, keys: Sequence[bytes], now: UnixMs, tolerance_ms: Millis
    ) -> Verified | Refusal:
        """See `Scheme.verify`."""
        event_id = sole_header(headers, "webhook-id")
        text = sole_header(headers, "webhook-timestamp", missing=Refusal.TIMESTAMP_MISSING)
        presented = sole_header(headers, "webhook-signature")
        for value in (event_id, presented):
            if isinstance(value, Refusal):
                return value
        if not is_event_id(str(event_id)):
            return Refusal.SIGNATURE_UNREADABLE
        timestamp = signed_time(text, now=now, tolerance_ms=tolerance_ms)
        if isinstance(timestamp, Refusal):
            return timestamp
        candidates = [part.removeprefix("v1,") for part in str(presented).split(" ") if part.startswith("v1,")]
        if len(candidates) > MAX_SIGNATURES:
            return Refusal.SIGNATURE_UNREADABLE
        expected = [(base64_text(d),) for d in digests(keys, f"{event_id}.{text}.".encode("ascii"), body)]
        found = matching(expected, candidates)
        if found is None:
            return Refusal.SIGNATURE_MISMATCH
        return Verified(secret_index=found[0], signature=found[1], timestamp=timestamp, event_id=str(event_id))

    def sign(self, body: bytes, *, event_id: str, timestamp: int, keys: Sequence[bytes]) -> str:
        """The value of `webhook-signature` for a request of our own: one `v1` signature for each key, in order.

        `event_id` and `timestamp` (unix seconds) go out as `webhook-id` and `webhook-timestamp`.
        """
        prefix = f"{event_id}.{timestamp}.".encode("ascii")
        return " ".join(f"v1,{base64_text(digest)}" for digest in digests(keys, prefix, body))


@dataclass(frozen=True, slots=True, kw_only=True)
class GitHub:
    """GitHub's `X-Hub-Signature-256: sha256=<hex>`, letter by letter as GitHub writes it (lower case).

    A request that carries only the old SHA-1 header is refused as unsigned.
    """

    name: str = "github"

    def key(self, secret: str) -> bytes:
        """The secret's UTF-8 bytes."""
        return plain_key(secret)

    def verify(
        self, headers: RawHeaders, body: bytes, *, keys: Sequence[bytes], now: UnixMs, tolerance_ms: Millis
    ) -> Verified | Refusal:
        """See `Scheme.verify`. The scheme signs no time, so `now` and `tolerance_ms` are not looked at."""
        del now, tolerance_ms
        presented = sole_header(headers, "x-hub-signature-256")
        if isinstance(presented, Refusal):
            return presented
        found = matching([("sha256=" + digest.hex(),) for digest in digests(keys, b"", body)], [presented])
        if found is None:
            return Refusal.SIGNATURE_MISMATCH
        return Verified(secret_index=found[0], signature=found[1], event_id=_optional_id(headers, "x-github-delivery"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stripe:
    """Stripe's `Stripe-Signature: t=<unix seconds>,v1=<hex>[,v1=…]`; other versions are passed over."""

    name: str = "stripe"

    def key(self, secret: str) -> bytes:
        """The secret's UTF-8 bytes, `whsec_` included: Stripe signs with the text as shown."""
        return plain_key(secret)

    def verify(
        self, headers: RawHeaders, body: bytes, *, keys: Sequence[bytes], now: UnixMs, tolerance_ms: Millis
    ) -> Verified | Refusal:
        """See `Scheme.verify`."""
        header = sole_header(headers, "stripe-signature")
        if isinstance(header, Refusal):
            return header
        parts = [part.partition("=") for part in header.split(",")]
        times = [value for name, _, value in parts if name == "t"]
        candidates = [value for name, _, value in parts if name == "v1"]
        if len(times) > 1 or len(candidates) > MAX_SIGNATURES:
            return Refusal.SIGNATURE_UNREADABLE
        text = times[0] if times else Refusal.TIMESTAMP_MISSING
        timestamp = signed_time(text, now=now, tolerance_ms=tolerance_ms)
        if isinstance(timestamp, Refusal):
            return timestamp
        found = matching([(d.hex(),) for d in digests(keys, f"{text}.".encode("ascii"), body)], candidates)
        if found is None:
            return Refusal.SIGNATURE_MISMATCH
        return Verified(secret_index=found[0], signature=found[1], timestamp=timestamp)


def is_event_id(text: str) -> bool:
    """Whether a header's text can stand as an id: 1 to 255 printable ASCII characters without a blank."""
    return 0 < len(text) <= MAX_EVENT_ID_CHARS and text.isascii() and text.isprintable() and " " not in text


def _optional_id(headers: RawHeaders, name: str) -> str | None:
    values = [value.decode("latin-1") for value in header_values(headers, name)]
    return values[0] if len(values) == 1 and is_event_id(values[0]) else None
