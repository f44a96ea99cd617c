"""Values into statements, many rows in one step.

The sqlite3 module gives the interpreter lock away at every step of a statement. Beside a busy event loop each step
may then wait milliseconds for it, so a batch is one statement with many rows, never one statement per row:
`insert_rows` for rows, `json_each(?)` over whole numbers for everything that names rows already there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final

import msgspec

ROWS_PER_STEP: Final = 256
"""Most rows in one INSERT. Statements are made for powers of two up to 64 and multiples of that, so that few of them
stay prepared; a batch between two of them is filled up with rows of NULL that a LIMIT cuts off again: one step is
worth more than a few bindings.
"""

_FINE: Final = 64
_NUMBERS: Final = msgspec.json.Encoder()

MAX_VARIABLES: Final = 32_766
"""SQLite's default limit of `?` in one statement (sqlite.org/limits.html)."""


def numbers(values: Sequence[Any]) -> str:
    """Whole numbers, or lists of them, for `json_each(?)`. No text: JSON of SQLite cuts at a NUL."""
    return _NUMBERS.encode(values).decode()


def insert_rows(
    connection: sqlite3.Connection, head: str, rows: Sequence[Sequence[Any]], *, same: Sequence[Any] = ()
) -> int:
    """`head` is "INSERT INTO t (a, b)"; each row has one value per column, after those that are the `same` in all.
    Rowids given out are consecutive; returns the last (what it was before, where there are no rows).
    """
    last = 0
    for piece in pieces(rows, len(rows[0]) if rows else 1):
        width, size = len(piece[0]), size_for(len(piece))
        given = [*same, *chain.from_iterable(piece), *[None] * (width * (size - len(piece))), len(piece)]
        last = connection.execute(_insert_statement(head, (len(same), width, size)), given).lastrowid or 0
    return last


def size_for(count: int) -> int:
    """How many rows the statement for so many has; the others are NULL."""
    return 1 << (count - 1).bit_length() if count <= _FINE else -(-count // _FINE) * _FINE


@cache
def _insert_statement(head: str, shape: tuple[int, int, int]) -> str:
    same, width, size = shape
    return f"{head} SELECT {'?, ' * same}* FROM (VALUES {values_list(width, size)}) LIMIT ?"  # noqa: S608 - question marks


@cache
def values_list(width: int, size: int) -> str:
    """(?,?),(?,?) for `size` rows of `width` values."""
    return ",".join([f"({','.join('?' * width)})"] * size)


def pieces(rows: Sequence[Any], width: int = 1) -> Iterable[Sequence[Any]]:
    """The rows in pieces that fit into one statement with `width` values each."""
    most = ROWS_PER_STEP
    while most * width >= MAX_VARIABLES:
        most //= 2
    return (rows[start : start + most] for start in range(0, len(rows), most))


def text_in(value: str | None) -> str | bytes | None:
    """Text as it is bound. UTF-8 has no form for a lone surrogate: such text is kept as bytes, exactly."""
    if value is None or value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")
    return value


def text_out(value: str | bytes) -> str:
    """The text `text_in` was given."""
    return value if isinstance(value, str) else value.decode("utf-8", "surrogatepass")


def text_or_none_out(value: str | bytes | None) -> str | None:
    """As `text_out`, with None."""
    return value if value is None or isinstance(value, str) else value.decode("utf-8", "surrogatepass")
