"""What a verification says: the findings, what was suppressed, and the proof for every queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from redrive.core.topology.verify.fates import QueueProof
from redrive.core.topology.verify.findings import Finding, Severity, Suppression

FORMAT: Final = 1
"""Version of the document; it grows by fields, and counts up when one changes its meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppressed:
    """A finding somebody decided to live with, and why."""

    finding: Finding
    by: Suppression


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that was found, worst first, without what is suppressed. `assumptions`: what was taken for granted,
    because nothing was said about it.
    """

    findings: tuple[Finding, ...]
    suppressed: tuple[Suppressed, ...]
    proofs: tuple[QueueProof, ...]
    assumptions: tuple[str, ...]
    version: str | None

    def at_least(self, severity: Severity) -> tuple[Finding, ...]:
        """Findings as bad as that, or worse."""
        return tuple(finding for finding in self.findings if finding.severity.at_least(severity))

    @property
    def worst(self) -> Severity | None:
        """None: nothing was found."""
        return self.findings[0].severity if self.findings else None

    @property
    def is_safe(self) -> bool:
        """No error and no warning: the proofs hold, under the assumptions."""
        return not self.at_least(Severity.WARNING)

    def codes(self, severity: Severity = Severity.INFO) -> tuple[str, ...]:
        """The codes found at that severity or worse, each once, worst first."""
        return tuple(dict.fromkeys(finding.code for finding in self.at_least(severity)))

    def document(self) -> dict[str, Any]:
        """As plain values, for `--json`. `counts`: findings per severity."""
        return {
            "format": FORMAT,
            "version": self.version,
            "safe": self.is_safe,
            "counts": {
                str(severity): sum(finding.severity is severity for finding in self.findings) for severity in Severity
            },
            "findings": [finding.document() for finding in self.findings],
            "suppressed": [{**each.finding.document(), "reason": each.by.reason} for each in self.suppressed],
            "assumptions": list(self.assumptions),
            "queues": [each.document() for each in self.proofs],
        }
