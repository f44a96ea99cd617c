"""The canary of a redrive job: which letters go first, and what their fate says about the rest.

Letters that fail again share a cause, and a cause lies in some group or some tenant. So the letters of a job are laid
into *strata* (group, tenant), the first K are spread over them in proportion, and the bad share of the whole job is
estimated stratum by stratum, each by its size: a cause that is all of one small stratum is then seen as exactly as
small as it is, after a handful of sends.

The verdict is Wald's sequential test (A. Wald, Sequential Analysis, 1947) of `tolerated` against `bad` over that
estimate: n sends with an estimated share p count as n·p failures. Passing the upper boundary stops the job at once;
when the whole canary is known the more likely of the two decides.

What it can do, at 1 % against 3 % and K = 400. Where the bad letters are a cause (strata that fail), 3 %
is stopped and 1 % is not, practically always. Where they lie anywhere at all, independent of group and tenant, no test
of 400 draws can do both: the best ones stop 91 of 100 jobs with 3 % and 5 of 100 with 1 % (Neyman and Pearson;
binomial: 8 failures of 400). This one is near that bound.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from redrive.core.units import UnixMs

TOLERATED: Final = 0.01
BAD: Final = 0.03
"""Bad shares that the test tells apart."""
STOP_AT: Final = math.log(0.95 / 0.05)
"""Wald's upper boundary for 5 % of either error."""
MAX_STRATA: Final = 1_000
"""What does not fit lies together in one more."""
MAX_CANARY: Final = 10_000

StratumName: TypeAlias = tuple[str, str]
"""(group, tenant)."""
REST: Final[StratumName] = ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a job keeps of its canary from one runner to the next. `positions`: the letters that go first. `sizes`: of
    its strata. `sent`: how many of each went. `is_over`: the canary is known, and the rest may go. `since`: when it was
    chosen, where there was one before it: what went earlier says nothing of this one. `is_stopped`: it stopped the job.
    """

    positions: tuple[int, ...]
    sizes: Mapping[StratumName, int]
    sent: Mapping[StratumName, int]
    is_over: bool = False
    since: UnixMs = 0
    is_stopped: bool = False


def progress_json(progress: Progress) -> str:
    """As `Job.progress` holds it."""
    strata = [[*name, size, progress.sent.get(name, 0)] for name, size in progress.sizes.items()]
    flags = {"is_over": progress.is_over, "since": progress.since, "is_stopped": progress.is_stopped}
    return json.dumps({"canary": progress.positions, "strata": strata, **flags})


def progress_from_json(text: str | None) -> Progress | None:
    """What `progress_json` wrote; None where there is none yet."""
    if text is None:
        return None
    document = json.loads(text)
    return Progress(
        positions=tuple(document["canary"]),
        sizes={(group, tenant): size for group, tenant, size, _ in document["strata"]},
        sent={(group, tenant): sent for group, tenant, _, sent in document["strata"]},
        is_over=document["is_over"],
        since=document.get("since", 0),
        is_stopped=document.get("is_stopped", False),
    )


class Verdict(StrEnum):
    """What to do next."""

    GO = "go"
    WAIT = "wait"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """Letters that may share a cause: how many the job has, how many of them have a known fate, how many failed."""

    size: int
    known: int
    failed: int


def share(strata: Sequence[Stratum]) -> float:
    """The estimated bad share of all letters, 0 to 1. A stratum nobody knows of yet counts as the known ones do."""
    seen = [each for each in strata if each.known]
    size = sum(each.size for each in seen)
    return sum(each.size * each.failed / each.known for each in seen) / size if size else 0.0


def evidence(strata: Sequence[Stratum], *, tolerated: float = TOLERATED, bad: float = BAD) -> float:
    """The log likelihood ratio of `bad` against `tolerated`."""
    known = sum(each.known for each in strata)
    failed = known * share(strata)
    return failed * math.log(bad / tolerated) + (known - failed) * math.log((1 - bad) / (1 - tolerated))


def verdict(strata: Sequence[Stratum], *, is_over: bool, tolerated: float = TOLERATED, bad: float = BAD) -> Verdict:
    """What the letters whose fate is known say. `is_over`: no more of the canary will be known.

    >>> verdict([Stratum(size=100, known=10, failed=10)], is_over=False)
    <Verdict.STOP: 'stop'>
    """
    weight = evidence(strata, tolerated=tolerated, bad=bad)
    if weight >= STOP_AT:
        return Verdict.STOP
    if not is_over:
        return Verdict.WAIT
    return Verdict.STOP if weight > 0 and any(each.failed for each in strata) else Verdict.GO


class _Held:
    """A stratum while letters are shown. `first`: (-draw, position) of the letters drawn, the greatest draw on top."""

    __slots__ = ("first", "size")

    def __init__(self) -> None:
        self.size = 0
        self.first: list[tuple[int, int]] = []


class Choice:
    """Chooses `count` of the letters it is shown, the same ones for the same job. Holds no more than `count` positions
    for each of at most `MAX_STRATA` strata.
    """

    def __init__(self, job_id: str, count: int) -> None:
        self._job_id = job_id
        self._count = count
        self._strata: dict[StratumName, _Held] = {}

    def show(self, position: int, letter_id: str, name: StratumName) -> None:
        """One more letter of the job."""
        known = name if name in self._strata or len(self._strata) < MAX_STRATA else REST
        held = self._strata.setdefault(known, _Held())
        held.size += 1
        digest = hashlib.sha256(f"{self._job_id}\0{letter_id}".encode("utf-8", "surrogatepass")).digest()
        entry = (-int.from_bytes(digest[:8]), position)
        if len(held.first) < self._count:
            heapq.heappush(held.first, entry)
        else:
            heapq.heappushpop(held.first, entry)

    @property
    def sizes(self) -> dict[StratumName, int]:
        """How many letters each stratum has."""
        return {name: held.size for name, held in self._strata.items()}

    def chosen(self) -> list[int]:
        """The positions to send first, spread over the strata: all of them get one before any gets two, as far as
        that goes, the rest is shared out by size.
        """
        turns: list[tuple[float, StratumName, int]] = []
        for name, held in self._strata.items():
            for rank, (_, position) in enumerate(sorted(held.first, reverse=True)):
                turns.append((0.0 if rank == 0 else (rank + 0.5) / held.size, name, position))
        first = sorted(turns, key=lambda turn: (turn[0], -self._strata[turn[1]].size, turn[1]))
        return [position for _, _, position in first[: self._count]]
