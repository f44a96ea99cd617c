"""Standings: where the tenants of a fair queue stand, who waits too long, and who gets most of it.

*Source*: system E, Fairness (the record of a tenant) and Runbooks (the tenant table).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from redrive.core.policy.fair import Fair
from redrive.core.policy.fairness import TenantRecord

TOP: Final = 10
"""Source: system E, Runbooks: the top 10 each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One tenant of a queue: how many of its messages wait, and its record."""

    name: str
    waiting: int
    record: TenantRecord


def reported(standings: Iterable[Standing], fair: Fair | None) -> list[Standing]:
    """The same with the priorities that this queue's own numbers make of the rounds; None: the system's."""
    if fair is None:
        return list(standings)
    return [replace(each, record=_with_priority(each.record, fair)) for each in standings]


def _with_priority(record: TenantRecord, fair: Fair) -> TenantRecord:
    return replace(record, current_priority=fair.priority_after(record.rounds_without_processing))


def starved(standings: Iterable[Standing], *, top: int = TOP) -> tuple[Standing, ...]:
    """Tenants that wait, the worst first: most rounds without service, then whose last start is longest ago (never
    is longest), then the longest backlog.
    """
    waiting = [each for each in standings if each.waiting]
    return tuple(sorted(waiting, key=_hunger)[:top])


def _hunger(standing: Standing) -> tuple[int, int, int, str]:
    record = standing.record
    return -record.rounds_without_processing, record.last_processed_at or 0, -standing.waiting, standing.name


def monopolising(standings: Sequence[Standing], *, top: int = TOP) -> tuple[Standing, ...]:
    """Tenants by how much of what was started was theirs, the greediest first; those without any are left out."""
    served = [each for each in standings if each.record.total_processed]
    return tuple(sorted(served, key=lambda each: (-each.record.total_processed, each.name))[:top])


def share_of(standing: Standing, standings: Iterable[Standing]) -> float:
    """Of the starts of all these tenants, this one's share, 0 to 1."""
    total = sum(each.record.total_processed for each in standings)
    return standing.record.total_processed / total if total else 0.0
