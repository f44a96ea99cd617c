"""SMTP replies: what a mail server's answer means for the message, the recipient and the connection.

Read in this order, the first that speaks decides: a reply that breaks the protocol; what the text says plainly
(greylisting, limits, a full mailbox: servers send them under codes that say something else); the enhanced code;
the basic code. An enhanced class of 4 or 5 wins over the basic code's, which is often only a vague 550 or 554.
Source: RFC 5321 §4.2, RFC 3463 and the IANA registry of enhanced status codes; texts of well-known servers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from redrive.core.policy.failure import Failure, FailureKind
from redrive.core.text import clean, cut
from redrive.core.units import Millis


class MailCause(StrEnum):
    """What the reply is about. Only BAD_RECIPIENT is a reason to stop writing to that address."""

    BAD_RECIPIENT = "bad_recipient"
    MAILBOX_FULL = "mailbox_full"
    GREYLISTED = "greylisted"
    RATE = "rate"
    QUOTA = "quota"
    BLOCKED = "blocked"
    AUTH = "auth"
    CONTENT = "content"
    CONNECTION = "connection"
    PROTOCOL_ERROR = "protocol_error"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A parsed reply. `code` 0 and `is_consistent` False: it broke the protocol (no code, or lines that differ)."""

    code: int
    enhanced: str | None
    text: str
    is_consistent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MailVerdict:
    """The failure, what it is about, and whether to stop sending to this recipient."""

    failure: Failure
    cause: MailCause
    reply: Reply

    @property
    def suppress(self) -> bool:
        """Whether the address itself is bad for good."""
        return self.cause is MailCause.BAD_RECIPIENT and not self.failure.is_retryable


MAX_LINES: Final = 100
MAX_LINE_CHARS: Final = 1_000
"""RFC 5321 §4.5.3.1.5 allows 512 octets a line; beyond these limits a reply is cut."""

LONG_DELAY_MS: Final[Millis] = 3_600_000
"""A limit reported under a permanent code is a limit per hour or day, not per second."""
QUOTA_DELAY_MS: Final[Millis] = 6 * 3_600_000
"""A daily quota: look again a few times a day."""
MAX_TOLD_DELAY_MS: Final[Millis] = 86_400_000
"""A text that asks for more than a day is taken as a day."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """One row: all that is given must match. `kind` None: by the reply's class."""

    cause: MailCause
    text: re.Pattern[str] | None = None
    enhanced: re.Pattern[str] | None = None
    codes: frozenset[int] = frozenset()
    reply_class: int | None = None
    kind: FailureKind | None = None
    delay_ms: Millis | None = None
    source: str

    def fits(self, reply: Reply, reply_class: int) -> bool:
        """Whether this row speaks of the reply."""
        return (
            (self.text is None or self.text.search(reply.text) is not None)
            and (self.enhanced is None or self.enhanced.fullmatch(reply.enhanced or "") is not None)
            and (not self.codes or reply.code in self.codes)
            and (self.reply_class is None or self.reply_class == reply_class)
        )


def _says(*phrases: str) -> re.Pattern[str]:
    return re.compile("|".join(phrases), re.IGNORECASE)


_TRANSIENT: Final = FailureKind.TRANSIENT
_PERMANENT: Final = FailureKind.PERMANENT
_RULES: Final = (
    _Rule(
        cause=MailCause.GREYLISTED, kind=_TRANSIENT, source="RFC 6647 (greylisting), servers that answer 5xx",
        text=_says(r"gr[ae]y[- ]?list"),
    ),
    _Rule(
        cause=MailCause.QUOTA, kind=_TRANSIENT, delay_ms=QUOTA_DELAY_MS, source="Amazon SES, SMTP response codes",
        text=_says("daily message quota", "daily (sending )?(quota|limit)"),
    ),
    _Rule(
        cause=MailCause.CONNECTION, kind=_TRANSIENT, source="RFC 5321 §3.8, servers that limit connections",
        text=_says("too many (concurrent )?(smtp )?connections", "connection limit"),
    ),
    _Rule(
        cause=MailCause.RATE, kind=_TRANSIENT, source="RFC 5321 §4.5.3.1.10: more recipients another time",
        text=_says("too many recipients"),
    ),
    _Rule(
        cause=MailCause.RATE, kind=_TRANSIENT, delay_ms=LONG_DELAY_MS, reply_class=5,
        source="servers that answer a limit with 5xx",
        text=_says("(message|sending|rate|hourly) limit", "(limit|rate) exceeded", "too many messages", "throttl"),
    ),
    _Rule(
        cause=MailCause.RATE, kind=_TRANSIENT, source="servers that answer a limit with 4xx; Amazon SES",
        text=_says("limit exceeded", "rate exceeded", "(sending|rate) limit", "too many messages", "throttl"),
    ),
    _Rule(cause=MailCause.MAILBOX_FULL, enhanced=re.compile(r"[45]\.2\.2"), source="RFC 3463 §3.3, X.2.2"),
    _Rule(
        cause=MailCause.MAILBOX_FULL, source="texts of well-known servers",
        text=_says("mailbox (is )?full", "over ?quota", "quota exceeded", "exceeded (its |their )?storage"),
    ),
    _Rule(
        cause=MailCause.BAD_RECIPIENT, source="RFC 3463 §3.2, RFC 7505",
        enhanced=re.compile(r"5\.1\.(0|1|2|3|6|10)"),
    ),
    _Rule(
        cause=MailCause.BLOCKED, source="texts of well-known servers",
        text=_says("dnsbl", r"\brbl\b", "bl(ack|ock) ?list", r"\bblocked\b", r"\bspam", "unsolicited", "reputation"),
    ),
    _Rule(
        cause=MailCause.BAD_RECIPIENT, reply_class=5, source="texts of well-known servers",
        text=_says(
            "no such (user|recipient|mailbox|address)", "(user|recipient|mailbox|address) (is )?(unknown|not found)",
            "unknown (user|recipient|mailbox)", "(doesn.?t|does not) have an? .{0,40}account", "does not exist",
            "invalid (recipient|mailbox)", "no mailbox (here )?by that name",
        ),
    ),
    _Rule(cause=MailCause.AUTH, codes=frozenset({432, 454, 530, 534, 535, 538}), source="RFC 4954 §6"),
    _Rule(cause=MailCause.CONNECTION, kind=_TRANSIENT, codes=frozenset({421}), source="RFC 5321 §3.8"),
    _Rule(cause=MailCause.CONTENT, enhanced=re.compile(r"[45]\.(3\.4|6\.\d+|2\.3)"), source="RFC 3463 §3.4, §3.7"),
    _Rule(cause=MailCause.CONTENT, codes=frozenset({552}), source="RFC 5321 §4.2.2"),
    _Rule(cause=MailCause.BLOCKED, enhanced=re.compile(r"[45]\.7\.\d+"), source="RFC 3463 §3.8, security or policy"),
    _Rule(
        cause=MailCause.OTHER, kind=_TRANSIENT, delay_ms=LONG_DELAY_MS, reply_class=5,
        text=_says("(try|retry) (again )?later"), source="a text that says later wins over a code that says never",
    ),
    _Rule(cause=MailCause.OTHER, source="RFC 5321 §4.2.1, the first digit"),
)  # fmt: skip


def classify_reply(reply: str | bytes | Reply, *, code: int | None = None) -> MailVerdict:
    """What a negative reply means. A reply that breaks the protocol is transient: the next server may not."""
    parsed = reply if isinstance(reply, Reply) else parse_reply(reply, code=code)
    if not parsed.is_consistent:
        failure = Failure(kind=_TRANSIENT, code="SMTP_PROTOCOL_ERROR", text=cut(parsed.text) or "an empty reply")
        return MailVerdict(failure=failure, cause=MailCause.PROTOCOL_ERROR, reply=parsed)
    reply_class = int((parsed.enhanced or str(parsed.code))[0])
    if reply_class == 2:  # noqa: PLR2004 - a success in the enhanced code says nothing about a failure
        reply_class = parsed.code // 100
    rule = next(rule for rule in _RULES if rule.fits(parsed, reply_class))
    kind = rule.kind or (_PERMANENT if reply_class == 5 else _TRANSIENT)  # noqa: PLR2004
    delay_ms = (_told_delay_ms(parsed.text) or rule.delay_ms) if kind is _TRANSIENT else None
    text = " ".join(part for part in (str(parsed.code), parsed.enhanced, parsed.text) if part)
    failure = Failure(kind=kind, code=f"SMTP_{parsed.code}", text=cut(text), retry_after_ms=delay_ms)
    return MailVerdict(failure=failure, cause=rule.cause, reply=parsed)


_TOLD: Final = re.compile(r"\b(\d{1,6})\s{0,3}(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?)\b", re.IGNORECASE)
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000}


def _told_delay_ms(text: str) -> Millis | None:
    found = _TOLD.search(text)
    return min(int(found[1]) * _UNIT_MS[found[2][0].lower()], MAX_TOLD_DELAY_MS) if found else None
