"""SMTP replies: what a mail server's answer means for the message, the recipient, the lane and the connection.

Asked in this order, the first that speaks decides: whether the reply breaks the protocol; a team's own rules; what the
text says plainly of limits (greylisting, rates, quotas: servers send them under codes that say something else); the
enhanced codes of addresses; texts of full mailboxes, blocks and unknown users; pairs of codes; codes of log-in; the
enhanced code; a text that says "later"; the basic code; the first digit. An enhanced class of 4 or 5 wins over the
basic code's, which is often only a vague 550 or 554.

The rows are data, each with its source: smtp_texts.py and smtp_codes.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from redrive.core.policy.catalogue.mail import (
    MAX_TOLD_DELAY_MS,
    NO_RULES,
    SUPPRESSING,
    Answer,
    MailCause,
    MailRow,
    MailRows,
    failure_by,
    find_row,
)
from redrive.core.policy.catalogue.smtp_codes import ADDRESSES, BASIC, CLASSES, ENHANCED, PAIRS
from redrive.core.policy.catalogue.smtp_texts import (
    ADDRESS_TEXTS,
    BLOCKS,
    FULL,
    LATER,
    LIMITS,
    LONG_DELAY_MS,
    QUOTA_DELAY_MS,
)
from redrive.core.policy.failure import Failure, FailureKind, Scope
from redrive.core.text import clean, cut

__all__ = [
    "ADDRESSES", "ADDRESS_TEXTS", "BASIC", "BLOCKS", "BROKEN", "CLASSES", "ENHANCED", "FULL", "LATER", "LIMITS",
    "LONG_DELAY_MS", "LOST_AFTER_DATA", "MAX_TOLD_DELAY_MS", "OUTCOME_UNKNOWN", "PAIRS", "QUOTA_DELAY_MS", "ROWS",
    "MailCause", "MailVerdict", "Reply", "classify_reply", "outcome_unknown", "parse_reply",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A parsed reply. `code` 0 and `is_consistent` False: it broke the protocol (no code, or lines that differ)."""

    code: int
    enhanced: str | None
    text: str
    is_consistent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MailVerdict:
    """The failure, what it is about, the reply, and the row of the catalogue that decided."""

    failure: Failure
    cause: MailCause
    reply: Reply
    source: str = ""

    @property
    def suppress(self) -> bool:
        """Whether the address itself is bad for good: a reason to stop writing to it."""
        return self.cause in SUPPRESSING and not self.failure.is_retryable


MAX_CODES: Final = 1_024
"""Combinations of codes whose rows are remembered."""

MAX_ASKED_CHARS: Final = 4_096
"""So much of a reply's text is held against the rows: a server says what it means at the beginning."""

MAX_LINES: Final = 100
MAX_LINE_CHARS: Final = 1_000
"""RFC 5321 §4.5.3.1.5 allows 512 octets a line; beyond these limits a reply is cut."""

_LINE: Final = re.compile(r"(\d{3})(?:[ -](.*))?", re.ASCII | re.DOTALL)
_ENHANCED: Final = re.compile(r"([245]\.\d{1,3}\.\d{1,3})(?!\S)[ \t]*", re.ASCII)


def parse_reply(reply: str | bytes, *, code: int | None = None) -> Reply:
    """A reply of one or more lines ("550-5.7.1 …", "550 5.7.1 …"), or with `code` only its text part."""
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else reply
    lines = [line.strip()[:MAX_LINE_CHARS] for line in clean(text[: MAX_LINES * MAX_LINE_CHARS]).splitlines()]
    parsed = [_parse_line(line, code) for line in lines[:MAX_LINES] if line] or [(code or 0, None, "")]
    codes = {number for number, _, _ in parsed}
    enhanced = next((found for _, found, _ in parsed if found), None)
    return Reply(
        code=parsed[-1][0],
        enhanced=enhanced,
        text=" ".join(part for _, _, part in parsed if part),
        is_consistent=len(codes) == 1 and 200 <= parsed[-1][0] <= 599,  # noqa: PLR2004 - RFC 5321 §4.2.1
    )


def _parse_line(line: str, code: int | None) -> tuple[int, str | None, str]:
    found = _LINE.fullmatch(line)
    if found and (code is None or int(found[1]) == code):
        number, rest = int(found[1]), found[2] or ""
    else:
        number, rest = code or 0, line
    enhanced = _ENHANCED.match(rest)
    return (number, enhanced[1], rest[enhanced.end() :]) if enhanced else (number, None, rest)


_LOG_IN: Final = tuple(row for row in BASIC if row.cause is MailCause.AUTH)
ROWS: Final[tuple[MailRow, ...]] = (
    *LIMITS, *ADDRESSES, *FULL, *BLOCKS, *ADDRESS_TEXTS, *PAIRS, *_LOG_IN, *ENHANCED, *LATER, *BASIC,
)  # fmt: skip
"""The catalogue in the order it is asked; after it come a team's last rules, then the first digit."""

BROKEN: Final = MailRow(
    what="a reply without a code, or whose lines differ",
    cause=MailCause.PROTOCOL_ERROR,
    verdict=FailureKind.TRANSIENT,
    source="RFC 5321 §4.2.1: every line of a reply has the same code",
)
LOST_AFTER_DATA: Final = MailRow(
    what="connection lost after the end of DATA, before an answer",
    cause=MailCause.OUTCOME,
    verdict=FailureKind.UNKNOWN,
    delay_ms=900_000,
    source="RFC 5321 §4.5.3.2.6, §6.1, RFC 1047: the server may have taken the message",
)
OUTCOME_UNKNOWN: Final = "SMTP_OUTCOME_UNKNOWN"
"""Code of a failure after which nobody knows whether the message was taken."""


def classify_reply(reply: str | bytes | Reply, *, code: int | None = None, rules: MailRows = NO_RULES) -> MailVerdict:
    """What a negative reply means. A reply that breaks the protocol is transient: the next server may not."""
    parsed = reply if isinstance(reply, Reply) else parse_reply(reply, code=code)
    digit = int((parsed.enhanced or str(parsed.code))[0])
    if digit == 2:  # noqa: PLR2004 - a success in the enhanced code says nothing about a failure
        digit = parsed.code // 100
    answer = Answer(
        code=parsed.code, enhanced=parsed.enhanced or "", text=parsed.text[:MAX_ASKED_CHARS].lower(), digit=digit
    )
    if not parsed.is_consistent:
        text = cut(parsed.text) or "an empty reply"
        return _verdict(BROKEN, answer, parsed, code="SMTP_PROTOCOL_ERROR", text=text)
    row = next(row for row in _asked(answer, rules) if row is not None)
    text = cut(" ".join(part for part in (str(parsed.code), parsed.enhanced, parsed.text) if part))
    return _verdict(row, answer, parsed, code=f"SMTP_{parsed.code}", text=text)


def _asked(answer: Answer, rules: MailRows) -> Iterator[MailRow | None]:
    yield find_row(answer, rules.first)
    rows = _by_codes(answer.code, answer.enhanced, answer.digit)
    yield next((row for row in rows if row.text is None or row.text.search(answer.text)), None)
    yield find_row(answer, rules.last)
    yield find_row(answer, CLASSES)


@lru_cache(maxsize=MAX_CODES)
def _by_codes(code: int, enhanced: str, digit: int) -> tuple[MailRow, ...]:
    """The rows that only the text can still rule out, and the first that it cannot."""
    answer = Answer(code=code, enhanced=enhanced, digit=digit)
    rows = [row for row in ROWS if replace(row, text=None).fits(answer)]
    first = next((at for at, row in enumerate(rows) if row.text is None), len(rows))
    return tuple(rows[: first + 1])


def _verdict(row: MailRow, answer: Answer, reply: Reply, *, code: str, text: str) -> MailVerdict:
    failure = failure_by(row, answer, code=code, text=text)
    return MailVerdict(failure=failure, cause=row.cause, reply=reply, source=row.source)


def outcome_unknown(text: str, *, code: str = OUTCOME_UNKNOWN, after: str = "the end of DATA") -> Failure:
    """The failure of an attempt whose message was sent to its last byte, and no answer came. `text`: how it was lost.
    `code` and `after`: for another way of sending than SMTP.
    """
    row = LOST_AFTER_DATA
    told = cut(text) if text.strip() else "the connection was lost"
    return Failure(
        kind=FailureKind.UNKNOWN,
        code=code,
        text=f"No answer after {after} ({told}): the message may have been taken.",
        retry_after_ms=row.delay_ms,
        scope=Scope.MESSAGE,
        cause=str(row.cause),
    )
