"""Service: every operation a person can do, once. Surfaces (CLI, admin API, console) only translate to it.

Results are frozen values; nothing here prints, parses options or knows HTTP. Whatever is asked of many letters goes
by a `Selection` and works in bounded pages, so that a million letters need no more memory than fifty.
"""

from __future__ import annotations

from redrive.service.auditing import AuditOperations
from redrive.service.collecting import CollectOperations
from redrive.service.control import ControlOperations
from redrive.service.erasing import ErasingOperations
from redrive.service.operations import MAX_PAGE, SHOWN
from redrive.service.overview import OverviewOperations
from redrive.service.pruning import PruningOperations
from redrive.service.redriving import redrivable, runner_name
from redrive.service.transfer import Loading
from redrive.service.values import (
    Aside,
    Count,
    Edited,
    Erasure,
    GroupCount,
    GroupView,
    JobView,
    LetterView,
    Name,
    Overview,
    Plan,
    Prunable,
    QueuePlan,
    QueueView,
    Receipt,
    RefusedLine,
    Released,
    ReviewResult,
    Skip,
)


class Service(
    OverviewOperations,
    ControlOperations,
    ErasingOperations,
    PruningOperations,
    CollectOperations,
    AuditOperations,
):
    """The operations on one open app."""


__all__ = [
    "MAX_PAGE",
    "SHOWN",
    "Aside",
    "Count",
    "Edited",
    "Erasure",
    "GroupCount",
    "GroupView",
    "JobView",
    "LetterView",
    "Loading",
    "Name",
    "Overview",
    "Plan",
    "Prunable",
    "QueuePlan",
    "QueueView",
    "Receipt",
    "RefusedLine",
    "Released",
    "ReviewResult",
    "Service",
    "Skip",
    "redrivable",
    "runner_name",
]
