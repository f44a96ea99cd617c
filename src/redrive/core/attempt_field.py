"""One member of a JSON body rewritten without touching the rest: the attempt number, where a system's messages carry
it, and what a handler keeps with its message.

Only the bytes of the member's value change: numbers keep their form, keys their order, blanks their place, so a
signature over the other members, or a person comparing two bodies, sees nothing else.
"""

from __future__ import annotations

import json
import re
from typing import Final

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
"""Larger bodies are left as they are."""

_BLANK: Final = re.compile(r"[ \t\n\r]*")
# Numbers are only passed over: left as text, one of a million digits costs nothing and raises nothing.
_decode: Final = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode


def with_attempt(body: bytes, field: str, attempt: int) -> bytes | None:
    """The body with its top-level member `field` set to `attempt`; None where the body is no JSON object.

    A missing member is added at the end. Where a name stands twice the last one counts, as JSON readers take it, so
    that one is rewritten.
    """
    return with_member(body, field, str(attempt))


def with_member(body: bytes, field: str, value: str) -> bytes | None:
    """The same for a value given as JSON text."""
    if len(body) > MAX_BODY_BYTES:
        return None
    try:
        text = body.decode()
        span, is_empty = _locate(text, field)
    except (ValueError, RecursionError):
        return None
    start, end = span
    if start < end:
        return f"{text[:start]}{value}{text[end:]}".encode()
    comma = "" if is_empty else ","
    return f"{text[:start]}{comma}{json.dumps(field)}:{value}{text[start:]}".encode()


def member_of(body: bytes, field: str) -> str | None:
    """The JSON text of a top-level member; None where there is none, or the body is no JSON object."""
    if len(body) > MAX_BODY_BYTES:
        return None
    try:
        text = body.decode()
        (start, end), _ = _locate(text, field)
    except (ValueError, RecursionError):
        return None
    return text[start:end] if start < end else None


def _locate(text: str, field: str) -> tuple[tuple[int, int], bool]:
    """Where the value of `field` stands (an empty span: where to insert it), and whether the object is empty.

    Raises ValueError where the text is not one JSON object.
    """
    at = _skip(text, 1 if text.startswith("\ufeff") else 0)
    at = _skip(text, _expect(text, at, "{"))
    found: tuple[int, int] | None = None
    is_empty = text[at : at + 1] == "}"
    last = at
    while not is_empty:
        _expect(text, at, '"')
        name, at = _decode(text, at)
        start = _skip(text, _expect(text, _skip(text, at), ":"))
        _, last = _decode(text, start)
        found = (start, last) if name == field else found
        at = _skip(text, last)
        if text[at : at + 1] == "}":
            break
        at = _skip(text, _expect(text, at, ","))
    if _skip(text, at + 1) != len(text):
        raise ValueError("there is more than one JSON value")
    return found or (last, last), is_empty


def _expect(text: str, at: int, character: str) -> int:
    if text[at : at + 1] != character:
        raise ValueError(f"expected {character} at {at}")
    return at + 1


def _skip(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return at if blank is None else blank.end()
