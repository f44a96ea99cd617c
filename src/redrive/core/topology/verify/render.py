"""A report as text for people: each finding a short story, and the proof where nothing is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Any, Final

from redrive.core.topology.verify.fates import Outcome, QueueProof
from redrive.core.topology.verify.findings import Finding, Severity
from redrive.core.topology.verify.report import Report
from redrive.core.topology.verify.wording import FEW, quoted, way

WIDTH: Final = 110
MANY_QUEUES: Final = 40
"""A proof of more queues than this tells those of equal fates together."""


def render(report: Report, *, severity: Severity = Severity.INFO, with_proof: bool | None = None) -> str:
    """The report as text. `severity`: nothing milder is told. `with_proof`: None for where there is no error or
    warning.
    """
    shown = report.at_least(severity)
    alike: dict[tuple[Severity, str], list[Finding]] = {}
    for finding in shown:
        alike.setdefault((finding.severity, finding.code), []).append(finding)
    lines = [line for group in alike.values() for line in _group(group)]
    lines += list(_suppressed(report))
    if report.is_safe if with_proof is None else with_proof:
        lines += list(_proof(report))
    lines += [f"Assumed: {each}" for each in report.assumptions]
    lines.append(summary(report))
    return "\n".join(lines) + "\n"


def summary(report: Report) -> str:
    """One line: how much was found."""
    counts = [(sum(each.severity is severity for each in report.findings), severity) for severity in Severity]
    found = ", ".join(f"{count} {severity}{'' if count == 1 else 's'}" for count, severity in counts[:2])
    hints = f", {counts[2][0]} to know" if counts[2][0] else ""
    less = f", {len(report.suppressed)} suppressed" if report.suppressed else ""
    verdict = "nothing is lost" if report.is_safe else "messages can be lost, late, doubled or stuck"
    return f"{len(report.proofs)} queues: {found}{hints}{less}. {'So' if report.is_safe else 'As it is'}, {verdict}."


def _group(findings: list[Finding]) -> Iterator[str]:
    """Findings of one code: each told, or one, with the queues of which the same holds."""
    told = findings if len(findings) <= FEW else findings[:1]
    for finding in told:
        yield from (*_finding(finding), *wrap(f"Do: {finding.remedy}", WIDTH, **_indent("  ", "      ")), "")
    rest = [finding.queue or "" for finding in findings[len(told) :]]
    if rest:
        lines = wrap(f"The same of {len(rest)} more: {', '.join(rest)}", WIDTH, **_indent("  ", "  "))
        yield from (*lines, "")


def _indent(first: str, others: str) -> dict[str, Any]:
    return {"initial_indent": first, "subsequent_indent": others, "break_long_words": False, "break_on_hyphens": False}


def _finding(finding: Finding) -> Iterator[str]:
    where = f' queue "{finding.queue}"' if finding.queue is not None else ""
    vhost = "" if finding.vhost == "/" else f" (vhost {finding.vhost})"
    yield f"{finding.severity.upper()} {finding.code}{where}{vhost}: {finding.title}"
    yield from wrap(finding.story, WIDTH, **_indent("  ", "  "))
    if len(finding.path) > 1:
        yield from wrap(f"Path: {way(finding.path)}", WIDTH, **_indent("  ", "        "))


def _suppressed(report: Report) -> Iterator[str]:
    for each in report.suppressed:
        where = f' queue "{each.finding.queue}"' if each.finding.queue is not None else ""
        yield f"suppressed {each.finding.code}{where}: {each.by.reason}"
    if report.suppressed:
        yield ""


def _proof(report: Report) -> Iterator[str]:
    yield "What becomes of a message:"
    alike: dict[tuple[object, ...], list[QueueProof]] = {}
    for each in report.proofs:
        key: tuple[object, ...] = (each.vhost, each.role, each.type, each.fates)
        alike.setdefault(key if len(report.proofs) > MANY_QUEUES else (*key, each.queue), []).append(each)
    for group in alike.values():
        yield f"  {quoted([each.queue for each in group])} ({group[0].type}, {group[0].role})"
        for fate in group[0].fates:
            if fate.outcome is not Outcome.NEVER:
                yield f"    {fate.cause}: {fate.text}"
        never = [fate.cause for fate in group[0].fates if fate.outcome is Outcome.NEVER]
        if never:
            yield f"    never: {', '.join(never)}"
    yield ""
