"""Several processes of one command (real ones)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.fleet import ROOT
from tests.runtime.stage import PATIENCE_S

SUPERVISOR = """
import json, os, sys
from redrive.runtime.events import Events
from redrive.runtime.supervisor import supervise
events = Events()
events.subscribe(lambda e: os.write(1, (json.dumps({"event": e.name, **e.fields}) + "\\n").encode()))
sys.exit(supervise([sys.executable, "-c", sys.argv[1]], processes=2, events=events))
"""

WORKER = """
import asyncio, json, os, sys
from redrive.runtime.hosting import host_process
stopping = asyncio.Event()
def tell(event):  # one write: the other worker tells into the same file
    os.write(1, (json.dumps({"event": event, "pid": os.getpid()}) + "\\n").encode())
async def run():
    tell("up")
    await stopping.wait()
    tell("drained")
def stop(*, at_once): stopping.set()
sys.exit(host_process(run, stop=stop))
"""


class Supervised:
    """A supervisor and what it and its workers print."""

    def __init__(self, directory: Path, worker: str = WORKER) -> None:
        self._file = directory / "out.jsonl"
        with self._file.open("wb") as out:
            self.process = subprocess.Popen([sys.executable, "-c", SUPERVISOR, worker], cwd=ROOT, stdout=out)

    def lines(self, event: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self._file.read_text().splitlines() if line.startswith("{")]
        return [line for line in found if line["event"] == event]

    def until(self, event: str, count: int) -> list[dict[str, Any]]:
        end = time.monotonic() + PATIENCE_S
        while len(found := self.lines(event)) < count:
            assert time.monotonic() < end, f"never {count} x {event}: {self._file.read_text()[-2_000:]}"
            time.sleep(0.01)  # sleep: another process
        return found


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.fixture
def supervised(tmp_path: Path) -> Any:
    made: list[Supervised] = []

    def make(worker: str = WORKER) -> Supervised:
        made.append(Supervised(tmp_path, worker))
        return made[-1]

    yield make
    for each in made:
        each.process.kill()
        each.process.wait()


def test_a_worker_that_dies_is_started_again_and_all_drain_on_sigterm(supervised: Any) -> None:
    fleet = supervised()
    first = fleet.until("up", 2)[0]["pid"]

    os.kill(first, signal.SIGKILL)
    (death,) = fleet.until("process.exited", 1)
    fleet.until("up", 3)
    fleet.process.send_signal(signal.SIGTERM)

    assert fleet.process.wait(PATIENCE_S) == 0
    assert (first, -signal.SIGKILL) == (death["pid"], death["exit_code"])
    assert len(fleet.lines("drained")) == 2


def test_workers_whose_supervisor_is_killed_drain_and_are_gone(supervised: Any) -> None:
    fleet = supervised()
    pids = [line["pid"] for line in fleet.until("up", 2)]

    fleet.process.kill()
    fleet.until("drained", 2)

    end = time.monotonic() + PATIENCE_S
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.01)  # sleep: another process


def test_a_command_that_is_configured_wrongly_ends_the_supervisor_with_its_code(supervised: Any) -> None:
    fleet = supervised("import sys; sys.exit(2)")

    assert fleet.process.wait(PATIENCE_S) == 2
