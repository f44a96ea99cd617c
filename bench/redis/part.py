"""The part of the bench that needs a Redis: starts servers, measures on them, and says it in tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bench import beside, delays, idle, table
from bench.apart import Sides
from bench.redis import CONTENDERS, comparison, memory, peers
from bench.redis.runs import server
from redrive.testing.servers.node_install import installed_bullmq
from redrive.testing.servers.redis_install import RedisInstall, installed_redis

PARTS: Final = ("throughput", "memory", "idle", "retries")

FEED: Final = delays.Feed(per_s=100, shortest_s=0.5, longest_s=5.0, floor_ms=50.0, share=0.0)

LEGEND: Final = (
    "Messages of 400 bytes of JSON, one worker process each, a Redis of its own for each run (append-only file, on\n"
    "disk every second). Medians of the rounds; ratios are medians of the ratios within each round, with the least\n"
    "and the greatest. CPU is of the client's processes, a message. redrive keeps a key for each message in the same\n"
    "Redis; what each of the others is set to stands at the top of its module in bench/redis."
)


def measure(
    folder: Path,
    *,
    rounds: int,
    seconds: float,
    quick: bool,
    tell: Callable[[str], None],
    parts: Collection[str] = PARTS,
    contenders: Collection[str] = tuple(CONTENDERS),
) -> dict[str, Any]:
    """Measure on the oldest Redis this machine has. Raises RuntimeError where it has none."""
    found = installed_redis()
    if not found:
        raise RuntimeError("No Redis on this machine. Run: python -m redrive.testing.servers")
    install = found[0]
    result: dict[str, Any] = {"broker": str(install)}
    if "throughput" in parts:
        sides = _available(contenders, tell)
        result["versions"] = _versions(sides, tell)
        compared = comparison.compare(
            install, sides, folder=folder, rounds=1 if quick else rounds, seconds=seconds, tell=tell
        )
        result |= {"rows": comparison.rows(compared), "claims": comparison.claims(compared)}
    if "memory" in parts:
        tell("memory of waiting jobs and dead letters")
        result["memory"] = asdict(memory.measure(install, folder, jobs=1_000 if quick else 10_000))
    if "idle" in parts:
        tell("a waiting worker")
        result["idle"] = _idle(install, folder, quick=quick)
    if "retries" in parts:
        tell("retries at 100 messages a second")
        with server(install) as node:
            late = delays.measure(node.url, folder, messages=100 if quick else 1_000, feed=FEED)
        result["retries"] = asdict(late)
    return result


def _idle(install: RedisInstall, folder: Path, *, quick: bool) -> dict[str, float]:
    with server(install) as node:
        return asdict(idle.measure(folder, seconds=2 if quick else 20, messages=20 if quick else 200, url=node.url))


def _available(names: Collection[str], tell: Callable[[str], None]) -> Mapping[str, Sides]:
    found = {}
    for name in names:
        try:
            found[name] = peers.sides_of(name, tell)
        except peers.NotThere as missing:
            tell(f"{name} is left out: {missing}")
    return found


def _versions(names: Collection[str], tell: Callable[[str], None]) -> dict[str, str]:
    """Of each peer that takes part, and of what it stands on."""
    told: dict[str, str] = {}
    if "bullmq-node" in names:
        told["bullmq (Node)"] = str(installed_bullmq(peers.NODE_MAJOR))
        told["node"] = peers.node_version()
    for name in names:
        if not name.startswith("redrive") and name != "bullmq-node":
            suffix = " (arq's)" if name in peers.FILES else ""
            versions = peers.environment(name, tell).versions()
            told |= {f"{package}{suffix}" if package != name else package: each for package, each in versions.items()}
    return told


def text(result: dict[str, Any]) -> str:
    """Tables."""
    shown = [result["broker"]]
    if "rows" in result:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(result["versions"].items()))
        shown += [versions, beside.text(result["rows"], where="on Redis"), LEGEND]
    figures = [*map(tuple, result.get("claims", ()))]
    for part, rows in _FIGURES.items():
        if part in result:
            figures += rows(result[part])
    return "\n\n".join([*shown, table.figures(figures)])


def _memory_rows(found: dict[str, float]) -> list[tuple[str, str, str]]:
    many = f"{found['jobs']:,.0f}"
    return [
        (f"Redis memory, {many} waiting jobs and their keys", f"{found['waiting_bytes']:,.0f} bytes each", "2 048"),
        (f"Redis memory, {many} dead letters", f"{found['dead_bytes']:,.0f} bytes each", "3 072"),
        ("the same, BullMQ's failed jobs kept as well", f"{found['dead_kept_bytes']:,.0f} bytes each", "-"),
    ]


def _idle_rows(found: dict[str, float]) -> list[tuple[str, str, str]]:
    across = ", ".join(f"p{at} {found[f'wake_process_p{at}_ms']:.1f} ms" for at in (50, 95, 99))
    return [
        ("CPU of a waiting worker", f"{found['cpu_percent']:.2f} %", "below 1 %"),
        ("publish to handler, idle, other process", across, "p50 below 50 ms, p95 below 250 ms"),
    ]


def _retry_rows(found: dict[str, float]) -> list[tuple[str, str, str]]:
    late = ", ".join(f"{at} {found[f'late_{at}_ms']:.1f} ms" for at in ("p50", "p99", "max"))
    what = f"{found['delays']:,.0f} retries after 0.5 to 5 s, fed at 100/s: late by"
    return [(what, late, "p99 at most 50 ms"), ("of these early", str(found["early"]), "none")]


_FIGURES: Final[dict[str, Callable[[Any], list[tuple[str, str, str]]]]] = {
    "memory": _memory_rows,
    "idle": _idle_rows,
    "retries": _retry_rows,
}
