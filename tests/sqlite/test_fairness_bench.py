"""The bench of fairness: what it counts, and that its worker processes end with it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench.fairness.reckoning import NOISY, Counted, cost, promise, told

PATIENCE_S = 60.0
COUNTED = Counted(
    sent=[("a", 1_000.0), ("b", 1_010.0), ("c", 1_020.0)],
    late_ms=[0.0, 1.0, 2.0],
    began=1_000.0,
    ended=2_000.0,
    stopped=4_000.0,
)


def test_a_quiet_message_that_never_started_counts_as_a_long_wait() -> None:
    seen = [("a", 1_000.0, 1_005.0), ("before", 900.0, 1_001.0), (NOISY, 100.0, 1_500.0), ("b", 1_010.0, 2_500.0)]

    run = told([{"seen": seen, "cpu_s": 0.0}], COUNTED, rate=3, backlog=1, fair=True)

    assert 1 == run.quiet_missing
    assert 1_490.0 == run.p50_ms
    assert 2_980.0 == run.p99_ms
    assert 3.0 == run.total_per_s


def test_a_rate_that_is_not_carried_alone_keeps_no_promise() -> None:
    lost = told([{"seen": [(NOISY, 1.0, 1_500.0)], "cpu_s": 0.0}], COUNTED, rate=3, backlog=0, fair=True)

    verdict = promise(lost, lost, lost)

    assert not verdict["baseline_carried"]
    assert not verdict["p95_kept"]
    assert verdict["throughput_kept"]


def test_the_cost_of_turns_is_judged_by_the_best_drains() -> None:
    verdict = cost({"plain": [100.0, 90.0], "fair": [130.0, 109.0]}, 10)

    assert 19.0 == verdict["turns_us"]
    assert verdict["cost_kept"]


@asynccontextmanager
async def running(tmp_path: Path) -> AsyncIterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """A bench whose worker processes (pids) have begun."""
    arguments = ["--backlog", "10", "--seconds", str(PATIENCE_S), "--folder", str(tmp_path)]
    bench = subprocess.Popen([sys.executable, "-m", "bench.fairness", *arguments], cwd=Path(__file__).parents[2])
    try:
        async with asyncio.timeout(PATIENCE_S):
            while len(list(tmp_path.glob("*/*.ready"))) < 4:
                await asyncio.sleep(0.05)  # sleep: another process starts
        children = Path(f"/proc/{bench.pid}/task/{bench.pid}/children").read_text().split()
        yield bench, [int(pid) for pid in children]
    finally:
        bench.kill()
        bench.wait()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_the_workers_end_with_the_bench_however_it_ends(tmp_path: Path, number: signal.Signals) -> None:
    async with running(tmp_path) as (bench, workers):
        bench.send_signal(number)
        await asyncio.to_thread(bench.wait, PATIENCE_S)

        assert 4 == len(workers)
        async with asyncio.timeout(PATIENCE_S):
            while any(is_alive(pid) for pid in workers):
                await asyncio.sleep(0.02)  # sleep: other processes end


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
