"""What may be shown: secrets masked, control characters made visible, values no encoder knows turned to text.

Messages come from strangers and end in logs and terminals. Nothing here raises: a value that breaks its own `repr`
is named by its class instead.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Any, Final

MASK: Final = "***"
MAX_TEXT_CHARS: Final = 4_000
"""A logged text is cut here; an error text of 300 kB says nothing more."""
MAX_ITEMS: Final = 100
MAX_DEPTH: Final = 6
CUT_MARK: Final = "…"

_SECRET_NAME: Final = re.compile(
    r"passw(or)?d|secret|token|authorization|api[-_]?key|signature|credential|cookie|private[-_]?key", re.IGNORECASE
)
_URL_CREDENTIALS: Final = re.compile(r"(?P<scheme>[a-zA-Z][\w+.-]*://)[^\s/@]*@")
_BEARER: Final = re.compile(r"(?P<kind>\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}", re.IGNORECASE)
_NOT_SECRET: Final = frozenset({"secret_index"})
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_JOINERS: Final = "\u200d"


def is_secret(name: str) -> bool:
    """Whether a field of this name is never shown."""
    return name not in _NOT_SECRET and _SECRET_NAME.search(name) is not None


def mask(text: str) -> str:
    """`text` without the credentials of URLs and authorization values in it."""
    text = _URL_CREDENTIALS.sub(rf"\g<scheme>{MASK}@", text)
    return _BEARER.sub(rf"\g<kind>{MASK}", text)


def cut(text: str, limit: int) -> str:
    """At most `limit` characters, with a mark where something went."""
    return text if len(text) <= limit else text[: limit - 1] + CUT_MARK


def printable(text: str, *, keep: str = "") -> str:
    r"""`text` for a terminal: control, format and surrogate characters as visible escapes such as `\x1b`.

    A terminal would obey them (colours, titles, moving the cursor, right-to-left overrides). Characters in `keep`
    pass, for texts where a line break is meant.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(char, keep) for char in text)


def _visible(char: str, keep: str) -> str:
    if char in keep or char in _JOINERS or unicodedata.category(char) not in _HIDDEN:
        return char
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def plain(value: object, *, name: str = "", depth: int = 0) -> Any:
    """`value` as something JSON holds, bounded in size and depth. Kinds JSON lacks become text."""
    if name and is_secret(name) and value is not None:
        return MASK
    try:
        return _plain(value, depth)
    except Exception:  # noqa: BLE001 - the value's own code is broken; a log line must come out all the same
        return f"<unprintable {type(value).__name__}>"


def _plain(value: object, depth: int) -> Any:
    match value:
        case None | bool():
            return value
        case int():
            return int(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return cut(mask(_encodable(str(value))), MAX_TEXT_CHARS)
        case bytes():
            return cut(value.hex(), MAX_TEXT_CHARS)
        case datetime():
            return value.isoformat()
        case _ if depth >= MAX_DEPTH:
            return CUT_MARK
        case Mapping():
            some = list(value.items())[:MAX_ITEMS]
            return {_encodable(str(key)): plain(item, name=str(key), depth=depth + 1) for key, item in some}
        case Sequence() | AbstractSet():
            return [plain(item, depth=depth + 1) for item in list(value)[:MAX_ITEMS]]
        case _:
            return cut(mask(_encodable(str(value))), MAX_TEXT_CHARS)


def _encodable(text: str) -> str:
    """Lone surrogates cannot be written as UTF-8; they become replacement marks."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
