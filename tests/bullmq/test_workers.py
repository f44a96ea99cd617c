"""Worker processes over Redis that are killed: whole apps, with their default settings (cases BQ-05, RC-06)."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from campaign.redis.recovery import Excuses
from redrive.core.letters.selection import Selection
from tests.bullmq.crew import QUEUE, make
from tests.conftest import PATIENCE
from tests.redis import Redis
from tests.runtime.stage import depth

ROOT = Path(__file__).resolve().parents[2]
LONG_S = 600
PROMISE_S = 10.0


class Crew:
    """Processes, and what they wrote down."""

    def __init__(self, url: str, folder: Path) -> None:
        self.journal = folder / "journal.jsonl"
        self.app = make(url, str(folder / "letters.db"), self.journal)
        self._command = [sys.executable, "-m", "tests.bullmq.crew", url, str(folder / "letters.db"), str(self.journal)]
        self._processes: dict[subprocess.Popen[bytes], Path] = {}

    def start(self) -> subprocess.Popen[bytes]:
        log = self.journal.with_name(f"worker-{len(self._processes)}.log")
        with log.open("wb") as out:
            process = subprocess.Popen(self._command, cwd=ROOT, stdout=out, stderr=out)
        self._processes[process] = log
        return process

    def lines(self, field: str) -> list[dict[str, Any]]:
        if not self.journal.exists():
            return []
        found = [json.loads(line) for line in self.journal.read_text("utf-8").splitlines()]
        return [line for line in found if field in line]

    async def until(self, is_it: Callable[[], object], *, alive: subprocess.Popen[bytes], what: str) -> None:
        with self._told(what):
            async with asyncio.timeout(PATIENCE.total_seconds()):
                while not is_it():
                    assert alive.poll() is None, "the worker has ended"
                    await asyncio.sleep(0.05)  # sleep: another process

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except (TimeoutError, AssertionError) as error:
            logs = [f"{process.pid} ({process.poll()}):\n{log.read_text()}" for process, log in self._processes.items()]
            raise AssertionError("\n".join([f"never: {what} ({error})", self.journal.read_text(), *logs])) from None

    async def until_at_work(self, worker: subprocess.Popen[bytes]) -> None:
        """This worker takes messages of the queue, beside whoever else does."""
        await self.until(lambda: {"ready": worker.pid} in self.lines("ready"), alive=worker, what="connected")
        for number in range(1_000, 2_000):
            await self.app.publish(QUEUE, {"n": number})
            await self.until(lambda n=number: self.ends(n), alive=worker, what="any worker takes")
            if self.ends(number)[-1]["pid"] == worker.pid:
                return
        raise AssertionError("the other worker takes everything")

    def ends(self, number: int) -> list[dict[str, Any]]:
        return [line for line in self.lines("end") if line["end"] == number]

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def crew(redis: Redis, tmp_path: Path) -> Iterator[Crew]:
    made = Crew(redis.url, tmp_path)
    yield made
    made.kill()


async def test_work_of_a_killed_process_runs_again_within_ten_seconds_and_once(crew: Crew) -> None:
    """What the machine was late by itself is nobody's promise."""
    long = [0, 1, 2]

    def again() -> list[dict[str, Any]]:
        return [line for line in crew.lines("start") if line["attempt"] == 2 and line["start"] in long]

    async with crew.app as app:
        first = crew.start()
        orders = [{"n": number, "s": LONG_S if number in long else 0} for number in range(10)]
        # With an id of its own each has a claim, which the dead worker holds, too.
        await app.publish_many(QUEUE, [(order, {"message_id": f"m-{order['n']}"}) for order in orders])
        await crew.until(lambda: len(crew.lines("start")) == 10, alive=first, what="all are started")
        second = crew.start()
        await crew.until_at_work(second)

        with Excuses() as excuses:
            killed_at, on_the_clock = time.monotonic(), app.clock.now()
            first.kill()
            first.wait()
            await crew.until(lambda: len(again()) >= len(long), alive=second, what="all run again")
            excused_s = excuses.within(killed_at, time.monotonic())
        await crew.until(lambda: all(crew.ends(n) for n in long), alive=second, what="all have ended")
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while await depth(app, QUEUE):
                await asyncio.sleep(0.05)  # sleep: another process

    assert long == sorted(line["start"] for line in again())
    assert {second.pid} == {line["pid"] for line in again()}
    took_s = max(line["at"] for line in again()) / 1_000 - on_the_clock / 1_000
    assert took_s - excused_s < PROMISE_S


async def test_a_message_that_kills_its_worker_is_dead_after_its_attempts(crew: Crew) -> None:
    async with crew.app as app:
        await app.publish_many(QUEUE, [{"n": number, "bomb": number == 3} for number in range(6)])
        deaths = 0
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while not (await app.backend.letters.find(Selection(), limit=5)).letters:
                worker = crew.start()
                while worker.poll() is None:
                    await asyncio.sleep(0.05)  # sleep: another process
                    if (await app.backend.letters.find(Selection(), limit=5)).letters:
                        worker.send_signal(signal.SIGTERM)
                        worker.wait()
                deaths += worker.returncode == -signal.SIGKILL

        (letter,) = (await app.backend.letters.find(Selection(), limit=5)).letters
        assert (3, "WORKER_LOST", 3) == (deaths, letter.reason_code, letter.attempt_count)
        assert [number for number in range(6) if number != 3] == sorted({line["end"] for line in crew.lines("end")})
