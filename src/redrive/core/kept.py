"""What a handler keeps with its message from attempt to attempt: which parts of the work are done already.

It lies in the message itself, as the member `_redrive` of its JSON body, so every broker carries it, a worker in
another language sees it, and it is in the dead letter. A redrive sends the original body *with* it: what was done stays
done.

It is written together with the end of the attempt that kept it, on a retry and in a dead letter. A worker killed
before that loses it, as it loses the end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from redrive.core.attempt_field import member_of, with_member

MEMBER: Final = "_redrive"
MAX_KEPT_BYTES: Final = 262_144
"""Of what is kept, as JSON."""

_MARK: Final = f'"{MEMBER}"'.encode()


def with_kept(body: bytes, kept: Mapping[str, Any]) -> bytes | None:
    """The body with this kept in it, in place of what was; None where the body is no JSON object.

    Raises ValueError for what JSON cannot hold, and for more than `MAX_KEPT_BYTES`.
    """
    text = json.dumps(dict(kept), separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    if len(text) > MAX_KEPT_BYTES:
        raise ValueError(f"{len(text)} bytes are too many (maximum {MAX_KEPT_BYTES})")
    return with_member(body, MEMBER, text)


def kept_in(body: bytes) -> dict[str, Any]:
    """What was kept in this body; empty where nothing was."""
    text = member_of(body, MEMBER) if _MARK in body else None
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def carried(body: bytes, original: bytes) -> bytes:
    """The original body with what was kept in the later one."""
    text = member_of(body, MEMBER) if _MARK in body and body != original else None
    if text is None:
        return original
    return with_member(original, MEMBER, text) or original
