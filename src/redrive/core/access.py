"""Who may do what: roles in their order, and which parts of a message a role does not get to see.

A rule names a type of message (`*` fits any text in it), the highest role it holds for, and fields. A field is a path:
`payload` is the body, `payload.card.number` a value in a JSON body, `headers.authorization` a header; `*` as a step is
every key or every entry of a list. What is hidden reads as `[redacted]`. A body that is not JSON has no fields, so a
rule on one of them hides all of it: better too little than what was to be hidden.
"""

from __future__ import annotations

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

_FIELD: Final = re.compile(r"(payload|headers)(\.[^.]+)*")


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
    fields: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.fields) <= MAX_FIELDS:
            raise ConfigurationError(f"A rule of redact has {len(self.fields)} fields: 1 to {MAX_FIELDS} are possible.")
        for field in self.fields:
            if not _FIELD.fullmatch(field):
                raise ConfigurationError(
                    f'redact names the field "{field}", which is none.',
                    hint='Write "payload", "payload.card.number" or "headers.authorization"; * is any step.',
                )


def redact_rule_from(table: object, *, source: str) -> RedactRule:
    """The rule a settings table holds. Raises `ConfigurationError` naming what is wrong with it."""
    if not isinstance(table, Mapping) or not set(table) <= {"type", "role", "fields"}:
        raise ConfigurationError(
            f"redact in {source} holds {table!r:.80}: a rule is a table with type, role and fields.",
            hint='Write redact = [{type = "order.*", role = "viewer", fields = ["payload.card"]}].',
        )
    kind, role, fields = table.get("type", "*"), table.get("role", "viewer"), table.get("fields", ())
    is_list = isinstance(fields, Sequence) and not isinstance(fields, str)
    if not isinstance(kind, str) or not is_list or not all(isinstance(each, str) for each in fields):
        raise ConfigurationError(f"redact in {source}: type must be text, and fields a list of texts.")
    if role not in set(Role):
        raise ConfigurationError(f"redact in {source}: role is {role!r:.40}: it must be one of {', '.join(Role)}.")
    return RedactRule(type=kind, role=Role(role), fields=tuple(fields))


def hidden_paths(rules: Sequence[RedactRule], message_type: str | None, role: Role) -> tuple[Path, ...]:
    """What this role does not see of a message of this type."""
    fitting = [rule for rule in rules if rule.role.covers(role) and fnmatchcase(message_type or "", rule.type)]
    return tuple(dict.fromkeys(tuple(field.split(".")) for rule in fitting for field in rule.fields))


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
