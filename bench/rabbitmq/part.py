"""The part of `python -m bench` that needs a RabbitMQ: starts one, measures on it, and says it in tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from bench import beside, delays, table
from bench.measure import Contender
from bench.rabbitmq import CONTENDERS, comparison, redrives
from redrive.testing.servers.rabbitmq import RabbitNode
from redrive.testing.servers.rabbitmq_install import installed

PACKAGES: Final = {
    "aiormq": "aiormq", "aio-pika": "aio_pika", "faststream": "faststream", "dramatiq": "dramatiq",
    "dramatiq-safe": "dramatiq", "taskiq": "taskiq_aio_pika", "celery": "celery", "celery-safe": "celery",
}  # fmt: skip
"""What each contender needs beside redrive; they are among the development dependencies."""

FEED: Final = delays.Feed(per_s=300, shortest_s=0.5, longest_s=20.0, floor_ms=150.0, share=0.05, settling_s=5.0)
"""Random delays of 0.5 to 20 s: at the 99th percentile no later than 150 ms, or 5 % of the delay where that is more."""

LEGEND: Final = (
    "Messages of 400 bytes of JSON, one worker process each, one broker. Medians of the rounds; ratios are medians of\n"
    "the ratios within each round, with the least and the greatest. CPU is of the client's processes, a message.\n"
    "redrive counts attempts, keeps a key for each message in its SQLite file (fsync on), and confirms what it sends;\n"
    "what each of the others is set to stands at the top of its module in bench/rabbitmq."
)


def measure(folder: Path, *, rounds: int, seconds: float, quick: bool, tell: Callable[[str], None]) -> dict[str, Any]:
    """Start the oldest RabbitMQ this machine has, and measure all. Raises RuntimeError where it has none."""
    found = installed()
    if not found:
        raise RuntimeError("No RabbitMQ on this machine. Run: python -m redrive.testing.servers")
    contenders = _available(tell)
    tell(f"starting {found[0]}")
    # Its numbers of messages are asked for after each run: every second instead of every five.
    with RabbitNode(found[0], settings={"collect_statistics_interval": "1000"}) as node:
        compared = comparison.compare(
            node, contenders, place=folder, rounds=1 if quick else rounds, seconds=seconds, tell=tell
        )
        result: dict[str, Any] = {
            "broker": str(found[0]),
            "rows": comparison.rows(compared),
            "claims": comparison.claims(compared),
        }
        tell("dead letters, sent back")
        result["redrives"] = asdict(redrives.measure(node, folder, letters=500 if quick else 10_000))
        tell("retries with random delays")
        with node.vhost() as vhost:
            late = delays.measure(vhost.url, folder, messages=200 if quick else 2_000, feed=FEED)
        result["delays"] = asdict(late)
    return result


def _available(tell: Callable[[str], None]) -> Sequence[Contender]:
    missing = [name for name in CONTENDERS if name in PACKAGES and find_spec(PACKAGES[name]) is None]
    if missing:
        tell(f"not installed, left out: {', '.join(missing)} (make setup installs them)")
    return [contender for name, contender in CONTENDERS.items() if name not in missing]


def text(result: dict[str, Any]) -> str:
    """Tables."""
    figures = [*result["claims"], *_redrive_rows(result["redrives"]), *_delay_rows(result["delays"])]
    compared = beside.text(result["rows"], where="on RabbitMQ")
    return "\n\n".join([result["broker"], compared, LEGEND, table.figures(figures)])


def _redrive_rows(found: dict[str, float]) -> list[tuple[str, str, str]]:
    died = f"{found['died_per_s']:,.0f}/s, {found['died_cpu_ms']:.2f} ms of CPU each"
    sent = f"{found['sent_per_s']:,.0f}/s, {found['sent_cpu_ms']:.2f} ms of CPU each"
    return [
        (f"{found['letters']:,.0f} messages dying: letter and dead-letter queue", died, "-"),
        ("one job sending all of them back", sent, "-"),
    ]


def _delay_rows(found: dict[str, float]) -> list[tuple[str, str, str]]:
    late = (
        f"p50 {found['late_p50_ms']:.0f} ms, p99 {found['late_p99_ms']:.0f} ms, max {found['late_max_ms']:.0f} ms; "
        f"p99 is {found['excess_p99']:.0%} of what is allowed"
    )
    return [
        (f"{found['delays']:,.0f} delays of 0.5 to 20 s, fed at 300/s: late by", late, "p99 at most 150 ms or 5 %"),
        ("of these early", str(found["early"]), "none"),
    ]
