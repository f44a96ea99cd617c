"""`python -m bench`: all measurements, or some; tables for people, `--json` for machines."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bench import compare, idle, machine, memory, retries, table
from bench.contenders import CONTENDERS
from bench.measure import ROOT
from bench.rabbitmq import part as rabbitmq
from bench.redis import part as redis

PARTS: Final = ("throughput", "idle", "retries", "memory", "rabbitmq", "redis")
PROMISES: Final = {
    "redrive_over_huey": "at least 10x",
    "redrive_over_ceiling": "at least 0.5x",
}


def main() -> int:
    """Measure, then print."""
    given = _arguments()
    folder: Path = given.folder
    folder.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"machine": machine.line(folder)}
    for part in given.only or PARTS:
        _MEASURES[part](given, folder, result)
    print(json.dumps(result, indent=2) if given.json else _text(result))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, help="measure only these parts")
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds of the comparison (default 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long one run takes (default 3)")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything: to see that it works")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "out" / "bench", help="where the files lie: the disk counts"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser.parse_args()


def _tell(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


def _throughput(given: argparse.Namespace, folder: Path, result: dict[str, Any]) -> None:
    rounds = compare.compare(
        [CONTENDERS[name] for name in given.contenders],
        folder=folder,
        rounds=1 if given.quick else given.rounds,
        seconds=given.seconds / 10 if given.quick else given.seconds,
        tell=_tell,
    )
    result["throughput"] = compare.rows(rounds)
    result["claims"] = compare.claims(rounds)


def _idle(given: argparse.Namespace, folder: Path, result: dict[str, Any]) -> None:
    _tell("a waiting worker")
    quick = given.quick
    result["idle"] = asdict(idle.measure(folder, seconds=2 if quick else 20, messages=20 if quick else 200))


def _retries(given: argparse.Namespace, folder: Path, result: dict[str, Any]) -> None:
    _tell("retries within ten seconds")
    result["retries"] = asdict(retries.measure(folder, retries=200 if given.quick else 2_000))


def _memory(given: argparse.Namespace, folder: Path, result: dict[str, Any]) -> None:
    _tell("scheduled retries and memory")
    growth = memory.measure(folder, retries=2_000 if given.quick else 100_000)
    result["memory"] = asdict(growth) | {"grown_mb": growth.grown_mb}


def _rabbitmq(given: argparse.Namespace, folder: Path, result: dict[str, Any]) -> None:
    seconds = given.seconds / 10 if given.quick else given.seconds
    result["rabbitmq"] = rabbitmq.measure(folder, rounds=given.rounds, seconds=seconds, quick=given.quick, tell=_tell)


def _redis(given: argparse.Namespace, folder: Path, result: dict[str, Any]) -> None:
    seconds = given.seconds / 10 if given.quick else given.seconds
    result["redis"] = redis.measure(folder, rounds=given.rounds, seconds=seconds, quick=given.quick, tell=_tell)


_MEASURES: Final[dict[str, Callable[[argparse.Namespace, Path, dict[str, Any]], None]]] = {
    "throughput": _throughput,
    "idle": _idle,
    "retries": _retries,
    "memory": _memory,
    "rabbitmq": _rabbitmq,
    "redis": _redis,
}


def _text(result: dict[str, Any]) -> str:
    parts = [result["machine"]]
    if "throughput" in result:
        parts += [table.throughput(result["throughput"]), _LEGEND]
    figures = [row for part, rows in _FIGURES.items() if part in result for row in rows(result[part])]
    if figures:
        parts.append(table.figures(figures))
    if "rabbitmq" in result:
        parts.append(rabbitmq.text(result["rabbitmq"]))
    if "redis" in result:
        parts.append(redis.text(result["redis"]))
    return "\n\n".join(parts)


_LEGEND: Final = (
    "Messages of 400 bytes of JSON. Rates are medians of the rounds, ratios medians of the ratios within each round.\n"
    "synchronous: what SQLite was told (redrive: its durability); full means that a commit is on the disk before its\n"
    "caller hears of it. redrive has idempotency, leases, a retry policy and events on; the others offer none of these."
)


def _claims(found: dict[str, float]) -> list[tuple[str, str, str]]:
    return [(name.replace("_", " "), f"{value:.2f}x", PROMISES[name]) for name, value in found.items()]


def _idle_rows(found: dict[str, float]) -> list[tuple[str, str, str]]:
    own = f"p50 {found['wake_own_p50_ms']:.1f} ms, p99 {found['wake_own_p99_ms']:.1f} ms"
    across = f"p50 {found['wake_process_p50_ms']:.1f} ms, p99 {found['wake_process_p99_ms']:.1f} ms"
    return [
        ("CPU of a waiting worker", f"{found['cpu_percent']:.2f} %", "below 1 %"),
        ("publish to handler, same process", own, "wakes within 5 ms"),
        ("publish to handler, other process", across, "wakes within 100 ms"),
    ]


def _retry_rows(found: dict[str, float]) -> list[tuple[str, str, str]]:
    what = f"{found['retries']} retries due within 10 s: late by"
    late = f"p50 {found['p50_ms']:.1f} ms, p99 {found['p99_ms']:.1f} ms, max {found['max_ms']:.1f} ms"
    return [(what, late, "p99 at most 20 ms"), ("of these early", str(found["early"]), "none")]


def _memory_rows(found: dict[str, float]) -> list[tuple[str, str, str]]:
    what = f"worker memory, {found['retries']} scheduled retries"
    return [(what, f"{found['before_mb']:.0f} MB, then {found['after_mb']:.0f} MB", "does not grow")]


_FIGURES: Final[dict[str, Callable[[Any], list[tuple[str, str, str]]]]] = {
    "claims": _claims,
    "idle": _idle_rows,
    "retries": _retry_rows,
    "memory": _memory_rows,
}


if __name__ == "__main__":
    sys.exit(main())
