"""`python -m bench.fairness [URL]`: quiet tenants beside a backlog, and what taking turns costs.

One tenant has a backlog; 99 quiet ones together send 100 and then 300 messages a second; four worker processes with one
handler of 10 ms each. The same run without the noisy tenant is the baseline, the same run without turns the comparison
of throughput. URL with {folder}: a new place for each run; default a SQLite file. `rabbitmq`: a node of its own, with
a virtual host for each run; the shared rate is left out there. `--known`: whoever publishes knows that turns are taken
(RabbitMQ: it publishes to the shards). Each verdict stands beside its limit.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bench import machine
from bench.fairness.crew import Crew
from bench.fairness.reckoning import NOISY, Counted, Run, Sent, cost, promise, told
from bench.fairness.worker import QUEUE
from bench.measure import ROOT, scratch
from redrive import Delivery, Fair, Redrive
from redrive.testing.servers.rabbitmq import RabbitNode
from redrive.testing.servers.rabbitmq_install import installed

RABBITMQ: Final = "rabbitmq"
QUIET_TENANTS: Final = 99
WARM_UP_S: Final = 3.0
"""Of the quiet load, not counted: caches fill, the first fair look sorts the backlog, what waited meanwhile goes."""
LINGER_S: Final = 2.0
"""What was sent last still gets there; what does not counts as missing."""


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
    # Worker processes are ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
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
        result["promises"].append(promise(*runs))
        print(json.dumps(result["promises"][-1]), file=sys.stderr)
    result["cost"] = asyncio.run(_cost(given, messages=given.drain, concurrency=100))
    result["cost_of_single_takes"] = asyncio.run(_cost(given, messages=given.drain // 4, concurrency=1))
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


async def _waiting(given: argparse.Namespace, rate: int, *, backlog: int, fair: bool) -> Run:
    with scratch(given.folder, "fairness") as place, _url(given, place) as url:
        async with _publisher(url, fair=fair and given.known) as app:
            await _publish(app, [NOISY] * backlog)
            with Crew(url, place, fair=fair) as crew:
                await crew.started()
                counted = await _send_quietly(app, rate, seconds=given.seconds)
                found = crew.stop()
    return told(found, counted, rate=rate, backlog=backlog, fair=fair)


async def _send_quietly(app: Redrive, rate: int, *, seconds: float) -> Counted:
    """At random instants, each on its own, tenants drawn at random: what many independent senders look like. A sender
    that is late does not shift the instants, and its lateness counts as waiting.
    """
    rng = random.Random(1)
    start, clock_ms = time.perf_counter(), time.time() * 1_000
    sent: list[Sent] = []
    late_ms: list[float] = []
    sending: set[asyncio.Task[Any]] = set()
    due_s = 0.0
    while due_s < WARM_UP_S + seconds:
        await asyncio.sleep(max(0.0, start + due_s - time.perf_counter()))
        tenant, at = f"quiet-{rng.randrange(QUIET_TENANTS)}", clock_ms + due_s * 1_000
        task = asyncio.ensure_future(app.publish(QUEUE, {"at": at}, tenant=tenant))
        sending.add(task)
        task.add_done_callback(sending.discard)
        if due_s >= WARM_UP_S:
            sent.append((tenant, at))
            late_ms.append((time.perf_counter() - start - due_s) * 1_000)
        due_s += rng.expovariate(rate)
    ended = time.time() * 1_000
    await asyncio.gather(*sending)
    await asyncio.sleep(LINGER_S)
    return Counted(
        sent=sent, late_ms=late_ms, began=clock_ms + WARM_UP_S * 1_000, ended=ended, stopped=time.time() * 1_000
    )


async def _publish(app: Redrive, tenants: list[str]) -> None:
    for start in range(0, len(tenants), 1_000):
        now = time.time() * 1_000
        await app.publish_many(QUEUE, [({"at": now}, {"tenant": tenant}) for tenant in tenants[start : start + 1_000]])


async def _cost(given: argparse.Namespace, *, messages: int, concurrency: int) -> dict[str, Any]:
    """Processor time of one worker per message, with turns and without, in turn so that a busy machine hits both."""
    spent: dict[str, list[float]] = {"plain": [], "fair": []}
    for _ in range(3):
        for name, values in spent.items():
            values.append(await _drained(given, messages, concurrency=concurrency, fair=name == "fair"))
    return cost(spent, messages)


async def _drained(given: argparse.Namespace, messages: int, *, concurrency: int, fair: bool) -> float:
    with scratch(given.folder, "cost") as place, _url(given, place) as url:
        async with _publisher(url, fair=fair) as app:
            await _publish(app, [f"tenant-{number % 100}" for number in range(messages)])
            with Crew(url, place, fair=fair, handler_ms=0, count=1, concurrency=concurrency, most=messages) as crew:
                (found,) = await asyncio.to_thread(crew.ended)
    assert messages == len(found["seen"])
    return found["cpu_s"] / messages * 1e6


async def _shared_rate(given: argparse.Namespace) -> dict[str, Any]:
    """100 starts in a period, with work enough for all four processes: the most in any window, and how many in all."""
    periods, count, per_ms = 3, 100, round(given.per_s * 1_000)
    with scratch(given.folder, "rate") as place:
        url = given.url.format(folder=place)
        async with Redrive("bench", broker=url) as app:
            await _publish(app, ["a"] * (count * periods * 2))
            with Crew(url, place, concurrency=10, rate=f"{count} per {per_ms} ms") as crew:
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
