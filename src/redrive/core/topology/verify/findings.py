"""What is found, how bad it is, and what somebody decided to live with."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final

from redrive.core.topology.verify.catalogue import CATALOGUE
from redrive.errors import ConfigurationError


class Severity(StrEnum):
    """ERROR: a message is lost, loops or is stuck on a path it will take. WARNING: it is under a condition, or comes
    early, late or twice. INFO: it depends on what definitions do not say.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return _RANKS[self]

    def at_least(self, other: Severity) -> bool:
        """As bad as that one, or worse."""
        return self.rank <= other.rank


_RANKS: Final[Mapping[Severity, int]] = {kind: place for place, kind in enumerate(Severity)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One way in which messages of `queue` (None: of the topology as a whole) do not arrive as they should.

    `story`: what happens, with the names and values of this topology. `path`: the way of the message, hop by hop.
    """

    code: str
    severity: Severity
    story: str
    queue: str | None = None
    vhost: str = "/"
    path: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The kind of loss in a few words."""
        return CATALOGUE[self.code].title

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return CATALOGUE[self.code].remedy

    @property
    def source(self) -> str:
        """Where the rule comes from."""
        return CATALOGUE[self.code].source

    def document(self) -> dict[str, Any]:
        """As plain values; `path` is a list, empty where there is none."""
        return {
            "code": self.code, "severity": str(self.severity), "title": self.title, "vhost": self.vhost,
            "queue": self.queue, "story": self.story, "path": list(self.path), "remedy": self.remedy,
            "source": self.source,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppression:
    """Findings somebody decided to live with, and why. `code` and `queue` may hold `*` and `?`; `queue` "*" also
    covers findings about the topology as a whole. Raises `ConfigurationError` without a reason.
    """

    code: str
    reason: str
    queue: str = "*"
    vhost: str = "*"

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ConfigurationError(
                f"The suppression of {self.code} has no reason.",
                hint="Say why the finding may stay, for who comes next.",
            )

    def covers(self, finding: Finding) -> bool:
        """Whether this finding is meant."""
        return (
            fnmatchcase(finding.code, self.code)
            and fnmatchcase(finding.vhost, self.vhost)
            and (self.queue == "*" or (finding.queue is not None and fnmatchcase(finding.queue, self.queue)))
        )

    def __str__(self) -> str:
        where = "" if self.vhost == "*" else f' in vhost "{self.vhost}"'
        return f'{self.code} for queue "{self.queue}"{where}: {self.reason}'


def read_suppressions(text: str) -> tuple[Suppression, ...]:
    """From a file: TOML with `[[suppress]]` tables, or a JSON list of objects, each with `code`, `reason`, and
    optionally `queue` and `vhost`. Raises `ConfigurationError` for anything else.
    """
    try:
        read: Any = json.loads(text) if text.lstrip().startswith(("[{", "{", "[]")) else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"The suppressions cannot be read: {error}.", hint=_FORM) from error
    tables = read.get("suppress", []) if isinstance(read, dict) else read
    if not isinstance(tables, list):
        raise ConfigurationError("The suppressions are not a list.", hint=_FORM)
    return tuple(_suppression(table) for table in tables)


_FORM: Final = 'Write: [[suppress]] then code = "L6", queue = "orders.*", reason = "…" (TOML), or the same as JSON.'


def _suppression(table: object) -> Suppression:
    fields = {"code", "reason", "queue", "vhost"}
    if not isinstance(table, dict) or not {"code", "reason"} <= table.keys() <= fields:
        raise ConfigurationError(f"{table!r} is not a suppression.", hint=_FORM)
    if not all(isinstance(value, str) for value in table.values()):
        raise ConfigurationError(f"{table!r} holds something that is not text.", hint=_FORM)
    if not any(fnmatchcase(code, table["code"]) for code in CATALOGUE):
        raise ConfigurationError(
            f"{table['code']} is not the code of any finding.", hint=f"Codes: {', '.join(CATALOGUE)}."
        )
    return Suppression(**table)


def sort(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Worst first, then by code and queue; equal ones once."""
    order = {code: place for place, code in enumerate(CATALOGUE)}
    unique = dict.fromkeys(findings)
    return tuple(
        sorted(
            unique, key=lambda each: (each.severity.rank, order[each.code], each.vhost, each.queue or "", each.story)
        )
    )
