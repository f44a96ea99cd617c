"""Rows to letters and back, with what PostgreSQL needs beyond `core/letters/rows.py`."""

from __future__ import annotations

import json
from typing import Any, Final

from psycopg.types.json import Jsonb

from redrive.core.letters import rows
from redrive.core.letters.letter import Letter
from redrive.core.letters.rows import Row
from redrive.core.letters.selection import header_text
from redrive.core.message import Headers
from redrive.core.ports import LetterSummary
from redrive.postgres.values import text_in, text_out

SUMMARY_TYPES: Final = (
    "text text text text text text text text text text text integer text text smallint bigint bigint bigint integer "
    "text text bigint text"
)
CONTENT_TYPES: Final = "text bigint bigint bigint text text text text bytea bytea jsonb"
"""Of CONTENT_COLUMNS and header_texts."""


def summary_row(letter: Letter) -> tuple[Any, ...]:
    """One row of redrive_letter."""
    return rows.summary_row(letter, text_in=text_in)


def content_row(letter: Letter) -> tuple[Any, ...]:
    """One row of redrive_letter_content, without its seq."""
    texts = Jsonb(header_texts(letter.message.headers), dumps=_dumps)
    return (*rows.content_row(letter, text_in=text_in), texts)


def header_texts(headers: Headers) -> dict[str, str]:
    """Each header that has a plain text, as that text: what a selection compares with."""
    return {
        text_in(name) or "": text_in(text) or ""
        for name, value in headers.items()
        if (text := header_text(value)) is not None
    }


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def summary_from(row: Row) -> LetterSummary:
    """The summary of one row with SUMMARY_COLUMNS."""
    return rows.summary_from(row, text_out=text_out)


def letter_from(row: Row) -> Letter:
    """The letter of one row with SUMMARY_COLUMNS and CONTENT_COLUMNS."""
    return rows.letter_from(row, text_out=text_out)
