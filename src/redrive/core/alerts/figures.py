"""Figures: the named numbers that alert rules speak of, and what each is in Prometheus.

A reading maps a figure's name to its values by label: `{"letters_open": {"": 3}, "letters_by_tenant": {"acme": 2}}`.
A figure without a label has the one key `""`. A figure that is not in a reading is unknown: nobody could be asked. That
is another thing than 0, and than a label that is not there, which is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

PREFIX: Final = "redrive_"
"""What the names of metrics begin with, unless a setting says otherwise."""

Values: TypeAlias = Mapping[str, float]
Reading: TypeAlias = Mapping[str, Values]


class Unit(StrEnum):
    """What a figure counts in, and so how it is written."""

    COUNT = "count"
    SHARE = "share"
    SECONDS = "seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One row of the table. `expression`: PromQL, `$` being the prefix of all names. `label`: what its values differ
    by, None where it is one number.
    """

    text: str
    unit: Unit
    expression: str
    label: str | None = None


FIGURES: Final[Mapping[str, Figure]] = {
    "letters_open": Figure(
        text="Dead letters a person has still to decide about.",
        unit=Unit.COUNT,
        expression="max by (job) ($dlq_size)",
    ),
    "letters_by_tenant": Figure(
        text="The same by tenant; those without one, and those beyond the largest, are left out.",
        unit=Unit.COUNT,
        expression='max by (job, company) ($dlq_by_company{company!~"other|-"})',
        label="company",
    ),
    "letters_new_5m": Figure(
        text="Messages dead-lettered in the last five minutes.",
        unit=Unit.COUNT,
        expression="sum by (job) (increase($dlq_entries_total[5m]))",
    ),
    "letter_oldest_age_seconds": Figure(
        text="Age of the oldest open dead letter; 0 where there is none.",
        unit=Unit.SECONDS,
        expression="max by (job) ($dlq_oldest_age_seconds)",
    ),
    "sends_1h": Figure(
        text="Messages that came to an end in the last hour: processed or dead-lettered.",
        unit=Unit.COUNT,
        expression='sum by (job) (increase($deliveries_total{outcome=~"processed|dead_lettered"}[1h]))',
    ),
    "dead_letter_share_1h": Figure(
        text="Of those, the share that was dead-lettered.",
        unit=Unit.SHARE,
        expression=(
            'sum by (job) (increase($deliveries_total{outcome="dead_lettered"}[1h]))'
            ' / sum by (job) (increase($deliveries_total{outcome=~"processed|dead_lettered"}[1h]))'
        ),
    ),
    "letters_archived_1h": Figure(
        text="Dead letters over the maximum that were written into the archive and removed in the last hour.",
        unit=Unit.COUNT,
        expression="sum by (job) (increase($letters_archived_total[1h]))",
    ),
    "archive_failures_1h": Figure(
        text="Tries in the last hour to write the archive that failed.",
        unit=Unit.COUNT,
        expression="sum by (job) (increase($letters_archive_failures_total[1h]))",
    ),
    "redis_memory_share": Figure(
        text="Memory of the Redis server in use, of what it may use; unknown where it has no limit.",
        unit=Unit.SHARE,
        expression="max by (job) ($redis_memory_used_bytes / ($redis_memory_max_bytes > 0))",
    ),
    "redis_oom_errors": Figure(
        text=(
            "Commands the Redis server has refused for want of memory (OOM error replies) in the last ten minutes; "
            "asked once, since its statistics began."
        ),
        unit=Unit.COUNT,
        expression="max by (job) (increase($redis_oom_errors_total[10m]))",
    ),
}

OOM_WINDOW_MS: Final = 600_000
NEW_WINDOW_MS: Final = 300_000
RATE_WINDOW_MS: Final = 3_600_000


def written(value: float, unit: Unit) -> str:
    """A value for a person: `120`, `3.5 %`, `1 h 5 min`."""
    match unit:
        case Unit.COUNT:
            return f"{value:,.0f}".replace(",", " ")
        case Unit.SHARE:
            return f"{value * 100:.1f} %"
        case Unit.SECONDS:
            return _duration(round(value))


def _duration(seconds: int) -> str:
    parts = [(seconds // 86_400, "d"), (seconds // 3_600 % 24, "h"), (seconds // 60 % 60, "min"), (seconds % 60, "s")]
    told = [f"{count} {unit}" for count, unit in parts if count]
    return " ".join(told[:2]) or "0 s"
