"""Throughput on RabbitMQ: every contender once per round, in a different order each round; medians over the rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from bench.compare import Rounds, Spread, in_turn, size
from bench.measure import Contender
from bench.rabbitmq import RAW, REDRIVE
from bench.rabbitmq.runs import Run, on_a_vhost
from redrive.testing.servers.rabbitmq import RabbitNode

GOALS: Final = {"aiormq": 2.0, "dramatiq": 3.5, "faststream": 3.5, "celery": 7.0}
"""How many times as fast redrive is meant to consume."""

PUBLISH_GOAL: Final = 2.0
"""And to publish with confirms, against `RAW`."""


def _publish_per_s(each: Run) -> float:
    return each.publish_per_s


def _consume_per_s(each: Run) -> float:
    return each.consume_per_s


def compare(
    node: RabbitNode,
    contenders: Sequence[Contender],
    *,
    place: Path,
    rounds: int,
    seconds: float,
    tell: Callable[[str], None],
) -> Rounds[Run]:
    """Run `rounds` rounds on one node; each run consumes for about `seconds` on an idle machine."""

    def run(contender: Contender) -> Run:
        return on_a_vhost(node, contender, place=place, messages=size(contender, seconds))

    return in_turn(contenders, run, rounds=rounds, tell=tell)


def rows(rounds: Rounds[Run]) -> list[dict[str, Any]]:
    """One row a contender, the fastest consumer first."""
    found = [_row(rounds, contender) for contender in rounds.contenders]
    return sorted(found, key=lambda row: -row["consume_per_s"])


def _row(rounds: Rounds[Run], contender: Contender) -> dict[str, Any]:
    name = contender.name
    consumed = rounds.of(name, _consume_per_s)
    row: dict[str, Any] = {
        "name": name,
        "title": contender.title,
        "messages": rounds.runs[name][0].messages,
        "publish_per_s": rounds.of(name, _publish_per_s).median,
        "publish_cpu_us": rounds.of(name, lambda each: each.publish_cpu_us).median,
        "consume_per_s": consumed.median,
        "consume_low": consumed.low,
        "consume_high": consumed.high,
        "consume_cpu_us": rounds.of(name, lambda each: each.consume_cpu_us).median,
        "broker_cpu_us": rounds.of(name, lambda each: each.broker_cpu_us).median,
        "rss_mb": rounds.of(name, lambda each: each.rss_mb).median,
    }
    if REDRIVE.name in rounds.runs:
        row |= _ratios("consume", rounds.ratio(REDRIVE.name, name, _consume_per_s))
        row |= _ratios("publish", rounds.ratio(REDRIVE.name, name, _publish_per_s))
    return row


def _ratios(what: str, ratio: Spread) -> dict[str, float]:
    return {f"{what}_ratio": ratio.median, f"{what}_ratio_low": ratio.low, f"{what}_ratio_high": ratio.high}


def claims(rounds: Rounds[Run]) -> list[tuple[str, str, str]]:
    """What is promised of the ratios, what came out, and by how much it varied."""
    if REDRIVE.name not in rounds.runs:
        return []
    measured = [(f"consume, redrive over {name}", name, _consume_per_s, goal) for name, goal in GOALS.items()]
    measured.append((f"publish with confirms, redrive over {RAW.name}", RAW.name, _publish_per_s, PUBLISH_GOAL))
    found = []
    for title, name, number, goal in measured:
        if name in rounds.runs:
            ratio = rounds.ratio(REDRIVE.name, name, number)
            found.append((title, f"{ratio.median:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})", f"at least {goal:g}x"))
    return found
