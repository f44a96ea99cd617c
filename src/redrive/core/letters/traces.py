"""What a stack trace says of the error: its name, and what it told."""

from __future__ import annotations

import re
from typing import Final

from redrive.core.text import clean

MAX_TYPE_CHARS: Final = 255
_PYTHON: Final = "Traceback (most recent call last):"
_FRAME: Final = '  File "'
_TYPE: Final = re.compile(r"([A-Za-z_][\w.$]{0,200})(?::|$)")


def named_in(trace: str) -> tuple[str | None, str]:
    r"""(name of the error or None, its text). JavaScript writes both at the start, Python behind its last frame.

    >>> named_in("TypeError: x is not a function\n    at run (a.js:7:1)")
    ('TypeError', 'x is not a function')
    """
    lines = clean(trace).strip().splitlines()
    if not lines:
        return None, ""
    if lines[0].strip() == _PYTHON:
        lines = _behind_frames(lines)
    elif any(line.lstrip().startswith("at ") for line in lines):
        ends = next(number for number, line in enumerate(lines) if line.lstrip().startswith("at "))
        lines = lines[:ends]
    found = _TYPE.match(lines[0]) if lines else None
    if found is None:
        return None, "\n".join(lines)
    text = "\n".join([lines[0][found.end() :].strip(), *lines[1:]]).strip()
    return found[1][:MAX_TYPE_CHARS], text


def _behind_frames(lines: list[str]) -> list[str]:
    last = max((number for number, line in enumerate(lines) if line.startswith(_FRAME)), default=0)
    start = next((number for number in range(last + 1, len(lines)) if not lines[number].startswith(" ")), len(lines))
    return lines[start:]
