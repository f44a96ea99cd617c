"""Throughput on Redis: every contender once per round, in a different order each round; medians over the rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from bench import beside
from bench.apart import Run, Sides
from bench.compare import Rounds, in_turn, size
from bench.measure import Contender
from bench.redis import CONTENDERS, NODE, PYTHON, REDRIVE
from bench.redis.runs import on_a_server
from redrive.testing.servers.redis_install import RedisInstall

GOALS: Final = {NODE.name: 1.0, PYTHON.name: 5.0}
"""How many times as fast redrive is meant to consume."""


def compare(
    install: RedisInstall,
    sides: Mapping[str, Sides],
    *,
    folder: Path,
    rounds: int,
    seconds: float,
    tell: Callable[[str], None],
) -> Rounds[Run]:
    """Run `rounds` rounds; each run consumes for about `seconds` on an idle machine. `sides`: by contender."""

    def run(contender: Contender) -> Run:
        messages = size(contender, seconds)
        return on_a_server(install, contender, folder=folder, messages=messages, sides=sides[contender.name])

    return in_turn([CONTENDERS[name] for name in sides], run, rounds=rounds, tell=tell)


def rows(rounds: Rounds[Run]) -> list[dict[str, Any]]:
    """One row a contender, the fastest consumer first."""
    return beside.rows(rounds, REDRIVE)


def claims(rounds: Rounds[Run]) -> list[tuple[str, str, str]]:
    """What is promised of the ratios, what came out, and by how much it varied."""
    promised = [
        (f"consume, redrive over {CONTENDERS[name].title}", name, beside.consume_per_s, goal)
        for name, goal in GOALS.items()
    ]
    return beside.claims(rounds, REDRIVE, promised)
