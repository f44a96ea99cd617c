"""Node's BullMQ as a process of a test: `bridge.js` on the other side of a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import shutil
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.conftest import PATIENCE

BRIDGE = Path(__file__).with_name("bridge.js")
MAJORS = (5, 6)


class Node:
    """One process of Node with one major version of BullMQ."""

    def __init__(self, major: int, url: str) -> None:
        modules = modules_of(major)
        self._process = subprocess.Popen(
            ["node", str(BRIDGE), url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "NODE_PATH": str(modules)},
            text=True,
        )
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self._kept: list[dict[str, Any]] = []
        self._calls = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        ready = self._until(lambda line: line.get("event") == "ready")
        assert str(major) == ready["version"].partition(".")[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """End it by kill -9."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    async def call(self, what: str, **given: Any) -> Any:
        """Its answer. The loop goes on meanwhile: it has a worker to run."""
        return await asyncio.to_thread(self._call, what, given)

    def _call(self, what: str, given: dict[str, Any]) -> Any:
        self._calls += 1
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"call": self._calls, "do": what, **given}) + "\n")
        self._process.stdin.flush()
        told = self._until(lambda line: line.get("call") == self._calls)
        assert "error" not in told, told["error"]
        return told["value"]

    async def wait(self, event: str, **fields: Any) -> dict[str, Any]:
        """The next event of this name with these fields; others are kept for later."""
        return await asyncio.to_thread(
            self._until, lambda line: line.get("event") == event and fields.items() <= line.items()
        )

    def seen(self, event: str) -> list[dict[str, Any]]:
        """Events of this name that came and were not asked for yet."""
        while not self._lines.empty():
            self._kept.append(self._lines.get())
        return [line for line in self._kept if line.get("event") == event]

    def take(self, event: str) -> list[dict[str, Any]]:
        """As `seen`, and they are not told again."""
        found = self.seen(event)
        self._kept = [line for line in self._kept if line.get("event") != event]
        return found

    def _until(self, is_it: Any) -> dict[str, Any]:
        for line in self._kept:
            if is_it(line):
                self._kept.remove(line)
                return line
        deadline = time.monotonic() + PATIENCE.total_seconds()
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"Node did not say it in time; it said {self._kept[-10:]}") from None
            if is_it(line):
                return line
            self._kept.append(line)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(json.loads(line))


def modules_of(major: int) -> Path:
    """Where this major version lies; fails in CI, skips at home, where it does not."""
    from redrive.testing.servers.node_install import bullmq_folder

    modules = bullmq_folder(major) / "node_modules"
    if shutil.which("node") and (modules / "bullmq" / "package.json").exists():
        return modules
    missing = f"Node's BullMQ {major} is not on this machine. Run: python -m redrive.testing.servers"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)
