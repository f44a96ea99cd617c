"""Throughput on RabbitMQ: every contender once per round, in a different order each round; medians over the rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from bench import beside
from bench.apart import Run
from bench.compare import Rounds, in_turn, size
from bench.measure import Contender
from bench.rabbitmq import RAW, REDRIVE
from bench.rabbitmq.runs import on_a_vhost
from redrive.testing.servers.rabbitmq import RabbitNode

GOALS: Final = {"aiormq": 2.0, "dramatiq": 3.5, "faststream": 3.5, "celery": 7.0}
"""How many times as fast redrive is meant to consume."""

PUBLISH_GOAL: Final = 2.0
"""And to publish with confirms, against `RAW`."""


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
    return beside.rows(rounds, REDRIVE)


def claims(rounds: Rounds[Run]) -> list[tuple[str, str, str]]:
    """What is promised of the ratios, what came out, and by how much it varied."""
    consumed = [(f"consume, redrive over {name}", name, beside.consume_per_s, goal) for name, goal in GOALS.items()]
    published = (f"publish with confirms, redrive over {RAW.name}", RAW.name, beside.publish_per_s, PUBLISH_GOAL)
    return beside.claims(rounds, REDRIVE, [*consumed, published])
