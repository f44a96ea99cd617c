"""Worker processes of `tests.runtime.crew`, their journal, and the file they share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redrive import Redrive
from tests.runtime.stage import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


class Fleet:
    """`start` as many as you like; all that still live are killed at the end."""

    def __init__(self, directory: Path) -> None:
        self.url = f"sqlite:////{directory}/fleet.db"
        self.file = directory / "fleet.db"
        self.journal = directory / "journal.jsonl"
        self._directory = directory
        # What was read of it already: who waits asks again and again.
        self._read: list[dict[str, Any]] = []
        self._read_bytes = 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def app(self) -> Redrive:
        """This process's own view of the file."""
        return Redrive("crew", broker=self.url, settings={"durability": "normal"})

    def start(self, name: str, **environment: str) -> subprocess.Popen[bytes]:
        """A worker process."""
        log = (self._directory / f"worker-{len(self._processes)}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.runtime.crew", self.url, str(self.journal), name],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        log.close()
        self._processes.append(process)
        return process

    def log(self, number: int) -> str:
        """What a worker printed."""
        return (self._directory / f"worker-{number}.log").read_text()

    def lines(self, **wanted: Any) -> list[dict[str, Any]]:
        """Journal lines with these fields; Ellipsis: any value."""
        if self.journal.exists():
            with self.journal.open("rb") as file:
                file.seek(self._read_bytes)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read_bytes += len(whole)
            self._read += [json.loads(line) for line in whole.splitlines()]
        return [
            line
            for line in self._read
            if all(name in line and want in (..., line[name]) for name, want in wanted.items())
        ]

    def until(self, condition: Callable[[], Any], *, what: str) -> None:
        """Wait for something another process does."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > end:
                logs = [self.log(number)[-2_000:] for number in range(len(self._processes))]
                raise AssertionError(f"never: {what}; journal: {self.lines()[-20:]}; logs: {logs}")
            time.sleep(0.01)  # sleep: another process tells through a file

    def started(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until this worker consumes."""
        self.until(lambda: self.lines(event="worker.started", pid=process.pid), what="the worker started")

    def stopped(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for its end; the exit code."""
        return process.wait(PATIENCE_S)

    def kill_all(self) -> None:
        """Whatever is left."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
