"""AutoRedrive: letters of a passing cause that are sent back without a person, a few first, and not for ever."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Final

from redrive.core.letters.groups import Group, GroupState
from redrive.core.letters.letter import ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.ports import LetterSummary
from redrive.core.redrive import JobOptions
from redrive.core.units import Duration, Millis, UnixMs, duration_ms
from redrive.errors import ConfigurationError

MAX_LETTERS: Final = 500
"""Letters of one job; what is left waits for the next one."""
SLOT_MS: Final[Millis] = 60_000
"""Of all workers one makes a job for a policy in each of these."""
BY_HAND: Final = frozenset({"QUARANTINED"})
"""Reasons that a person decided on: such letters wait for that person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRedrive:
    """Send letters back by themselves once they have been dead for `after`. `queue`, `error_code`, `reason_code`,
    `message_type`: which ones; at least one is given, all that are hold together. `canary`: so many first; if they fail
    again the job stops by itself. `rate`: sends a second. `max_times`: a letter redriven so often waits for a person.

    Letters that a person has looked at, whose group is acknowledged, ignored or resolved, or that are set aside, are
    left alone. Raises `ConfigurationError` naming the field.

    >>> AutoRedrive(error_code="TIMEOUT", after="10m").after_ms
    600000
    """

    after: Duration
    queue: str | None = None
    error_code: str | None = None
    reason_code: str | None = None
    message_type: str | None = None
    canary: int = 20
    rate: float | None = 10.0
    max_times: int = 1

    def __post_init__(self) -> None:
        if not any((self.queue, self.error_code, self.reason_code, self.message_type)):
            raise ConfigurationError(
                "AutoRedrive says nothing of which letters it is for.",
                hint='Write AutoRedrive(error_code="TIMEOUT", …).',
            )
        if duration_ms(self.after, field="AutoRedrive.after") < 1:
            raise ConfigurationError("AutoRedrive.after is 0: give the cause some time to pass.")
        for name, value in (("canary", self.canary), ("max_times", self.max_times)):
            if value < 1:
                raise ConfigurationError(f"AutoRedrive.{name} is {value}: it must be at least 1.")
        if self.rate is not None and self.rate <= 0:
            raise ConfigurationError(f"AutoRedrive.rate is {self.rate}: it must be above 0, or None.")

    @property
    def after_ms(self) -> Millis:
        """How long a letter lies first."""
        return duration_ms(self.after, field="AutoRedrive.after")

    def selection(self, now: UnixMs) -> Selection:
        """The letters it may be for, now."""
        return Selection(
            queue=self.queue,
            error_code=self.error_code,
            reason_code=self.reason_code,
            message_type=self.message_type,
            states=frozenset({ReviewState.PENDING}),
            until=now - self.after_ms,
        )

    def takes(self, letter: LetterSummary, group: Group | None) -> bool:
        """Whether this one of them is sent."""
        return (
            letter.outstanding_job is None
            and letter.redrive_count < self.max_times
            and letter.reason_code not in BY_HAND
            and letter.queue != letter.dead_letter_queue
            and (group is None or group.work.state is GroupState.OPEN)
        )

    def options(self) -> JobOptions:
        """How its jobs send."""
        return JobOptions(rate_per_s=self.rate, canary=self.canary, max_redrives=self.max_times)

    def request_key(self, now: UnixMs) -> str:
        """The same for every worker in the same slot of time, so that one job is made."""
        said = repr([(each.name, getattr(self, each.name)) for each in fields(self)])
        return f"auto:{hashlib.sha256(said.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}:{now // SLOT_MS}"
