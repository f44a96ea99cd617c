"""What a check of a server, a store or the settings found: what is there, what is at risk, and what helps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class Level(StrEnum):
    """ERROR: messages are lost or refused, now or at the next crash. WARNING: under a condition, or soon. INFO: worth
    knowing; nothing has to be done.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return _RANKS[self]


_RANKS: Final = {level: place for place, level in enumerate(Level)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing. `text`: what is there. `risk`: what happens to messages. `remedy`: what to do, "" where nothing has to
    be done. `code` is stable.
    """

    code: str
    level: Level
    text: str
    risk: str
    remedy: str = ""

    def document(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "code": self.code,
            "level": str(self.level),
            "text": self.text,
            "risk": self.risk,
            "remedy": self.remedy,
        }


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """In order of how bad they are, else as they came."""
    return tuple(sorted(findings, key=lambda finding: finding.level.rank))
