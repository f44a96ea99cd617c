"""Alert rules as data: when something is wrong with the dead letters or with Redis, how bad it is, and what to do.

*Source*: system E, Alerts and Redis (dead letters, their rate, one tenant's, memory, OOM); case MA-03 (every
new letter, old letters).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from redrive.core.alerts.figures import FIGURES, written
from redrive.core.units import Millis


class Severity(StrEnum):
    """CRITICAL: wake somebody. WARNING: today."""

    CRITICAL = "critical"
    WARNING = "warning"


class Group(StrEnum):
    """Rules that are wanted together. EVERY_LETTER is for teams where a single dead letter is an incident."""

    DEAD_LETTERS = "dead-letters"
    REDIS = "redis"
    EVERY_LETTER = "every-letter"


_PLACES: Final = re.compile(r"\{(value|label|word)\}")

DEFAULT_GROUPS: Final = (Group.DEAD_LETTERS, Group.REDIS)


class Is(StrEnum):
    """How a figure is compared; the values are PromQL's own."""

    ABOVE = ">"
    AT_LEAST = ">="


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A figure compared with a limit."""

    figure: str
    compared: Is
    limit: float

    def holds(self, value: float) -> bool:
        """Whether this value meets it; what is no number does not."""
        return value > self.limit if self.compared is Is.ABOVE else value >= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One alert. It is wrong where all conditions hold, and tells the first one's figure; it fires once they have held
    for `for_ms`. In the texts `{value}` and `{label}` stand for what was found; `{word}` is the label as one word of a
    shell, for it is a stranger's text and the action is pasted into one.
    """

    name: str
    group: Group
    severity: Severity
    when: tuple[Condition, ...]
    summary: str
    description: str
    action: str
    for_ms: Millis = 0

    @property
    def label(self) -> str | None:
        """What its alerts differ by; None: there is one at most."""
        return FIGURES[self.when[0].figure].label

    def told(self, text: str, *, value: float, label: str) -> str:
        """One of its texts, filled in."""
        unit = FIGURES[self.when[0].figure].unit
        texts = {"value": written(value, unit), "label": label, "word": shlex.quote(label)}
        return _PLACES.sub(lambda found: texts[found[1]], text)


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        name="DeadLettersMany",
        group=Group.DEAD_LETTERS,
        severity=Severity.WARNING,
        when=(Condition(figure="letters_open", compared=Is.ABOVE, limit=100),),
        summary="{value} dead letters wait for somebody to decide",
        description="More than 100 messages were given up on and neither redriven nor closed since.",
        action=(
            "Tell operations. See the problems behind them: redrive dlq stats. When the cause is fixed, send one "
            "problem back, gently: redrive dlq redrive --group ID --rate 50/s --dry-run"
        ),
    ),
    Rule(
        name="DeadLetterRateHigh",
        group=Group.DEAD_LETTERS,
        severity=Severity.WARNING,
        when=(
            Condition(figure="dead_letter_share_1h", compared=Is.ABOVE, limit=0.02),
            Condition(figure="sends_1h", compared=Is.AT_LEAST, limit=50),
        ),
        summary="{value} of what was sent in the last hour was dead-lettered",
        description="More than 2 % of at least 50 messages that came to an end within an hour were given up on.",
        action=(
            "Look into the failure patterns: redrive dlq stats --since 1h. One letter with every attempt: "
            "redrive dlq show LETTER"
        ),
    ),
    Rule(
        name="TenantDeadLetters",
        group=Group.DEAD_LETTERS,
        severity=Severity.WARNING,
        when=(Condition(figure="letters_by_tenant", compared=Is.ABOVE, limit=50),),
        summary="Tenant {label} has {value} dead letters",
        description="More than 50 messages of one tenant were given up on and neither redriven nor closed since.",
        action="Tell that tenant what failed and why: redrive dlq stats --tenant {word}",
    ),
    Rule(
        name="DeadLettersArchived",
        group=Group.DEAD_LETTERS,
        severity=Severity.CRITICAL,
        when=(Condition(figure="letters_archived_1h", compared=Is.ABOVE, limit=0),),
        summary="{value} dead letters over the maximum were archived in the last hour",
        description=(
            "More messages were given up on than max_letters allows. The oldest are in files of the folder archive; "
            "nothing is lost, and nobody sees them in the lists any more."
        ),
        action=(
            "Find the cause: redrive dlq stats --since 1h. When it is fixed, load them again and send them back: "
            "redrive dlq import FILE, redrive dlq redrive QUEUE --rate 50/s. FILE is in the log (letters.archived)"
        ),
    ),
    Rule(
        name="ArchiveFails",
        group=Group.DEAD_LETTERS,
        severity=Severity.CRITICAL,
        when=(Condition(figure="archive_failures_1h", compared=Is.ABOVE, limit=0),),
        summary="The archive of dead letters could not be written {value} times in the last hour",
        description="Dead letters over their maximum stay until it can: nothing is lost, and the store grows.",
        action=(
            "Make room or set rights in the folder archive; the log says which file and why (letters.not_archived). "
            "Or write them elsewhere by hand: redrive dlq prune --older-than 7d --archive FILE"
        ),
    ),
    Rule(
        name="RedisMemoryHigh",
        group=Group.REDIS,
        severity=Severity.WARNING,
        when=(Condition(figure="redis_memory_share", compared=Is.ABOVE, limit=0.8),),
        summary="Redis uses {value} of its memory",
        description="At 100 % Redis refuses every write: nothing is accepted and nothing can be settled.",
        action=(
            "See what fills it: redrive doctor, redrive queues list. Write old dead letters to a file and remove "
            "them: redrive dlq prune --older-than 7d --archive letters.jsonl. Or give Redis more: redrive doctor "
            "prints the command for twice its limit"
        ),
    ),
    Rule(
        name="RedisMemoryCritical",
        group=Group.REDIS,
        severity=Severity.CRITICAL,
        when=(Condition(figure="redis_memory_share", compared=Is.ABOVE, limit=0.9),),
        summary="Redis uses {value} of its memory",
        description="At 100 % Redis refuses every write: nothing is accepted and nothing can be settled.",
        action=(
            "Give Redis more memory now: redrive doctor prints the command for twice its limit. "
            "Then see what fills it: redrive queues list"
        ),
    ),
    Rule(
        name="RedisOutOfMemory",
        group=Group.REDIS,
        severity=Severity.CRITICAL,
        when=(Condition(figure="redis_oom_errors", compared=Is.ABOVE, limit=0),),
        summary="Redis refused {value} commands for want of memory",
        description=(
            "Writes were answered with an OOM error. What had been accepted is safe; publishers got an error, and "
            "consumers pause until there is room."
        ),
        action=(
            "Give Redis more memory now: redrive doctor prints the command for twice its limit. "
            "Look at it again with redrive doctor. When it is over, redis-cli CONFIG RESETSTAT forgets the count"
        ),
    ),
    Rule(
        name="NewDeadLetters",
        group=Group.EVERY_LETTER,
        severity=Severity.CRITICAL,
        when=(Condition(figure="letters_new_5m", compared=Is.ABOVE, limit=0),),
        summary="{value} new dead letters in the last five minutes",
        description="A message was given up on.",
        action="See which and why: redrive dlq list --since 5m",
    ),
    Rule(
        name="DeadLettersOld",
        group=Group.EVERY_LETTER,
        severity=Severity.WARNING,
        when=(Condition(figure="letter_oldest_age_seconds", compared=Is.AT_LEAST, limit=3_600),),
        summary="The oldest dead letter has waited {value}",
        description="A message was given up on an hour ago or more, and nobody has redriven or closed it.",
        action=(
            "See what waits: redrive dlq list --until 1h. Send it back or close it: redrive dlq redrive LETTER, "
            "redrive dlq close LETTER --note WHY"
        ),
    ),
)
"""Every rule there is. `DEFAULT_GROUPS` are those one gets without asking."""

BY_NAME: Final[Mapping[str, Rule]] = {rule.name: rule for rule in RULES}


def rules_of(groups: tuple[Group, ...] = DEFAULT_GROUPS) -> tuple[Rule, ...]:
    """The rules of these groups, in their order in the table."""
    return tuple(rule for rule in RULES if rule.group in groups)
