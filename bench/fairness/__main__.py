"""`python -m bench.fairness [URL]`: quiet tenants beside a backlog, and what taking turns costs.

One tenant has a backlog; 99 quiet ones together send 100 and then 300 messages a second; four worker processes with one
handler of 10 ms each. The same run without the noisy tenant is the baseline, the same run without turns the comparison
of throughput. URL with {folder}: a new place for each run; default a SQLite file. `rabbitmq`: a node of its own, with
a virtual host for each run; the shared rate is left out there. `--known`: whoever publishes knows that turns are taken
(RabbitMQ: it publishes to the shards).
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench import machine
from bench.fairness.worker import QUEUE
from bench.measure import ROOT, scratch
from redrive import Delivery, Fair, Redrive
from redrive.testing.servers.rabbitmq import RabbitNode
from redrive.testing.servers.rabbitmq_install import installed

RABBITMQ: Final = "rabbitmq"
WORKERS: Final = 4
HANDLER_MS: Final = 10
QUIET_TENANTS: Final = 99
ALIKE: Final = 15
WARM_UP_S: Final = 2.0
"""Not counted: caches fill, and the first fair look sorts the backlog."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run. Waiting times are those of quiet tenants, from publish to the first line of the handler."""

    quiet_per_s: int
    backlog: int
    fair: bool
    p50_ms: float
    p95_ms: float
    p99_ms: float
    quiet_done: int
    total_per_s: float
    cpu_us_per_message: float
    longest_row: int


class Crew:
    """The worker processes of one run."""

    def __init__(
        self,
        url: str,
        place: Path,
        *,
        fair: bool = False,
        handler_ms: int = HANDLER_MS,
        count: int = WORKERS,
        concurrency: int = 1,
        rate: str = "-",
    ) -> None:
        self._outs = [place / f"worker-{number}.json" for number in range(count)]
        self._processes = [
            subprocess.Popen(
                [
                    sys.executable, "-m", "bench.fairness.worker", url, "fair" if fair else "plain", str(handler_ms),
                    str(concurrency), rate, str(out),
                ],
                cwd=ROOT,
            )
            for out in self._outs
        ]  # fmt: skip

    async def started(self) -> None:
        """All of them consume, and what came with the start is over."""
        async with asyncio.timeout(120):
            while not all(out.with_name(f"{out.name}.ready").exists() for out in self._outs):
                await asyncio.sleep(0.1)
        await asyncio.sleep(WARM_UP_S)

    def stop(self) -> list[dict[str, Any]]:
        """Drain them and read what they saw."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            process.wait(60)
        return [json.loads(out.read_text()) for out in self._outs]


def main() -> int:
    """Measure, then print one JSON document."""
    parser = argparse.ArgumentParser(prog="python -m bench.fairness", description=__doc__)
    parser.add_argument("url", nargs="?", default="sqlite:///{folder}/bench.db")
    parser.add_argument("--rates", type=int, nargs="+", default=[100, 300])
    parser.add_argument("--backlog", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--per-s", type=float, default=60.0, help="the period of the shared rate, 100 starts each")
    parser.add_argument("--drain", type=int, default=20_000, help="messages of the measurement of the cost")
    parser.add_argument("--known", action="store_true", help="who publishes knows that turns are taken")
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "bench-fairness")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.url == RABBITMQ:
        with RabbitNode(installed()[-1]) as given.node:
            given.node.start()
            return _measure(given)
    return _measure(given)


def _measure(given: argparse.Namespace) -> int:
    result: dict[str, Any] = {"machine": machine.line(given.folder), "promises": [], "runs": []}
    for rate in given.rates:
        runs = [
            asyncio.run(_waiting(given, rate, backlog=backlog, fair=fair))
            for backlog, fair in ((0, True), (given.backlog, True), (given.backlog, False))
        ]
        result["runs"] += [asdict(run) for run in runs]
        result["promises"].append(_promise(*runs))
        print(json.dumps(result["promises"][-1]), file=sys.stderr)
    result["cost"] = asyncio.run(_cost(given))
    if given.url != RABBITMQ:
        result["shared_rate"] = asyncio.run(_shared_rate(given))
    print(json.dumps(result, indent=2))
    return 0


@contextmanager
def _url(given: argparse.Namespace, place: Path) -> Iterator[str]:
    """Of an empty broker."""
    if given.url != RABBITMQ:
        yield given.url.format(folder=place)
        return
    os.environ["REDRIVE_STORE"] = f"sqlite:////{place}/store.db"
    with given.node.vhost() as vhost:
        yield vhost.url


def _publisher(url: str, *, fair: bool) -> Redrive:
    app = Redrive("bench", broker=url)
    if fair:

        @app.consumer(QUEUE, fair_by=Fair())
        async def known(payload: dict[str, float], delivery: Delivery) -> None:
            """Never run here: it tells how the queue is served."""

    return app


def _promise(alone: Run, beside: Run, unfair: Run) -> dict[str, Any]:
    allowed = max(1.5 * alone.p95_ms, alone.p95_ms + HANDLER_MS + 10)
    return {
        "quiet_per_s": alone.quiet_per_s,
        "p95_alone_ms": alone.p95_ms,
        "p95_beside_ms": beside.p95_ms,
        "p95_allowed_ms": round(allowed, 1),
        "p95_kept": beside.p95_ms <= allowed,
        "p95_unfair_ms": unfair.p95_ms,
        "throughput_of_unfair": round(beside.total_per_s / unfair.total_per_s, 3),
        "longest_row": beside.longest_row,
    }


async def _waiting(given: argparse.Namespace, rate: int, *, backlog: int, fair: bool) -> Run:
    with scratch(given.folder, "fairness") as place, _url(given, place) as url:
        async with _publisher(url, fair=fair and given.known) as app:
            await _publish(app, ["noisy"] * backlog)
            crew = Crew(url, place, fair=fair)
            await crew.started()
            began = time.time() * 1_000
            await _send_quietly(app, rate, seconds=given.seconds)
            ended = time.time() * 1_000
            await asyncio.sleep(1.0)
            found = crew.stop()
    return _told(found, rate, (began, ended), backlog=backlog, fair=fair)


async def _send_quietly(app: Redrive, rate: int, *, seconds: float) -> None:
    """At random instants, each on its own, tenants drawn at random: what many independent senders look like."""
    rng = random.Random(1)
    at = time.perf_counter()
    until = at + seconds
    sending: set[asyncio.Task[Any]] = set()
    while at < until:
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        tenant = f"quiet-{rng.randrange(QUIET_TENANTS)}"
        task = asyncio.ensure_future(app.publish(QUEUE, {"at": time.time() * 1_000}, tenant=tenant))
        sending.add(task)
        task.add_done_callback(sending.discard)
        at += rng.expovariate(rate)
    await asyncio.gather(*sending)


async def _publish(app: Redrive, tenants: list[str]) -> None:
    for start in range(0, len(tenants), 1_000):
        now = time.time() * 1_000
        await app.publish_many(QUEUE, [({"at": now}, {"tenant": tenant}) for tenant in tenants[start : start + 1_000]])


def _told(found: list[dict[str, Any]], rate: int, window: tuple[float, float], *, backlog: int, fair: bool) -> Run:
    seen = sorted((begun, tenant, at) for each in found for tenant, at, begun in each["seen"])
    waits = sorted(begun - at for begun, tenant, at in seen if tenant != "noisy" and at >= window[0])
    inside = [tenant for begun, tenant, _ in seen if window[0] <= begun < window[1]]
    return Run(
        quiet_per_s=rate,
        backlog=backlog,
        fair=fair,
        p50_ms=_at(waits, 0.50),
        p95_ms=_at(waits, 0.95),
        p99_ms=_at(waits, 0.99),
        quiet_done=len(waits),
        total_per_s=round(len(inside) / (window[1] - window[0]) * 1_000, 1),
        cpu_us_per_message=round(sum(each["cpu_s"] for each in found) / max(1, len(seen)) * 1e6, 1),
        longest_row=_longest_noisy_row(inside),
    )


def _longest_noisy_row(tenants: list[str]) -> int:
    """The longest row of quiet starts says nothing; of noisy ones only where somebody else waited, which the starts
    alone do not tell: so it is shown, not judged.
    """
    longest = row = 0
    for tenant in tenants:
        row = row + 1 if tenant == "noisy" else 0
        longest = max(longest, row)
    return longest


def _at(values: list[float], share: float) -> float:
    return round(values[min(len(values) - 1, int(share * len(values)))], 2) if values else float("nan")


async def _cost(given: argparse.Namespace) -> dict[str, Any]:
    """Processor time of one worker per message, with turns and without, in turn so that a busy machine hits both."""
    spent: dict[str, list[float]] = {"plain": [], "fair": []}
    for _ in range(3):
        for name, values in spent.items():
            values.append(await _drained(given, fair=name == "fair"))
    best = {name: round(min(values), 1) for name, values in spent.items()}
    return {**best, "turns_us": round(best["fair"] - best["plain"], 1), "messages": given.drain}


async def _drained(given: argparse.Namespace, *, fair: bool) -> float:
    with scratch(given.folder, "cost") as place, _url(given, place) as url:
        async with _publisher(url, fair=fair) as app:
            await _publish(app, [f"tenant-{number % 100}" for number in range(given.drain)])
            crew = Crew(url, place, fair=fair, handler_ms=0, count=1, concurrency=100)
            empty = 0
            while empty < ALIKE:
                # What other processes hold is not always counted: it is to be empty several times in a row.
                left = sum(depth.ready + depth.leased for depth in await app.backend.broker.depths((QUEUE,)))
                empty = 0 if left else empty + 1
                await asyncio.sleep(0.1)
            (found,) = crew.stop()
    assert given.drain == sum(Counter(tenant for tenant, _, _ in found["seen"]).values())
    return found["cpu_s"] / given.drain * 1e6


async def _shared_rate(given: argparse.Namespace) -> dict[str, Any]:
    """100 starts in a period, with work enough for all four processes: the most in any window, and how many in all."""
    periods, count, per_ms = 3, 100, round(given.per_s * 1_000)
    with scratch(given.folder, "rate") as place:
        url = given.url.format(folder=place)
        async with Redrive("bench", broker=url) as app:
            await _publish(app, ["a"] * (count * periods * 2))
            crew = Crew(url, place, concurrency=10, rate=f"{count} per {per_ms} ms")
            await crew.started()
            await asyncio.sleep(periods * given.per_s)
            found = crew.stop()
    starts = sorted(begun for each in found for _, _, begun in each["seen"])
    within = [begun for begun in starts if begun < starts[0] + periods * per_ms]
    return {
        "most_in_a_window": max(bisect.bisect_left(starts, at + per_ms) - place for place, at in enumerate(starts)),
        "allowed": count,
        "used": round(len(within) / (count * periods), 3),
        "seconds": round(periods * given.per_s),
    }


if __name__ == "__main__":
    sys.exit(main())
