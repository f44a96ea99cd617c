"""Idle CPU of a waiting worker, and how fast it wakes: real `redrive work` in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from bench.apart import environment_of
from bench.measure import ROOT, scratch
from bench.worker_app import QUEUE
from redrive import Redrive, Settings

EMBEDDED: Final = "sqlite:///{folder}/bench.db"
SETTLING_S: Final = 2.0
GAP_S: Final = 0.03
PATIENCE_S: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """CPU per cent of one core while waiting, and milliseconds from the call of `publish` to the handler."""

    cpu_percent: float
    wake_process_p50_ms: float
    wake_process_p95_ms: float
    wake_process_p99_ms: float
    wake_own_p50_ms: float
    wake_own_p99_ms: float


def measure(folder: Path, *, seconds: float, messages: int, url: str = EMBEDDED) -> Idle:
    """Watch a waiting worker for `seconds`, then send it `messages` one by one; then the same inside one process.
    `url`: of the broker; a new place for each of the two where it has {folder}.
    """
    template = url
    with scratch(folder, "idle") as place:
        url, arrivals = template.format(folder=place), place / "arrivals"
        with _worker(url, arrivals) as worker:
            asyncio.run(_send(url, arrivals, 1, before=0))
            time.sleep(SETTLING_S)
            cpu_percent = _cpu_percent(worker.pid, seconds)
            asyncio.run(_send(url, arrivals, messages, before=1))
            across = sorted(_read(arrivals)[1:])
    with scratch(folder, "wake") as place:
        own = sorted(asyncio.run(_own(template.format(folder=place), place, messages)))
    return Idle(
        cpu_percent=cpu_percent,
        wake_process_p50_ms=median(across),
        wake_process_p95_ms=_at(across, 0.95),
        wake_process_p99_ms=_at(across, 0.99),
        wake_own_p50_ms=median(own),
        wake_own_p99_ms=_at(own, 0.99),
    )


@contextmanager
def _worker(url: str, arrivals: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = environment_of(
        {"REDRIVE_BROKER": url, "REDRIVE_STORE": _store(arrivals.parent), "BENCH_ARRIVALS": str(arrivals)}
    )
    command = [str(Path(sys.executable).parent / "redrive"), "work", "bench.worker_app:app"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


async def _send(url: str, arrivals: Path, count: int, *, before: int) -> None:
    """Send one by one with gaps in which the worker falls asleep again, and wait until all have arrived."""
    settings = Settings(broker=url, store=_store(arrivals.parent))
    async with Redrive("bench", settings=settings) as app:
        for _ in range(count):
            await app.publish(QUEUE, {"sent_at": time.monotonic()})
            await asyncio.sleep(GAP_S)
        deadline = time.monotonic() + PATIENCE_S
        while len(_read(arrivals)) < before + count:
            if time.monotonic() > deadline:
                raise TimeoutError("the worker did not get its messages")
            await asyncio.sleep(0.02)


async def _own(url: str, place: Path, count: int) -> list[float]:
    app, late = Redrive("bench", settings=Settings(broker=url, store=_store(place))), []
    arrived = asyncio.Event()

    @app.consumer(QUEUE)
    async def arrive(message: dict[str, float]) -> None:
        late.append((time.monotonic() - message["sent_at"]) * 1_000)
        arrived.set()

    async with app:
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        for _ in range(count):
            await asyncio.sleep(GAP_S)
            arrived.clear()
            await app.publish(QUEUE, {"sent_at": time.monotonic()})
            await arrived.wait()
        worker.stop()
        await running
    return late


def _store(place: Path) -> str:
    """For what the broker itself has no room for."""
    return f"sqlite:///{place / 'store.db'}"


def _read(arrivals: Path) -> list[float]:
    return [float(line) for line in arrivals.read_text().split()] if arrivals.exists() else []


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _cpu_percent(pid: int, seconds: float) -> float:
    before = _cpu_s(pid)
    time.sleep(seconds)
    return (_cpu_s(pid) - before) / seconds * 100


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process; from /proc, so on Linux only."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
