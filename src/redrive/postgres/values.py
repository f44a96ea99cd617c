"""Values into statements: text PostgreSQL would refuse, and many rows in one statement."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

_UNKEEPABLE: Final = re.compile("[\x00\x1a\ud800-\udfff]")
_KEPT: Final = re.compile("\x1a([0-9a-f]{4})")


def text_in(value: str | None) -> str | None:
    """Text as it is kept. PostgreSQL has no form for NUL and for a lone surrogate: each is written as the control
    character SUBSTITUTE (U+001A) and four hex digits, and so is U+001A itself, so that no two texts become one.
    """
    if value is None or _UNKEEPABLE.search(value) is None:
        return value
    return _UNKEEPABLE.sub(lambda found: f"\x1a{ord(found[0]):04x}", value)


def text_out(value: str) -> str:
    """The text `text_in` was given."""
    return _KEPT.sub(lambda found: chr(int(found[1], 16)), value) if "\x1a" in value else value


def text_or_none_out(value: str | None) -> str | None:
    """As `text_out`, with None."""
    return None if value is None else text_out(value)


def columns_of(rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    """Rows turned into one list per column, as `unnest` takes them."""
    return [[row[place] for row in rows] for place in range(width)]


def unnest(types: str) -> str:
    """`unnest(…)` over as many arrays as there are types ("text bigint"), one parameter each."""
    return f"unnest({', '.join(f'%s::{kind}[]' for kind in types.split())})"
