"""Worker processes over Redis that are killed: whole apps, with their default settings (cases BQ-05, RC-06)."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive.core.letters.selection import Selection
from tests.bullmq.crew import QUEUE, make
from tests.conftest import PATIENCE
from tests.redis import Redis

ROOT = Path(__file__).resolve().parents[2]


class Crew:
    """Processes, and what they wrote down."""

    def __init__(self, url: str, folder: Path) -> None:
        self.journal = folder / "journal.jsonl"
        self.app = make(url, str(folder / "letters.db"), self.journal)
        self._command = [sys.executable, "-m", "tests.bullmq.crew", url, str(folder / "letters.db"), str(self.journal)]
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(self._command, cwd=ROOT)
        self._processes.append(process)
        return process

    def lines(self, field: str) -> list[dict[str, Any]]:
        if not self.journal.exists():
            return []
        found = [json.loads(line) for line in self.journal.read_text("utf-8").splitlines()]
        return [line for line in found if field in line]

    async def until(self, is_it: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while not is_it():
                await asyncio.sleep(0.05)  # sleep: another process

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
    async with crew.app as app:
        first = crew.start()
        await app.publish_many(QUEUE, [{"n": number, "s": 600 if number < 3 else 0} for number in range(10)])
        await crew.until(lambda: len(crew.lines("start")) == 10)
        second = crew.start()
        await app.publish(QUEUE, {"n": 10})
        await crew.until(lambda: any(line["end"] == 10 for line in crew.lines("end")))

        first.kill()
        killed_at = time.time() * 1_000
        first.wait()
        await crew.until(lambda: len(crew.lines("start")) == 14)

        again = [line for line in crew.lines("start") if line["attempt"] == 2]
        assert [0, 1, 2] == sorted(line["start"] for line in again)
        assert {second.pid} == {line["pid"] for line in again}
        assert [] == [line for line in again if line["at"] - killed_at >= 10_000]


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
