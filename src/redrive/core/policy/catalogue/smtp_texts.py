"""SMTP by text: what servers write when the code says something else, or less.

All patterns are held against the text in lower case. Sources name the servers whose texts they are, or the rule that
lets a text speak over a code. Asked in the order of the tables.
"""

from __future__ import annotations

import re
from typing import Final

from redrive.core.policy.catalogue.mail import MailCause, MailRow
from redrive.core.policy.failure import FailureKind, Scope
from redrive.core.units import Millis

_C, _S = MailCause, Scope
_TRANSIENT, _PERMANENT = FailureKind.TRANSIENT, FailureKind.PERMANENT

LONG_DELAY_MS: Final[Millis] = 3_600_000
"""A limit reported under a permanent code is a limit per hour or day, not per second."""
QUOTA_DELAY_MS: Final[Millis] = 3_600_000
"""A daily quota is mostly one over the last 24 hours, so some of it is free again soon: one try an hour finds out, and
costs no message an attempt."""


def _says(what: str, *phrases: str, cause: MailCause, source: str, **more: object) -> MailRow:
    return MailRow(what=what, cause=cause, source=source, text=re.compile("|".join(phrases)), **more)  # type: ignore[arg-type]


LIMITS: Final = (
    _says("greylisting", r"gr[ae]y[- ]?list", cause=_C.GREYLISTED, verdict=_TRANSIENT,
          source="RFC 6647 (greylisting); also servers that answer 5xx"),
    _says("a daily quota", r"daily (message |sending |user )?(quota|limit|sending)", "quota for (today|this day)",
          r"messages? per day", r"24[- ]hour (quota|sending|period)",
          cause=_C.QUOTA, verdict=_TRANSIENT, delay_ms=QUOTA_DELAY_MS,
          source="Amazon SES, SMTP response codes; Gmail 5.4.5"),
    _says("the account's sending rate", "maximum sending rate", "throttling failure", "sending rate exceeded",
          cause=_C.RATE, verdict=_TRANSIENT, scope=_S.LANE, source="Amazon SES, SMTP response codes"),
    _says("too many connections", r"too many (concurrent |simultaneous )?(smtp )?(connections|sessions)",
          "connection (rate )?limit", "concurrent connections? (limit|exceeded)",
          cause=_C.CONNECTION, verdict=_TRANSIENT, source="RFC 5321 §3.8; Postfix, Exim, Exchange"),
    _says("too many recipients", "too many recipients", cause=_C.RATE, verdict=_TRANSIENT, scope=_S.MESSAGE,
          source="RFC 5321 §4.5.3.1.10: the others another time, also under 5xx"),
    _says("the recipient gets mail too fast", r"receiving (mail|messages?) (at a rate|too quickly)", "over rate quota",
          cause=_C.RATE, verdict=_TRANSIENT, scope=_S.RECIPIENT, delay_ms=900_000, source="Gmail 4.2.1, 5.2.1"),
    _says("an account's limit under 5xx", "outgoing (message|mail|e-?mail)s? (limit|quota)",
          "(hourly|submission|account) (sending )?(limit|quota)", "sending (limit|quota)",
          cause=_C.RATE, verdict=_TRANSIENT, scope=_S.LANE, delay_ms=LONG_DELAY_MS, digit=5,
          source="submission servers that answer a limit with 5xx"),
    _says("an account's limit under 4xx", "outgoing (message|mail|e-?mail)s? (limit|quota)",
          "(hourly|submission|account) (sending )?(limit|quota)", "sending (limit|quota)",
          cause=_C.RATE, verdict=_TRANSIENT, scope=_S.LANE, source="submission servers that answer a limit with 4xx"),
    _says("a limit under 5xx", "(message|rate) limit", "(limit|rate) exceeded", "too many messages", "throttl",
          cause=_C.RATE, verdict=_TRANSIENT, delay_ms=LONG_DELAY_MS, digit=5,
          source="servers that answer a limit with 5xx"),
    _says("a limit under 4xx", "(limit|rate) exceeded", "rate limit", "too many messages", "throttl",
          "unusual rate", cause=_C.RATE, verdict=_TRANSIENT, source="servers that answer a limit with 4xx"),
)  # fmt: skip
"""Asked first of all: what passes by waiting."""

FULL: Final = (
    _says("mailbox full", "mailbox (is )?full", "over ?quota", "quota exceeded",
          "exceeded (its |their )?(storage|quota)", "out of storage",
          "insufficient (disk|storage) (space|quota)", "inbox is full",
          cause=_C.MAILBOX_FULL, source="Gmail, Yahoo, Exchange, Dovecot"),
)  # fmt: skip

BLOCKS: Final = (
    _says("a block list", "dnsbl", r"\brbl\b", r"bl(ack|ock) ?list", "spamhaus", "barracuda", "spamcop", "sorbs",
          cause=_C.BLOCKED, scope=_S.CONNECTION, source="DNS block lists and the servers that ask them (RFC 5782)"),
    _says("reputation", "reputation", r"poor sender", "user complaints", r"\[ts[a-z]?\d\d\]",
          cause=_C.BLOCKED, scope=_S.CONNECTION, source="Yahoo [TSnn], Gmail, Outlook"),
    _says("the sender is not proved", r"\bdmarc\b", r"\bdkim\b", r"\bspf\b", "unauthenticated (email|sender)",
          cause=_C.SENDER, source="RFC 7372, RFC 7489; Gmail 5.7.26"),
    _says("blocked or spam", r"\bblocked\b", r"\bspam", "unsolicited", r"\bvirus\b", "malware", "phishing",
          "content rejected", "message (was )?rejected due to",
          cause=_C.BLOCKED, source="Gmail, Yahoo, Outlook, SpamAssassin"),
)  # fmt: skip

ADDRESS_TEXTS: Final = (
    _says("the mailbox is switched off",
          "(account|mailbox|user|address).{0,40}(disabled|inactive|deactivated|suspended)",
          cause=_C.MAILBOX_DISABLED, digit=5, source="Gmail 5.2.1, Yahoo, Exchange"),
    _says("no such address", r"no such (user|recipient|mailbox|address|person|domain)",
          r"(user|recipient|mailbox|address|account)( address)? (is )?(unknown|not found|invalid|unavailable)",
          r"(unknown|invalid|undeliverable|nonexistent) (user|recipient|mailbox|address)",
          r"(doesn.?t|does not) have an? .{0,40}account", "(does not|doesn.?t) exist",
          r"no mailbox (here )?by that name", "user (is )?unknown", "unrouteable address",
          "no longer (valid|available)", "recipient (address )?(not|never) (found|existed)",
          cause=_C.BAD_RECIPIENT, digit=5, source="Gmail, Yahoo, Exchange, Postfix, Exim, qmail"),
    _says("relaying is refused", r"relay(ing)? (access )?(denied|not (permitted|allowed))", "unable to relay",
          cause=_C.CONFIG, digit=5, source="Postfix, Exim, Exchange; RFC 5321 §3.6.1"),
)  # fmt: skip

LATER: Final = (
    _says("later, says the text", r"(try|retry|attempt)( it)?( again)? later", "temporar(y|ily)", "come back later",
          cause=_C.OTHER, verdict=_TRANSIENT, delay_ms=LONG_DELAY_MS, digit=5,
          source="a text that says later wins over a code that says never"),
)  # fmt: skip
"""Asked after the codes that say something of their own, before the first digit."""
