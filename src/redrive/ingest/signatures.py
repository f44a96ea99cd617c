"""What a signature scheme is: a pure function from headers, raw bytes, keys and a time to a verdict.

The bytes that were signed are the bytes as received: nothing is decoded, unpacked or made again from JSON before the
signature holds (a re-serialised body is another body). The rules every scheme here keeps:

- The signature is computed with every key and compared with `hmac.compare_digest`, without an early end, so neither
  the key that matched nor how much of a forged signature was right shows in the time it takes.
- A header that the scheme reads must be there exactly once, be ASCII, and be at most `MAX_HEADER_BYTES` long. Two
  of them are refused, even equal ones: which one a proxy in front had looked at cannot be known.
- A timestamp is 1 to 12 decimal digits, nothing else (no blank, sign, point, exponent), and lies within the
  tolerance of `now` on both sides, bounds included.
- Whatever a sender puts into a header ends as a `Refusal`, never as an exception.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

from redrive.core.units import Millis, UnixMs
from redrive.errors import ConfigurationError

RawHeaders: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Names and values as the server received them, in order, repeats kept (the ASGI form)."""

MAX_HEADER_BYTES: Final = 4_096
"""A longer signature header is refused unread; the longest honest one (a rotation of ten keys) is below 1 kB."""

MAX_SIGNATURES: Final = 16
"""More signatures than this in one header are refused: each costs a comparison with every key."""

_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}", re.ASCII)


class Refusal(StrEnum):
    """Why a request was not let in. The value is the `code` of the answer's problem document."""

    SIGNATURE_MISSING = "signature_missing"
    SIGNATURE_REPEATED = "signature_repeated"
    SIGNATURE_UNREADABLE = "signature_unreadable"
    SIGNATURE_MISMATCH = "signature_mismatch"
    TIMESTAMP_MISSING = "timestamp_missing"
    TIMESTAMP_UNREADABLE = "timestamp_unreadable"
    TIMESTAMP_OUTSIDE_TOLERANCE = "timestamp_outside_tolerance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The sender knows a secret: the one at `secret_index` (from 0, in the order configured).

    `signature` is the text that matched, `timestamp` the signed unix seconds (None: the scheme signs no time), and
    `event_id` the sender's id for this event where the scheme has a header for it.
    """

    secret_index: int
    signature: str
    timestamp: int | None = None
    event_id: str | None = None


class Scheme(Protocol):
    """One way to sign a webhook. A value: holds header names at most, never a secret."""

    @property
    def name(self) -> str:
        """For logs and documents, e.g. `standard-webhooks`."""
        ...

    def key(self, secret: str) -> bytes:
        """The HMAC key a configured secret stands for. Raises `ConfigurationError` (which does not show it)."""
        ...

    def verify(
        self, headers: RawHeaders, body: bytes, *, keys: Sequence[bytes], now: UnixMs, tolerance_ms: Millis
    ) -> Verified | Refusal:
        """Whether `body`, as received, was signed with one of `keys` at about `now`. Pure; never raises."""
        ...


def plain_key(secret: str) -> bytes:
    """The secret's UTF-8 bytes. Raises `ConfigurationError` when it is blank."""
    if not secret.strip():
        raise ConfigurationError("A webhook secret is empty.", hint="Remove it, or put the sender's secret there.")
    return secret.encode("utf-8", "surrogatepass")


def header_values(headers: RawHeaders, name: str) -> list[bytes]:
    """Every value of a header, whatever the case of its name."""
    wanted = name.lower().encode("ascii")
    return [value for given, value in headers if given.lower() == wanted]


def sole_header(headers: RawHeaders, name: str, *, missing: Refusal = Refusal.SIGNATURE_MISSING) -> str | Refusal:
    """The one value of a header as text, or why there is none to be trusted."""
    values = header_values(headers, name)
    if not values:
        return missing
    if len(values) > 1:
        return Refusal.SIGNATURE_REPEATED
    if len(values[0]) > MAX_HEADER_BYTES or not values[0].isascii():
        return Refusal.SIGNATURE_UNREADABLE
    return values[0].decode("ascii")


def signed_time(text: str | Refusal, *, now: UnixMs, tolerance_ms: Millis) -> int | Refusal:
    """The unix seconds a sender signed, if they are written strictly and lie within the tolerance of `now`."""
    if isinstance(text, Refusal):
        return text
    if _TIMESTAMP.fullmatch(text) is None:
        return Refusal.TIMESTAMP_UNREADABLE
    timestamp = int(text)
    if abs(now - timestamp * 1_000) > tolerance_ms:
        return Refusal.TIMESTAMP_OUTSIDE_TOLERANCE
    return timestamp


def digests(keys: Sequence[bytes], prefix: bytes, body: bytes) -> list[bytes]:
    """HMAC-SHA256 of `prefix + body` under each key, without copying the body."""
    found = []
    for key in keys:
        mac = hmac.new(key, prefix, hashlib.sha256)
        mac.update(body)
        found.append(mac.digest())
    return found


def matching(expected: Sequence[tuple[str, ...]], presented: Iterable[str]) -> tuple[int, str] | None:
    """The first key one of whose accepted spellings was presented, with what was; compares all with all."""
    found: tuple[int, str] | None = None
    for text in presented:
        raw = text.encode("ascii", "replace")
        for index, spellings in enumerate(expected):
            for spelling in spellings:
                if hmac.compare_digest(raw, spelling.encode("ascii")) and (found is None or index < found[0]):
                    found = (index, text)
    return found


def base64_text(digest: bytes) -> str:
    """A digest in standard base64 with padding."""
    return base64.b64encode(digest).decode("ascii")
