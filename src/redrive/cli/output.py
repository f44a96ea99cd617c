"""What a command prints: JSON documents for machines, tables and sentences for people.

Everything that came from a message is a stranger's text: no terminal escape and no markup in it is ever obeyed.
Results go to standard output, everything else (errors, questions, progress, hints) to standard error.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from redrive.core.units import UnixMs
from redrive.runtime.clean import cut, mask, printable

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_WITHOUT_TERMINAL: Final = 160
MAX_CELL_CHARS: Final = 200
NARROW: Final = 110
"""Columns of a terminal below which a table is cut down to what matters."""

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000


def prepare_streams() -> None:
    """There is something to read from and to write to, and whatever a message holds can be written.

    A stream that was closed for us (`>&-`) is the null device, so that no file of ours ever gets its number. What a
    stream's encoding lacks becomes a visible escape.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - for the whole process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_json(document: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(document, indent=2 if sys.stdout.isatty() else None, allow_nan=False) + "\n")


def say(text: str) -> None:
    """One line of a result."""
    sys.stdout.write(safe(text, keep="\n") + "\n")


def note(text: str) -> None:
    """One line beside the result: a hint, what happens next."""
    sys.stderr.write(safe(text, keep="\n") + "\n")


def print_error(code: str, text: str, *, hint: str = "", is_json: bool) -> None:
    """One error, for a person or as JSON."""
    try:
        if is_json:
            document = {"error": {"code": code, "text": mask(text), "hint": mask(hint)}}
            sys.stderr.write(json.dumps(document) + "\n")
            return
        note(f"Error: {mask(text)}")
        if hint:
            note(f"       {mask(hint)}")
    except BrokenPipeError:
        pass


def safe(text: str, *, keep: str = "") -> str:
    """`text` for a terminal."""
    return printable(text, keep=keep)


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: Sequence[str] = (),
    whole: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> None:
    """A table on standard output; None is an empty cell.

    Columns in `right` are aligned right; those in `whole` hold what will be copied and are not broken into lines;
    those in `spare` are left out on a narrow terminal, where they would be a few letters wide.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console = _console()
    left_out = spare if console.width < NARROW else ()
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in (column for column in columns if column not in left_out):
        is_right = column in right
        is_one_line = is_right or column in whole
        shown.add_column(column, justify="right" if is_right else "left", no_wrap=is_one_line, overflow="fold")
    for row in rows:
        cells = zip(columns, row, strict=True)
        shown.add_row(*(Text(_cell(value)) for column, value in cells if column not in left_out))
    console.print(shown)


def facts(pairs: Sequence[tuple[str, object]]) -> None:
    """Name and value, one pair a line; pairs without a value are left out."""
    known = [(name, value) for name, value in pairs if value is not None and value != ""]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        say(f"{name:<{width}}  {safe(str(value))}")


def _cell(value: object) -> str:
    return "" if value is None else cut(safe(str(value)), MAX_CELL_CHARS)


def _console(stream: TextIO | None = None) -> Console:
    from rich.console import Console

    target = sys.stdout if stream is None else stream
    width = None if target.isatty() else WIDTH_WITHOUT_TERMINAL
    return Console(file=target, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)


def ago(at: UnixMs | None, now: UnixMs) -> str | None:
    """How long before `now`, in one unit: `12s`, `5m`, `3h`, `2d`."""
    return None if at is None else span(max(0, now - at))


def span(duration_ms: int) -> str:
    """A duration in the largest unit that fits."""
    if duration_ms < _SECOND:
        return f"{duration_ms}ms"
    for unit, name, below in ((_SECOND, "s", _MINUTE), (_MINUTE, "m", _HOUR), (_HOUR, "h", 2 * _DAY)):
        if duration_ms < below:
            return f"{duration_ms // unit}{name}"
    return f"{duration_ms // _DAY}d"


def counted(total: int, *, is_at_least: bool) -> str:
    """`1 234`, or `at least 10 000` where not all were counted."""
    return f"{'at least ' if is_at_least else ''}{total:,}".replace(",", " ")


def plural(count: int, noun: str) -> str:
    """`1 letter`, `2 letters`, `1 234 letters`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}".replace(",", " ")
