"""What the runs say: waiting times, throughput, and whether the promises were kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.fairness.crew import HANDLER_MS

NOISY: Final = "noisy"
THROUGHPUT_KEPT: Final = 0.95
COST_LIMIT_US: Final = 20.0

Sent = tuple[str, float]
"""Tenant, and the instant (ms of the wall clock) at which it was to be sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run. Waiting times are those of quiet tenants, from the instant at which a message was to be sent to the
    first line of its handler. What never got there (`quiet_missing`) counts with the time until the workers were
    stopped. `late_p95_ms`: how much of a wait is the sender's own lateness.
    """

    quiet_per_s: int
    backlog: int
    fair: bool
    p50_ms: float
    p95_ms: float
    p99_ms: float
    quiet_sent: int
    quiet_missing: int
    late_p95_ms: float
    total_per_s: float
    cpu_us_per_message: float
    longest_row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What was sent from `began` to `ended`, how late each was, and when the workers were told to stop."""

    sent: Sequence[Sent]
    late_ms: Sequence[float]
    began: float
    ended: float
    stopped: float


def told(found: list[dict[str, Any]], counted: Counted, *, rate: int, backlog: int, fair: bool) -> Run:
    """A run as its workers (`found`) and its sender saw it."""
    seen = sorted((begun, tenant, at) for each in found for tenant, at, begun in each["seen"])
    missing = Counter(counted.sent)
    waits = []
    for begun, tenant, at in seen:
        if missing[tenant, at] > 0:
            missing[tenant, at] -= 1
            waits.append(begun - at)
    lost = [counted.stopped - at for _, at in missing.elements()]
    waits = sorted(waits + lost)
    inside = [tenant for begun, tenant, _ in seen if counted.began <= begun < counted.ended]
    return Run(
        quiet_per_s=rate,
        backlog=backlog,
        fair=fair,
        p50_ms=_at(waits, 0.50),
        p95_ms=_at(waits, 0.95),
        p99_ms=_at(waits, 0.99),
        quiet_sent=len(counted.sent),
        quiet_missing=len(lost),
        late_p95_ms=_at(sorted(counted.late_ms), 0.95),
        total_per_s=round(len(inside) / (counted.ended - counted.began) * 1_000, 1),
        cpu_us_per_message=round(sum(each["cpu_s"] for each in found) / max(1, len(seen)) * 1e6, 1),
        longest_row=_longest_noisy_row(inside),
    )


def promise(alone: Run, beside: Run, unfair: Run) -> dict[str, Any]:
    """The verdicts on one rate. Without a backlog all that is sent is to be carried, or there is nothing to compare."""
    allowed = max(1.5 * alone.p95_ms, alone.p95_ms + HANDLER_MS + 10)
    ratio = beside.total_per_s / unfair.total_per_s
    return {
        "quiet_per_s": alone.quiet_per_s,
        "baseline_carried": alone.quiet_missing == 0,
        "p95_alone_ms": alone.p95_ms,
        "p95_beside_ms": beside.p95_ms,
        "p95_allowed_ms": round(allowed, 1),
        "p95_kept": alone.quiet_missing == 0 and beside.p95_ms <= allowed,
        "p95_unfair_ms": unfair.p95_ms,
        "total_per_s": beside.total_per_s,
        "total_unfair_per_s": unfair.total_per_s,
        "throughput_of_unfair": round(ratio, 3),
        "throughput_kept": ratio >= THROUGHPUT_KEPT,
        "longest_row": beside.longest_row,
    }


def cost(spent: dict[str, list[float]], messages: int) -> dict[str, Any]:
    """Processor time (µs a message) of the best drain of each kind, and the verdict on the difference."""
    best = {name: round(min(values), 1) for name, values in spent.items()}
    turns_us = round(best["fair"] - best["plain"], 1)
    return {
        **best,
        "turns_us": turns_us,
        "allowed_us": COST_LIMIT_US,
        "cost_kept": turns_us <= COST_LIMIT_US,
        "messages": messages,
    }


def _longest_noisy_row(tenants: list[str]) -> int:
    """The longest row of quiet starts says nothing; of noisy ones only where somebody else waited, which the starts
    alone do not tell: so it is shown, not judged.
    """
    longest = row = 0
    for tenant in tenants:
        row = row + 1 if tenant == NOISY else 0
        longest = max(longest, row)
    return longest


def _at(values: list[float], share: float) -> float:
    return round(values[min(len(values) - 1, int(share * len(values)))], 2) if values else float("nan")
