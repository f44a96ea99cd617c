"""Idempotency-Key: a POST that is sent twice is carried out once, and both senders read the same answer.

*Source*: draft-ietf-httpapi-idempotency-key-header: a quoted string; the same key with another request is 422, with one
that is still being carried out 409; afterwards the first answer is given again, refusals included.

What is kept here is this process's memory, for a day. It is lost with the process, so it is a comfort and not the
promise. The promise: a redrive job carries its key in the store (any process, any time), and moving letters, changing
limits, resuming and aborting are idempotent by themselves: a repeat finds nothing left to do. Only sending parked
messages back in place is neither; there a lost answer is found out by looking at the queue.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from redrive.core.units import Millis
from redrive.web.admin.problems import refuse

KEPT_MS: Final[Millis] = 86_400_000
MAX_KEYS: Final = 1_000
"""Answers kept; with more the oldest go."""
MAX_KEPT_BYTES: Final = 65_536
"""A longer answer is not kept: a repeat is carried out once more, as after a restart."""
MAX_KEY_CHARS: Final = 255

_QUOTED: Final = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_TOO_LONG: Final = f"The Idempotency-Key must have 1 to {MAX_KEY_CHARS} characters."


def parse_key(header: str) -> str:
    """What is within the quotes. Raises `Refused` for a header that is no structured-field string."""
    found = _QUOTED.fullmatch(header.strip())
    if found is None:
        raise refuse("malformed", 'The Idempotency-Key must be a quoted string: Idempotency-Key: "8e03978e-40d5".')
    key = re.sub(r"\\(.)", r"\1", found[1])
    if not 1 <= len(key) <= MAX_KEY_CHARS:
        raise refuse("malformed", _TOO_LONG)
    return key


def request_key(actor: str, key: str) -> str:
    """The key as a redrive job keeps it: of one actor, so that nobody gets another's job by chance."""
    return "api-" + hashlib.sha256(json.dumps([actor, key]).encode()).hexdigest()[:40]


def fingerprint(method: str, path: str, body: bytes) -> bytes:
    """What makes two requests the same one."""
    return hashlib.sha256(json.dumps([method, path]).encode() + b"\n" + body).digest()


@dataclass(slots=True)
class _Kept:
    print: bytes
    at_ms: float
    response: Response | None = None


class KeptAnswers:
    """Answers by (actor, key). `begin`, then exactly one of `end` and `drop`."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()

    def begin(self, name: tuple[str, str], found: bytes, *, now_ms: float) -> Response | None:
        """The answer of the first request; None where this is the first. Raises `Refused` (409, 422)."""
        kept = self._kept.get(name)
        if kept is not None and (kept.response is None or now_ms - kept.at_ms < KEPT_MS):
            if kept.print != found:
                raise refuse("key_reused")
            if kept.response is None:
                raise refuse("key_in_use", headers={"retry-after": "1"})
            return kept.response
        self._kept[name] = _Kept(found, now_ms)
        self._kept.move_to_end(name)
        self._shrink()
        return None

    def _shrink(self) -> None:
        """Oldest first, and never one that is still being carried out."""
        while len(self._kept) > MAX_KEYS:
            oldest = next((name for name, kept in self._kept.items() if kept.response is not None), None)
            if oldest is None:
                return
            del self._kept[oldest]

    def end(self, name: tuple[str, str], response: Response) -> None:
        """Keep the answer."""
        kept = self._kept.get(name)
        if kept is None:
            return
        if len(response.body) > MAX_KEPT_BYTES:
            del self._kept[name]
        else:
            kept.response = response

    def drop(self, name: tuple[str, str]) -> None:
        """The request failed for a reason of ours: the next one with this key is a first one again."""
        self._kept.pop(name, None)
