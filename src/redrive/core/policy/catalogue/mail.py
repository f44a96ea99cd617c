"""What the catalogues of mail are made of: causes, rows, verdicts, and a team's own rules over them.

A row says what it fits (codes, enhanced codes, texts; all that is given must fit), and what that means: a verdict, a
cause, whom it is about, how long to stay away, and where all this is laid down. Rows are asked in order and the first
that fits decides. A team's own rules (`MailRule`) stand before all rows, the highest priority first; those with a
negative priority are asked only where no row knows more than the first digit of a code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Final, TypeAlias, TypeVar

from redrive.core.policy.failure import Failure, FailureKind, Scope
from redrive.core.text import code_of
from redrive.core.units import Duration, Millis, duration_ms
from redrive.errors import ConfigurationError

E = TypeVar("E", bound=StrEnum)


class MailCause(StrEnum):
    """What an answer is about."""

    BAD_RECIPIENT = "bad_recipient"
    MAILBOX_DISABLED = "mailbox_disabled"
    MAILBOX_FULL = "mailbox_full"
    GREYLISTED = "greylisted"
    RATE = "rate"
    QUOTA = "quota"
    PAUSED = "paused"
    SUSPENDED = "suspended"
    BLOCKED = "blocked"
    SENDER = "sender"
    AUTH = "auth"
    CONFIG = "config"
    SECURITY = "security"
    CONTENT = "content"
    CONNECTION = "connection"
    NETWORK = "network"
    SYSTEM = "system"
    PROTOCOL = "protocol"
    PROTOCOL_ERROR = "protocol_error"
    SUPPRESSED = "suppressed"
    COMPLAINT = "complaint"
    OUTCOME = "outcome"
    OTHER = "other"


CAUSES: Final[Mapping[MailCause, tuple[Scope, str]]] = {
    MailCause.BAD_RECIPIENT: (Scope.RECIPIENT, "The address does not exist, or takes no mail for good."),
    MailCause.MAILBOX_DISABLED: (Scope.RECIPIENT, "The address exists and takes nothing now."),
    MailCause.MAILBOX_FULL: (Scope.RECIPIENT, "The mailbox has no room."),
    MailCause.GREYLISTED: (Scope.RECIPIENT, "A first try is refused on principle; a later one is taken."),
    MailCause.RATE: (Scope.CONNECTION, "Too much at once; slower is fine."),
    MailCause.QUOTA: (Scope.LANE, "An allowance for a long time is used up."),
    MailCause.PAUSED: (Scope.LANE, "Sending was switched off, by a person or by the service."),
    MailCause.SUSPENDED: (Scope.LANE, "The account is closed until somebody talks to the service."),
    MailCause.BLOCKED: (Scope.MESSAGE, "Refused by policy: spam, reputation, a block list."),
    MailCause.SENDER: (Scope.TENANT, "The sender's address or domain is refused or not proved."),
    MailCause.AUTH: (Scope.LANE, "We could not log in."),
    MailCause.CONFIG: (Scope.TENANT, "Something is not set up as the service wants it."),
    MailCause.SECURITY: (Scope.CONNECTION, "Encryption or trust is missing on the way."),
    MailCause.CONTENT: (Scope.MESSAGE, "This message: too large, or of a kind that is not taken."),
    MailCause.CONNECTION: (Scope.CONNECTION, "This connection or this server; another may do."),
    MailCause.NETWORK: (Scope.MESSAGE, "The way to the recipient's server."),
    MailCause.SYSTEM: (Scope.MESSAGE, "The receiving system has trouble of its own."),
    MailCause.PROTOCOL: (Scope.MESSAGE, "A command or an argument was not understood."),
    MailCause.PROTOCOL_ERROR: (Scope.CONNECTION, "The answer itself breaks the protocol."),
    MailCause.SUPPRESSED: (Scope.RECIPIENT, "The address is on a list of addresses not to write to."),
    MailCause.COMPLAINT: (Scope.RECIPIENT, "The recipient called a message spam. Never write again."),
    MailCause.OUTCOME: (Scope.MESSAGE, "The message was sent and nobody knows whether it was taken."),
    MailCause.OTHER: (Scope.MESSAGE, "Nothing more than the code is known."),
}
"""{cause: (whom it is about where its row does not say, meaning)}."""

SUPPRESSING: Final = frozenset(
    {MailCause.BAD_RECIPIENT, MailCause.MAILBOX_DISABLED, MailCause.SUPPRESSED, MailCause.COMPLAINT}
)
"""Causes that, where they are permanent, are a reason to stop writing to that address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a row is held against. `code`: basic SMTP code, 0 without one. `api`: error code of a mail API. `enhanced`:
    "5.1.1", or "". `text`: in lower case. `digit`: 4 or 5, what the answer says by its class; the enhanced code's wins.
    """

    code: int = 0
    api: str = ""
    enhanced: str = ""
    text: str = ""
    digit: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MailRow:
    """One row. `verdict` None: by the answer's class. `scope` None: the cause's. `delay_ms`: stay away at least so
    long, unless the text tells a time. `codes`: basic codes as numbers, API codes as text. `reason`: a code of its own
    for the failure.
    """

    what: str
    cause: MailCause
    source: str
    verdict: FailureKind | None = None
    scope: Scope | None = None
    delay_ms: Millis | None = None
    codes: frozenset[int | str] = frozenset()
    enhanced: re.Pattern[str] | None = None
    text: re.Pattern[str] | None = None
    digit: int | None = None
    reason: str | None = None

    def fits(self, answer: Answer) -> bool:
        """Whether this row speaks of the answer."""
        return (
            (self.digit is None or self.digit == answer.digit)
            and (not self.codes or answer.code in self.codes or answer.api in self.codes)
            and (self.enhanced is None or self.enhanced.fullmatch(answer.enhanced) is not None)
            and (self.text is None or self.text.search(answer.text) is not None)
        )

    @property
    def about(self) -> Scope:
        """Whom it is about."""
        return CAUSES[self.cause][0] if self.scope is None else self.scope


# ---------------------------------------------------------------------------------------------------- own rules

DEFAULT_PRIORITY: Final = 0
MAX_PATTERN_CHARS: Final = 1_000
_ENHANCED: Final = re.compile(r"([245*])\.(\d{1,3}|\*)\.(\d{1,3}|\*)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class MailRule:
    """A team's own rule over the catalogue of mail answers: what it fits, and what that means.

    `text`: a regular expression, found anywhere, whatever the case. `codes`: basic codes (554) or error codes of a mail
    API ("Throttling"). `enhanced`: "5.7.1", with * for any number. At least one of them. `verdict`: "transient",
    "permanent" or "unknown"; None: as the code says. `kind`: a cause of the catalogue. `scope`: "message", "recipient",
    "tenant", "lane" or "connection"; None: as the kind has it. `delay`: stay away at least so long. `priority`: higher
    ones are asked first; below 0 only where the catalogue knows nothing. `reason`: a code of your own for the failure.

    Raises `ConfigurationError` naming the rule and the field.

    >>> MailRule(name="t-online", text="a problem occurred", codes=(554,), verdict="transient", delay="10m").priority
    0
    """

    name: str
    text: str | None = None
    codes: Sequence[int | str] = ()
    enhanced: str | None = None
    verdict: FailureKind | str | None = None
    kind: MailCause | str = MailCause.OTHER
    scope: Scope | str | None = None
    delay: Duration | None = None
    priority: int = DEFAULT_PRIORITY
    reason: str | None = None

    def __post_init__(self) -> None:
        name: Any = self.name  # from a file it may be anything
        if not isinstance(name, str) or not name.strip():
            raise ConfigurationError("A mail rule has no name.", hint='Give each one a name = "…"; messages show it.')
        if self.text is None and not self.codes and self.enhanced is None:
            raise self._wrong("it fits everything", "Give it text, codes or enhanced.")
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise self._wrong(f"priority is {self.priority!r}: it must be a whole number")
        self.row()

    def row(self) -> MailRow:
        """The row it is."""
        return MailRow(
            what=self.name,
            cause=self._one_of("kind", self.kind, MailCause),
            source=f"mail rule {self.name}",
            verdict=None if self.verdict is None else self._one_of("verdict", self.verdict, FailureKind),
            scope=None if self.scope is None else self._one_of("scope", self.scope, Scope),
            delay_ms=None if self.delay is None else duration_ms(self.delay, field=f'mail rule "{self.name}": delay'),
            codes=self._codes(),
            enhanced=self._enhanced(),
            text=self._text(),
            reason=None if self.reason is None else code_of(self.reason),
        )

    def _wrong(self, what: str, hint: str = "") -> ConfigurationError:
        return ConfigurationError(f'Mail rule "{self.name}": {what}.', hint=hint)

    def _one_of(self, field: str, value: Any, kind: type[E]) -> E:
        known = [str(member) for member in kind]
        if value in known:
            return kind(value)
        near = get_close_matches(str(value), known, n=1)
        hint = f"Did you mean {near[0]}?" if near else ""
        raise self._wrong(f"{field} is {value!r}: it must be one of {', '.join(known)}", hint)

    def _codes(self) -> frozenset[int | str]:
        given: Any = self.codes
        codes = [given] if isinstance(given, int | str) else list(given) if isinstance(given, Iterable) else [None]
        for code in codes:
            is_basic = isinstance(code, int) and not isinstance(code, bool) and 400 <= code <= 599  # noqa: PLR2004
            if not is_basic and not (isinstance(code, str) and code.strip()):
                raise self._wrong(f"codes has {code!r}: a code is a number from 400 to 599, or the text of an API's")
        return frozenset(codes)

    def _enhanced(self) -> re.Pattern[str] | None:
        given: Any = self.enhanced
        if given is None:
            return None
        if not isinstance(given, str) or not _ENHANCED.fullmatch(given):
            raise self._wrong(f"enhanced is {given!r}", 'Write class, subject and detail: "5.7.1", "*.2.2".')
        return re.compile(given.replace(".", r"\.").replace("*", r"\d{1,3}"), re.ASCII)

    def _text(self) -> re.Pattern[str] | None:
        if self.text is None:
            return None
        try:
            if not 0 < len(self.text) <= MAX_PATTERN_CHARS:
                raise self._wrong(f"text has {len(self.text)} characters: 1 to {MAX_PATTERN_CHARS} are allowed")
            return re.compile(self.text, re.IGNORECASE)
        except (re.error, OverflowError, TypeError) as error:
            raise self._wrong(f"text is no regular expression: {error}") from error


def mail_rule_from(table: Any, *, source: str) -> MailRule:
    """The rule of a table in a settings file, whose members are `MailRule`'s. Raises `ConfigurationError`."""
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"mail_rules in {source} holds {table!r:.60}, which is no table.", hint=_HOW)
    for name in table:
        if name not in _RULE_FIELDS:
            near = get_close_matches(str(name), _RULE_FIELDS, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(_RULE_FIELDS)}."
            raise ConfigurationError(f"mail_rules.{name} in {source} is unknown.", hint=hint)
    if "name" not in table:
        raise ConfigurationError(f"A mail rule in {source} has no name.", hint=_HOW)
    return MailRule(**table)


_RULE_FIELDS: Final = tuple(field.name for field in fields(MailRule))
_HOW: Final = 'Write [[mail_rules]] and below it name = "…", text = "…", verdict = "transient".'


@dataclass(frozen=True, slots=True, kw_only=True)
class MailRows:
    """Own rules as rows: those asked before the catalogue, and those asked where it knows nothing."""

    first: tuple[MailRow, ...] = ()
    last: tuple[MailRow, ...] = ()


NO_RULES: Final = MailRows()
MailRules: TypeAlias = "Sequence[MailRule]"


def merged(rules: MailRules) -> MailRows:
    """The rules in the order they are asked: by priority, the highest first; of equal ones the earlier."""
    if not rules:
        return NO_RULES
    ordered = sorted(rules, key=lambda rule: -rule.priority)
    return MailRows(
        first=tuple(rule.row() for rule in ordered if rule.priority >= 0),
        last=tuple(rule.row() for rule in ordered if rule.priority < 0),
    )


def find_row(answer: Answer, rows: Iterable[MailRow]) -> MailRow | None:
    """The first row that fits."""
    for row in rows:
        if row.fits(answer):
            return row
    return None


# ---------------------------------------------------------------------------------------------------- verdicts

MAX_TOLD_DELAY_MS: Final[Millis] = 86_400_000
"""A text that asks for more than a day is taken as a day."""

_TOLD: Final = re.compile(r"\b(\d{1,6})\s{0,3}(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?)\b")
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000}


def told_delay_ms(text: str) -> Millis | None:
    """The time a text in lower case tells to stay away ("come back in 300 seconds"), None where it tells none."""
    found = _TOLD.search(text)
    return min(int(found[1]) * _UNIT_MS[found[2][0]], MAX_TOLD_DELAY_MS) if found else None


def failure_by(row: MailRow, answer: Answer, *, code: str, text: str) -> Failure:
    """The failure this row makes of the answer."""
    permanent = FailureKind.PERMANENT
    kind = row.verdict or (permanent if answer.digit == 5 else FailureKind.TRANSIENT)  # noqa: PLR2004
    # A lane is held also by what is permanent: a wrong password does not mend itself in a second.
    waits = kind is not permanent or row.about is Scope.LANE
    return Failure(
        kind=kind,
        code=row.reason or code,
        text=text,
        retry_after_ms=(told_delay_ms(answer.text) or row.delay_ms) if waits else None,
        scope=row.about,
        cause=str(row.cause),
    )
