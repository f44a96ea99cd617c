"""Text that comes from outside, made safe to keep: no NUL, no lone surrogate, never longer than a named limit."""

from __future__ import annotations

import re
from typing import Final

MAX_TEXT_BYTES: Final = 4_096
"""Most bytes of one error text in a history entry, a reason or a header (UTF-8)."""

CUT_MARK: Final = "…"
REPLACEMENT: Final = "\ufffd"

_UNKEEPABLE: Final = re.compile("[\x00\ud800-\udfff]")
"""What some store cannot hold: PostgreSQL refuses NUL in text, UTF-8 has no form for a lone surrogate."""


def clean(text: str) -> str:
    """The text with every NUL and lone surrogate replaced by U+FFFD."""
    return _UNKEEPABLE.sub(REPLACEMENT, text)


def clean_or_none(text: str | None) -> str | None:
    """As `clean`, with None."""
    return None if text is None else clean(text)


def cut(text: str, limit_bytes: int = MAX_TEXT_BYTES) -> str:
    """The clean text, its start kept, at most `limit_bytes` of UTF-8; a cut falls between characters and is marked."""
    # A character has at least one byte, so nothing beyond the first `limit_bytes` characters can stay.
    safe = clean(text[: limit_bytes + 1])
    data = safe.encode()
    if len(data) <= limit_bytes and len(text) <= limit_bytes:
        return safe
    return data[: limit_bytes - len(CUT_MARK.encode())].decode(errors="ignore") + CUT_MARK


def cut_head(text: str, limit_bytes: int) -> str:
    """As `cut`, but the end is kept: where a traceback is too long, its last lines say what happened."""
    safe = clean(text[-limit_bytes - 1 :])
    data = safe.encode()
    if len(data) <= limit_bytes and len(text) <= limit_bytes:
        return safe
    return CUT_MARK + data[len(data) - limit_bytes + len(CUT_MARK.encode()) :].decode(errors="ignore")


def code_of(name: str) -> str:
    """A class or code name as a machine code: ZeroDivisionError to ZERO_DIVISION_ERROR, at most 64 characters."""
    if _CODE.fullmatch(name):
        return name
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name[:_MAX_CODE_CHARS])
    return re.sub(r"[^A-Z0-9]+", "_", spaced.upper()).strip("_")[:_MAX_CODE_CHARS] or "UNKNOWN"


_MAX_CODE_CHARS: Final = 64
_CODE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}", re.ASCII)
