"""Throughput: every contender once per round, in a different order each round; medians and ratios over the rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Generic, TypeVar

from bench.contenders import CEILING, REDRIVE
from bench.measure import Contender, Run, in_a_process


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median, least and greatest of a number over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        return cls(median=median(values), low=min(values), high=max(values))


AnyRun = TypeVar("AnyRun")


def _both_per_s(run: Run) -> float:
    return run.both_per_s


@dataclass(slots=True)
class Rounds(Generic[AnyRun]):
    """All runs of all contenders, round by round: `runs[name][i]` is the run of round i."""

    contenders: tuple[Contender, ...]
    runs: dict[str, list[AnyRun]] = field(default_factory=dict)

    def of(self, name: str, number: Callable[[AnyRun], float]) -> Spread:
        """One number of one contender over the rounds."""
        return Spread.of([number(run) for run in self.runs[name]])

    def ratio(self, name: str, to: str, number: Callable[[AnyRun], float]) -> Spread:
        """`name` divided by `to`, within each round (so that a slow minute of the machine hits both)."""
        pairs = zip(self.runs[name], self.runs[to], strict=True)
        return Spread.of([number(one) / number(other) for one, other in pairs])


def compare(
    contenders: Sequence[Contender], *, folder: Path, rounds: int, seconds: float, tell: Callable[[str], None]
) -> Rounds[Run]:
    """Run `rounds` rounds; each run is sized to take about `seconds` on an idle machine."""

    def run(contender: Contender) -> Run:
        return in_a_process(contender, folder=folder, messages=size(contender, seconds))

    return in_turn(contenders, run, rounds=rounds, tell=tell)


def in_turn(
    contenders: Sequence[Contender],
    run: Callable[[Contender], AnyRun],
    *,
    rounds: int,
    tell: Callable[[str], None],
) -> Rounds[AnyRun]:
    """Each contender once a round, another one first in each."""
    result: Rounds[AnyRun] = Rounds(contenders=tuple(contenders), runs={each.name: [] for each in contenders})
    for number in range(rounds):
        turn = number % len(contenders)
        for contender in (*contenders[turn:], *contenders[:turn]):
            tell(f"round {number + 1} of {rounds}: {contender.title}")
            result.runs[contender.name].append(run(contender))
    return result


def size(contender: Contender, seconds: float) -> int:
    """How many messages take it about `seconds` on an idle machine."""
    return max(200, int(contender.rate * seconds))


def rows(rounds: Rounds[Run]) -> list[dict[str, Any]]:
    """One row a contender, fastest first: plain numbers, ready for a table or JSON."""
    found = [_row(rounds, contender) for contender in rounds.contenders]
    return sorted(found, key=lambda row: -row["both_per_s"])


def _row(rounds: Rounds[Run], contender: Contender) -> dict[str, Any]:
    name = contender.name
    both = rounds.of(name, _both_per_s)
    row: dict[str, Any] = {
        "name": name,
        "title": contender.title,
        "synchronous": rounds.runs[name][0].synchronous,
        "messages": rounds.runs[name][0].messages,
        "publish_per_s": rounds.of(name, lambda run: run.publish_per_s).median,
        "consume_per_s": rounds.of(name, lambda run: run.consume_per_s).median,
        "both_per_s": both.median,
        "both_low": both.low,
        "both_high": both.high,
        "cpu_ms": rounds.of(name, lambda run: run.cpu_ms).median,
        "rss_mb": rounds.of(name, lambda run: run.rss_mb).median,
    }
    if REDRIVE.name in rounds.runs:
        ratio = rounds.ratio(REDRIVE.name, name, _both_per_s)
        row |= {"redrive_ratio": ratio.median, "redrive_ratio_low": ratio.low, "redrive_ratio_high": ratio.high}
    return row


def claims(rounds: Rounds[Run]) -> dict[str, float]:
    """The ratios redrive promises: against huey as it comes, and against the ceiling of the same run."""
    if REDRIVE.name not in rounds.runs:
        return {}
    return {
        f"redrive_over_{name.replace('-', '_')}": rounds.ratio(REDRIVE.name, name, _both_per_s).median
        for name in ("huey", CEILING.name)
        if name in rounds.runs
    }
