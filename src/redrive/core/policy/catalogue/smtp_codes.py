"""SMTP by number: basic codes, enhanced codes, and pairs of both that say more than either.

Sources: RFC 5321 §4.2.3 and its relatives for the basic codes; RFC 3463 and the IANA registry "SMTP Enhanced Status
Codes" for the enhanced ones (the row of X.1.1 holds for 4.1.1 and 5.1.1; the first digit gives the verdict unless the
row says otherwise). Pairs: how well-known servers use the two together.
"""

from __future__ import annotations

import re
from typing import Final

from redrive.core.policy.catalogue.mail import MailCause, MailRow
from redrive.core.policy.failure import FailureKind, Scope

_C, _S = MailCause, Scope
_TRANSIENT, _PERMANENT = FailureKind.TRANSIENT, FailureKind.PERMANENT
_AUTH_HOLD_MS: Final = 60_000
"""A log-in that failed for the moment is tried again about once a minute, not by every message."""
_CREDENTIALS_HOLD_MS: Final = 300_000
"""Wrong credentials are wrong until a person has changed them."""


def _basic(code: int, what: str, cause: MailCause, *, source: str, **more: object) -> MailRow:
    return MailRow(what=what, cause=cause, source=source, codes=frozenset({code}), **more)  # type: ignore[arg-type]


def _enhanced(detail: str, what: str, cause: MailCause, *, source: str, **more: object) -> MailRow:
    pattern = re.compile(rf"[245]\.{detail.replace('.', chr(92) + '.')}", re.ASCII)
    return MailRow(what=f"X.{detail} {what}", cause=cause, source=source, enhanced=pattern, **more)  # type: ignore[arg-type]


_R5321: Final = "RFC 5321 §4.2.3"
_R4954: Final = "RFC 4954 §6"
_R7504: Final = "RFC 7504 §3"

BASIC: Final = (
    _basic(421, "service not available, closing the channel", _C.CONNECTION, source="RFC 5321 §3.8, §4.2.3"),
    _basic(432, "a password transition is needed", _C.AUTH, source=_R4954, delay_ms=_CREDENTIALS_HOLD_MS),
    _basic(450, "mailbox unavailable: busy, or refused for the moment", _C.OTHER, source=_R5321),
    _basic(451, "local error in processing", _C.SYSTEM, source=_R5321),
    _basic(452, "not enough system storage, or too many recipients", _C.SYSTEM, source="RFC 5321 §4.2.3, §4.5.3.1.10"),
    _basic(454, "temporary authentication failure", _C.AUTH, source=_R4954, delay_ms=_AUTH_HOLD_MS),
    _basic(455, "parameters cannot be accommodated now", _C.PROTOCOL, source=_R5321),
    _basic(500, "syntax error, command not recognised or line too long", _C.PROTOCOL, source=_R5321),
    _basic(501, "syntax error in parameters", _C.PROTOCOL, source=_R5321),
    _basic(502, "command not implemented", _C.PROTOCOL, source=_R5321),
    _basic(503, "bad sequence of commands", _C.PROTOCOL, source=_R5321),
    _basic(504, "parameter not implemented", _C.PROTOCOL, source=_R5321),
    _basic(521, "the host accepts no mail", _C.BAD_RECIPIENT, source=_R7504),
    _basic(530, "authentication required", _C.AUTH, source=_R4954, delay_ms=_CREDENTIALS_HOLD_MS),
    _basic(534, "authentication mechanism too weak", _C.AUTH, source=_R4954, delay_ms=_CREDENTIALS_HOLD_MS),
    _basic(535, "authentication credentials invalid", _C.AUTH, source=_R4954, delay_ms=_CREDENTIALS_HOLD_MS),
    _basic(538, "encryption required for this mechanism", _C.AUTH, source="RFC 2554 §6", delay_ms=_CREDENTIALS_HOLD_MS),
    _basic(550, "mailbox unavailable, or refused by policy", _C.OTHER, source=_R5321),
    _basic(551, "user not local", _C.BAD_RECIPIENT, source="RFC 5321 §3.4, §4.2.3"),
    _basic(552, "exceeded storage allocation", _C.CONTENT, source=_R5321),
    _basic(553, "mailbox name not allowed", _C.OTHER, source=_R5321),
    _basic(554, "transaction failed", _C.OTHER, source=_R5321),
    _basic(555, "parameters not recognised or not implemented", _C.PROTOCOL, source=_R5321),
    _basic(556, "the domain accepts no mail", _C.BAD_RECIPIENT, source=_R7504),
)
"""Asked last but one: what a code alone says."""

CLASSES: Final = (
    MailRow(what="4yz: not done now, try again", cause=_C.OTHER, digit=4, source="RFC 5321 §4.2.1, the first digit"),
    MailRow(
        what="5yz: not to be repeated as it is", cause=_C.OTHER, digit=5, source="RFC 5321 §4.2.1, the first digit"
    ),
    MailRow(what="any other", cause=_C.OTHER, source="RFC 5321 §4.2.1: no failure at all"),
)
"""Asked last: the first digit."""

_A: Final = "RFC 3463 §3.2"
_B: Final = "RFC 3463 §3.3"
_M: Final = "RFC 3463 §3.4"
_N: Final = "RFC 3463 §3.5"
_P: Final = "RFC 3463 §3.6"
_T: Final = "RFC 3463 §3.7"
_Q: Final = "RFC 3463 §3.8"

ADDRESSES: Final = (
    _enhanced("1.0", "other address status", _C.BAD_RECIPIENT, source=_A, digit=5),
    _enhanced("1.1", "bad destination mailbox address", _C.BAD_RECIPIENT, source=_A, digit=5),
    _enhanced("1.2", "bad destination system address", _C.BAD_RECIPIENT, source=_A, digit=5),
    _enhanced("1.3", "bad destination mailbox address syntax", _C.BAD_RECIPIENT, source=_A, digit=5),
    _enhanced("1.6", "mailbox has moved, no forwarding address", _C.BAD_RECIPIENT, source=_A, digit=5),
    _enhanced("1.10", "recipient address has null MX", _C.BAD_RECIPIENT, source="RFC 7505 §4.2", digit=5),
    _enhanced("2.2", "mailbox full", _C.MAILBOX_FULL, source=_B),
)
"""Asked before the texts about blocks and unknown users: these say it outright."""

ENHANCED: Final = (
    _enhanced("0.0", "other undefined status", _C.OTHER, source="RFC 3463 §3.1"),
    _enhanced("1.0", "other address status", _C.BAD_RECIPIENT, source=_A),
    _enhanced("1.1", "bad destination mailbox address", _C.BAD_RECIPIENT, source=_A),
    _enhanced("1.2", "bad destination system address", _C.BAD_RECIPIENT, source=_A),
    _enhanced("1.3", "bad destination mailbox address syntax", _C.BAD_RECIPIENT, source=_A),
    _enhanced("1.4", "destination mailbox address ambiguous", _C.BAD_RECIPIENT, source=_A),
    _enhanced("1.5", "destination address valid", _C.OTHER, source=_A),
    _enhanced("1.6", "mailbox has moved, no forwarding address", _C.BAD_RECIPIENT, source=_A),
    _enhanced("1.7", "bad sender's mailbox address syntax", _C.SENDER, source=_A),
    _enhanced("1.8", "bad sender's system address", _C.SENDER, source=_A),
    _enhanced("1.9", "message relayed to a non-compliant mailer", _C.OTHER, source="RFC 5248 §2.4"),
    _enhanced("1.10", "recipient address has null MX", _C.BAD_RECIPIENT, source="RFC 7505 §4.2"),
    _enhanced("2.0", "other mailbox status", _C.OTHER, source=_B, scope=_S.RECIPIENT),
    _enhanced("2.1", "mailbox disabled, not accepting messages", _C.MAILBOX_DISABLED, source=_B),
    _enhanced("2.3", "message length exceeds administrative limit", _C.CONTENT, source=_B),
    _enhanced("2.4", "mailing list expansion problem", _C.OTHER, source=_B, scope=_S.RECIPIENT),
    _enhanced("3.0", "other mail system status", _C.SYSTEM, source=_M),
    _enhanced("3.1", "mail system full", _C.SYSTEM, source=_M),
    _enhanced("3.2", "system not accepting network messages", _C.SYSTEM, source=_M, scope=_S.CONNECTION),
    _enhanced("3.3", "system not capable of selected features", _C.SYSTEM, source=_M),
    _enhanced("3.4", "message too big for system", _C.CONTENT, source=_M),
    _enhanced("3.5", "system incorrectly configured", _C.SYSTEM, source=_M),
    _enhanced("3.6", "requested priority was changed", _C.OTHER, source="RFC 6710"),
    _enhanced("4.0", "other network or routing status", _C.NETWORK, source=_N),
    _enhanced("4.1", "no answer from host", _C.NETWORK, source=_N),
    _enhanced("4.2", "bad connection", _C.NETWORK, source=_N),
    _enhanced("4.3", "directory server failure", _C.NETWORK, source=_N),
    _enhanced("4.4", "unable to route", _C.NETWORK, source=_N),
    _enhanced("4.5", "mail system congestion", _C.NETWORK, source=_N),
    _enhanced("4.6", "routing loop detected", _C.NETWORK, source=_N),
    _enhanced("4.7", "delivery time expired", _C.NETWORK, source=_N),
    _enhanced("5.0", "other protocol status", _C.PROTOCOL, source=_P),
    _enhanced("5.1", "invalid command", _C.PROTOCOL, source=_P),
    _enhanced("5.2", "syntax error", _C.PROTOCOL, source=_P),
    _enhanced("5.3", "too many recipients", _C.RATE, source="RFC 3463 §3.6, RFC 5321 §4.5.3.1.10: the others later",
              verdict=_TRANSIENT, scope=_S.MESSAGE),
    _enhanced("5.4", "invalid command arguments", _C.PROTOCOL, source=_P),
    _enhanced("5.5", "wrong protocol version", _C.PROTOCOL, source=_P),
    _enhanced("5.6", "authentication exchange line is too long", _C.AUTH, source=_R4954, delay_ms=_CREDENTIALS_HOLD_MS),
    _enhanced("6.0", "other media error", _C.CONTENT, source=_T),
    _enhanced("6.1", "media not supported", _C.CONTENT, source=_T),
    _enhanced("6.2", "conversion required and prohibited", _C.CONTENT, source=_T),
    _enhanced("6.3", "conversion required but not supported", _C.CONTENT, source=_T),
    _enhanced("6.4", "conversion with loss performed", _C.CONTENT, source=_T),
    _enhanced("6.5", "conversion failed", _C.CONTENT, source=_T),
    _enhanced("6.6", "message content not available", _C.CONTENT, source="RFC 4468"),
    _enhanced("6.7", "non-ASCII addresses not permitted", _C.CONTENT, source="RFC 6531", scope=_S.RECIPIENT),
    _enhanced("6.8", "UTF-8 reply required and not permitted", _C.CONTENT, source="RFC 6531"),
    _enhanced("6.9", "UTF-8 header cannot be transferred to a recipient", _C.CONTENT,
              source="RFC 6531", scope=_S.RECIPIENT),
    _enhanced("6.10", "as X.6.8, deprecated", _C.CONTENT, source="RFC 6531"),
    _enhanced("7.0", "other security status", _C.BLOCKED, source=_Q),
    _enhanced("7.1", "delivery not authorized, message refused", _C.BLOCKED, source=_Q),
    _enhanced("7.2", "mailing list expansion prohibited", _C.BLOCKED, source=_Q, scope=_S.RECIPIENT),
    _enhanced("7.3", "security conversion required but not possible", _C.SECURITY, source=_Q),
    _enhanced("7.4", "security features not supported", _C.SECURITY, source=_Q),
    _enhanced("7.5", "cryptographic failure", _C.SECURITY, source=_Q),
    _enhanced("7.6", "cryptographic algorithm not supported", _C.SECURITY, source=_Q),
    _enhanced("7.7", "message integrity failure", _C.SECURITY, source=_Q, scope=_S.MESSAGE),
    _enhanced("7.8", "authentication credentials invalid", _C.AUTH, source=_R4954, delay_ms=_CREDENTIALS_HOLD_MS),
    _enhanced("7.9", "authentication mechanism is too weak", _C.AUTH, source=_R4954, delay_ms=_CREDENTIALS_HOLD_MS),
    _enhanced("7.10", "encryption needed", _C.SECURITY, source="RFC 5248 §2.4"),
    _enhanced("7.11", "encryption required for this mechanism", _C.AUTH, source=_R4954, delay_ms=_CREDENTIALS_HOLD_MS),
    _enhanced("7.12", "a password transition is needed", _C.AUTH, source=_R4954, delay_ms=_CREDENTIALS_HOLD_MS),
    _enhanced("7.13", "user account disabled", _C.AUTH, source="RFC 5248 §2.4", delay_ms=_CREDENTIALS_HOLD_MS),
    _enhanced("7.14", "trust relationship required", _C.SECURITY, source="RFC 5248 §2.4"),
    _enhanced("7.15", "priority level is too low", _C.CONTENT, source="RFC 6710"),
    _enhanced("7.16", "message is too big for the specified priority", _C.CONTENT, source="RFC 6710"),
    _enhanced("7.17", "mailbox owner has changed", _C.BAD_RECIPIENT, source="RFC 7293"),
    _enhanced("7.18", "domain owner has changed", _C.BAD_RECIPIENT, source="RFC 7293"),
    _enhanced("7.19", "owner test cannot be completed", _C.OTHER, source="RFC 7293", scope=_S.RECIPIENT),
    _enhanced("7.20", "no passing DKIM signature found", _C.SENDER, source="RFC 7372 §3.1"),
    _enhanced("7.21", "no acceptable DKIM signature found", _C.SENDER, source="RFC 7372 §3.1"),
    _enhanced("7.22", "no valid author-matched DKIM signature found", _C.SENDER, source="RFC 7372 §3.1"),
    _enhanced("7.23", "SPF validation failed", _C.SENDER, source="RFC 7372 §3.2"),
    _enhanced("7.24", "SPF validation error", _C.SENDER, source="RFC 7372 §3.2"),
    _enhanced("7.25", "reverse DNS validation failed", _C.BLOCKED, source="RFC 7372 §3.3", scope=_S.CONNECTION),
    _enhanced("7.26", "multiple authentication checks failed", _C.SENDER, source="RFC 7372 §3.4"),
    _enhanced("7.27", "sender address has null MX", _C.SENDER, source="RFC 7505 §4.2"),
    _enhanced("7.28", "mail flood detected", _C.RATE, source="IANA registry: a flood is over after a while",
              verdict=_TRANSIENT, delay_ms=900_000),
    _enhanced("7.29", "ARC validation failure", _C.SENDER, source="RFC 8617", scope=_S.MESSAGE),
    _enhanced("7.30", "REQUIRETLS support required", _C.SECURITY, source="RFC 8689"),
)  # fmt: skip
"""The whole registry, asked after the texts."""


def _pair(code: int, enhanced: str, what: str, *, cause: MailCause, source: str, **more: object) -> MailRow:
    pattern = re.compile(enhanced.replace(".", r"\."), re.ASCII)
    return MailRow(
        what=f"{code} {enhanced} {what}",
        cause=cause,
        source=source,
        codes=frozenset({code}),
        enhanced=pattern,
        **more,  # type: ignore[arg-type]
    )


PAIRS: Final = (
    _pair(421, "4.3.2", "system is shutting down", cause=_C.CONNECTION, source="RFC 5321 §3.8 with RFC 3463 §3.4"),
    _pair(421, "4.4.2", "connection timed out or was lost", cause=_C.CONNECTION,
          source="RFC 5321 §4.5.3.2; Postfix, Exim"),
    _pair(421, "4.7.0", "not now, by policy: too many connections or messages", cause=_C.CONNECTION,
          source="RFC 5321 §3.8; Gmail, Yahoo"),
    _pair(421, "4.7.28", "unusual rate of mail from this address", cause=_C.RATE,
          source="Gmail SMTP errors", delay_ms=900_000),
    _pair(450, "4.2.1", "mailbox busy, or it gets mail too fast", cause=_C.MAILBOX_DISABLED,
          source="Gmail SMTP errors; RFC 3463 §3.3"),
    _pair(450, "4.7.1", "refused for the moment, mostly greylisting", cause=_C.GREYLISTED,
          source="RFC 6647 §2; Postgrey"),
    _pair(451, "4.7.1", "refused for the moment, mostly greylisting", cause=_C.GREYLISTED, source="RFC 6647 §2"),
    _pair(451, "4.7.24", "SPF could not be checked", cause=_C.SENDER, source="RFC 7372 §3.2"),
    _pair(452, "4.3.1", "system storage is full", cause=_C.SYSTEM, source="RFC 5321 §4.2.3 with RFC 3463 §3.4"),
    _pair(452, "4.5.3", "too many recipients in one transaction", cause=_C.RATE, source="RFC 5321 §4.5.3.1.10",
          scope=_S.MESSAGE),
    _pair(454, "4.7.0", "temporary authentication failure, or TLS not available", cause=_C.AUTH,
          source="RFC 4954 §6, RFC 3207 §4",
          delay_ms=_AUTH_HOLD_MS),
    _pair(530, "5.7.0", "log in, or start TLS, first", cause=_C.AUTH, source="RFC 4954 §6, RFC 3207 §4",
          delay_ms=_CREDENTIALS_HOLD_MS),
    _pair(550, "5.4.1", "recipient address rejected by the directory", cause=_C.BAD_RECIPIENT,
          source="Exchange Online, NDR codes"),
    _pair(550, "5.7.0", "refused by policy", cause=_C.BLOCKED, source="RFC 3463 §3.8"),
    _pair(550, "5.7.23", "SPF violated", cause=_C.SENDER, source="RFC 7372 §3.2; Exchange Online"),
    _pair(550, "5.7.26", "sender is not authenticated (SPF, DKIM, DMARC)", cause=_C.SENDER,
          source="RFC 7372 §3.4; Gmail"),
    _pair(550, "5.7.509", "DMARC of the sending domain says reject", cause=_C.SENDER,
          source="Exchange Online, NDR codes"),
    _pair(550, "5.7.606", "this address is banned", cause=_C.BLOCKED,
          source="Exchange Online, NDR codes", scope=_S.CONNECTION),
    _pair(551, "5.1.6", "user has moved", cause=_C.BAD_RECIPIENT, source="RFC 5321 §3.4 with RFC 3463 §3.2"),
    _pair(552, "5.3.4", "message too big", cause=_C.CONTENT, source="RFC 1870 §6.1"),
    _pair(552, "5.7.0", "content refused for security", cause=_C.CONTENT, source="Gmail SMTP errors"),
    _pair(553, "5.1.8", "sender's domain does not exist", cause=_C.SENDER, source="RFC 3463 §3.2; Sendmail"),
    _pair(554, "5.4.6", "too many hops", cause=_C.NETWORK, source="RFC 5321 §6.3"),
    _pair(554, "5.4.14", "hop count exceeded, mail loop", cause=_C.NETWORK, source="Exchange Online, NDR codes"),
    _pair(554, "5.5.1", "no valid recipients", cause=_C.BAD_RECIPIENT, source="Postfix after every RCPT was refused"),
    _pair(554, "5.6.0", "message is malformed", cause=_C.CONTENT, source="RFC 3463 §3.7"),
    _pair(554, "5.7.5", "DMARC or permanent policy failure", cause=_C.BLOCKED, source="RFC 3463 §3.8"),
)  # fmt: skip
"""Asked before the enhanced code alone."""
