"""Who may do what: roles in their order, and which parts of a message a role does not get to see.

A rule names a type of message (`*` fits any text in it), the highest role it holds for, and what is hidden: fields and
patterns. A field is a path: `payload` is the body, `payload.card.number` a value in a JSON body,
`headers.authorization` a header; `*` as a step is every key or every entry of a list. `payload/card/number` is the
same as a JSON pointer (RFC 6901), for keys with a dot in them. `error` is what was made of errors: their texts,
tracebacks, reasons, titles. A pattern is a regular expression: what it matches is hidden in every text. What is hidden
reads as `[redacted]`.

A body that is not JSON has no fields, so a rule on one of them hides all of it, and error texts with it: better too
little than what was to be hidden. A value that a field hides is hidden in error texts of the same message, too: as it
is written, in JSON, or by Python; a text that has it in another form still shows it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias

from redrive.errors import ConfigurationError

REDACTED: Final = "[redacted]"
MAX_RULES: Final = 200
MAX_FIELDS: Final = 100
"""Fields of one rule."""

Path: TypeAlias = tuple[str, ...]

_FIELD: Final = re.compile(r"(payload|headers)((\.[^.]+)*|(/[^/]*)+)|error")
ERROR: Final = ("error",)
"""The path of what was made of errors."""
MAX_PATTERNS: Final = 100
MAX_PATTERN_CHARS: Final = 1_000
MAX_SECRETS: Final = 1_000
"""Hidden values of one message that are looked for in its texts; with more, the texts are hidden whole."""
PLAIN_CHARS: Final = 4
"""A shorter value is looked for as a word of its own only: 7 is hidden, 1972 stays."""


class Role(StrEnum):
    """What a person or program may do. Each may do all that those before it may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        """Its place in the order."""
        return _RANKS[self]

    def covers(self, needed: Role) -> bool:
        """Whether it may do what needs the other.

        >>> Role.OPERATOR.covers(Role.VIEWER), Role.OPERATOR.covers(Role.ADMIN)
        (True, False)
        """
        return self.rank >= needed.rank


_RANKS: Final = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RedactRule:
    """Fields of messages of a type that `role`, and every role below it, does not see. Raises `ConfigurationError`."""

    type: str = "*"
    role: Role = Role.VIEWER
    fields: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (self.fields or self.patterns) or len(self.fields) > MAX_FIELDS or len(self.patterns) > MAX_PATTERNS:
            raise ConfigurationError(
                f"A rule of redact has {len(self.fields)} fields and {len(self.patterns)} patterns: up to {MAX_FIELDS} "
                f"and {MAX_PATTERNS} are possible, and it needs one."
            )
        for pattern in self.patterns:
            _check_pattern(pattern)
        for field in self.fields:
            if not _FIELD.fullmatch(field):
                raise ConfigurationError(
                    f'redact names the field "{field}", which is none.',
                    hint='Write "payload", "payload.card.number", "payload/card/number", "headers.authorization" or '
                    '"error"; * is any step.',
                )


def _check_pattern(pattern: str) -> None:
    try:
        is_empty = re.compile(pattern).match("") is not None
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigurationError(f"redact has the pattern {pattern!r:.80}, which is none: {error}.") from None
    if is_empty or len(pattern) > MAX_PATTERN_CHARS:
        raise ConfigurationError(
            f"redact has the pattern {pattern!r:.80}: it must have at most {MAX_PATTERN_CHARS} characters, and must "
            "not match where nothing is."
        )


def redact_rule_from(table: object, *, source: str) -> RedactRule:
    """The rule a settings table holds. Raises `ConfigurationError` naming what is wrong with it."""
    if not isinstance(table, Mapping) or not set(table) <= {"type", "role", "fields", "patterns"}:
        raise ConfigurationError(
            f"redact in {source} holds {table!r:.80}: a rule is a table with type, role, fields and patterns.",
            hint='Write redact = [{type = "order.*", role = "viewer", fields = ["payload.card"]}].',
        )
    kind, role, fields = table.get("type", "*"), table.get("role", "viewer"), table.get("fields", ())
    patterns = table.get("patterns", ())
    if not isinstance(kind, str) or not _is_texts(fields) or not _is_texts(patterns):
        raise ConfigurationError(f"redact in {source}: type must be text, and fields and patterns lists of texts.")
    if role not in set(Role):
        raise ConfigurationError(f"redact in {source}: role is {role!r:.40}: it must be one of {', '.join(Role)}.")
    return RedactRule(type=kind, role=Role(role), fields=tuple(fields), patterns=tuple(patterns))


def _is_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Veil:
    """What a role does not see: of one message, or (`everywhere`) of anything."""

    paths: tuple[Path, ...] = ()
    patterns: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.paths or self.patterns)

    @property
    def hides_errors(self) -> bool:
        """Whether texts that were made of errors are hidden whole."""
        return ERROR in self.paths

    def text(self, text: str, secrets: Sequence[str] = ()) -> str:
        """The text without what patterns match, and without these values.

        >>> Veil(patterns=("[0-9]{4}",)).text("card 4111 of Ann", ["Ann"])
        'card [redacted] of [redacted]'
        """
        for secret in sorted(secrets, key=len, reverse=True):
            text = _without(text, secret)
        for pattern in self.patterns:
            text = re.sub(pattern, REDACTED, text)
        return text


def _without(text: str, secret: str) -> str:
    if len(secret) >= PLAIN_CHARS:
        return text.replace(secret, REDACTED)
    return re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", REDACTED, text) if secret in text else text


def veil_of(rules: Sequence[RedactRule], message_type: str | None, role: Role) -> Veil:
    """What this role does not see of a message of this type."""
    fitting = [rule for rule in rules if rule.role.covers(role) and fnmatchcase(message_type or "", rule.type)]
    return Veil(
        paths=tuple(dict.fromkeys(_path(field) for rule in fitting for field in rule.fields)),
        patterns=tuple(dict.fromkeys(pattern for rule in fitting for pattern in rule.patterns)),
    )


def veil_everywhere(rules: Sequence[RedactRule], role: Role) -> Veil:
    """What this role does not see wherever it is: what holds for any type of message holds for what has no type."""
    mine = [rule for rule in rules if rule.role.covers(role)]
    return Veil(
        paths=tuple(dict.fromkeys(_path(field) for rule in mine for field in rule.fields)),
        patterns=tuple(dict.fromkeys(pattern for rule in mine for pattern in rule.patterns)),
    )


def _path(field: str) -> Path:
    """The steps of a field: after its first part a `/` begins a JSON pointer, a `.` a path of names."""
    part = "payload" if field.startswith("payload") else field.split(".", maxsplit=1)[0].split("/", maxsplit=1)[0]
    rest = field[len(part) :]
    if rest.startswith("/"):
        return (part, *(step.replace("~1", "/").replace("~0", "~") for step in rest[1:].split("/")))
    return tuple(field.split("."))


def paths_below(paths: Sequence[Path], part: str) -> tuple[Path, ...]:
    """The paths within one part of a message (`payload`, `headers`), without its name; () is all of it."""
    return tuple(path[1:] for path in paths if path[0] == part)


def redacted(value: Any, paths: Sequence[Path], *, is_caseless: bool = False) -> Any:
    """The same value with everything on these paths hidden; what is given stays as it is.

    >>> redacted({"card": {"no": "4111"}, "n": 1}, [("card", "no")])
    {'card': {'no': '[redacted]'}, 'n': 1}
    """
    if not paths:
        return value
    if () in paths:
        return REDACTED
    if isinstance(value, Mapping):
        return {key: redacted(each, _after(paths, str(key), is_caseless=is_caseless)) for key, each in value.items()}
    if isinstance(value, list):
        return [redacted(each, _after(paths, str(at), is_caseless=is_caseless)) for at, each in enumerate(value)]
    return value


def _after(paths: Sequence[Path], key: str, *, is_caseless: bool) -> tuple[Path, ...]:
    own = key.lower() if is_caseless else key
    return tuple(path[1:] for path in paths if path[0] == "*" or own == (path[0].lower() if is_caseless else path[0]))


def secrets_of(value: Any, paths: Sequence[Path], *, is_caseless: bool = False) -> set[str]:
    """The values on these paths as they may stand in a text: as written, in JSON, and by Python.

    >>> sorted(secrets_of({"card": {"no": 4111, "by": "Ann"}, "n": 1}, [("card",)]))
    ['4111', 'Ann']
    """
    if not paths:
        return set()
    if isinstance(value, Mapping):
        below = ((each, _below(paths, str(key), is_caseless=is_caseless)) for key, each in value.items())
        return {text for each, left in below for text in secrets_of(each, left, is_caseless=is_caseless)}
    if isinstance(value, list):
        entries = ((each, _below(paths, str(at), is_caseless=is_caseless)) for at, each in enumerate(value))
        return {text for each, left in entries for text in secrets_of(each, left, is_caseless=is_caseless)}
    return _forms(value) if () in paths else set()


def _below(paths: Sequence[Path], key: str, *, is_caseless: bool) -> tuple[Path, ...]:
    """As `_after`; what is hidden whole is hidden in every part."""
    return ((),) if () in paths else _after(paths, key, is_caseless=is_caseless)


def _forms(value: Any) -> set[str]:
    if isinstance(value, bool) or value is None:
        return set()
    text = str(value)
    forms = {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1]}
    return {form for form in forms if form.strip()}
