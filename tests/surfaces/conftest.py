"""The real command line in a directory of its own, with an app to work on and dead letters in its file."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from redrive.cli import entry
from redrive.core.letters.letter import Letter
from redrive.runtime.app import Redrive
from redrive.testing.samples import QUEUE, letter

PATIENCE_S = 60
COMMAND = (sys.executable, "-m", "redrive.cli")

SHOP = """
import asyncio, os, signal
from redrive import DeadLetter, Delivery, Exponential, Fixed, Redrive, Retry

app = Redrive("shop", broker="sqlite:///shop.db")

@app.consumer("orders", retry=Retry(max_attempts=2, backoff=Fixed("50ms")))
async def charge(order: dict, delivery: Delivery) -> None:
    print("handled", delivery.message.id, delivery.attempt, flush=True)
    if order.get("slow"):
        await asyncio.sleep(order["slow"])  # sleep: a handler that takes its time
    if order.get("bad") and not os.path.exists("fixed"):
        raise ValueError(order["bad"])

@app.consumer("refunds")
async def refund(order: dict) -> None: ...

async def hello(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})

app.mount("/hello", hello)
"""


@dataclass(frozen=True)
class Ran:
    """What one command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be exactly one JSON document."""
        assert self.code in (0, 1), self
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, str]:
        """The error on standard error."""
        return json.loads(self.err.strip().splitlines()[-1])["error"]


Cli = Callable[..., Ran]


def clean_environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("REDRIVE_", "_REDRIVE"))}
    return {**kept, "COLUMNS": "200", "PYTHONUNBUFFERED": "1", **changes}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The working directory, with `shop.py` in it."""
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


@pytest.fixture
def redrive(here: Path) -> Cli:
    """Run one command to its end, as the shell does: in a process of its own."""

    def run(*arguments: str, stdin: str | bytes = b"", **environment: str) -> Ran:
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=here,
            env=clean_environment(**environment),
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))

    return run


@pytest.fixture
def cli(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """Run one command to its end, in a thread of this process: the same code without half a second to start."""
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [str(here), *sys.path])

    def run(*arguments: str, stdin: str | bytes = b"", **environment: str) -> Ran:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        streams = [io.TextIOWrapper(io.BytesIO(content), "utf-8", write_through=True) for content in (given, b"", b"")]
        with monkeypatch.context() as patch, ThreadPoolExecutor(1) as thread:
            for name in (name for name in os.environ if name.startswith(("REDRIVE_", "_REDRIVE"))):
                patch.delenv(name)
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.delitem(sys.modules, "shop", raising=False)
            for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
                patch.setattr(sys, name, stream)
            code = thread.submit(entry.run, arguments).result(PATIENCE_S)
        out, err = (stream.buffer.getvalue().decode("utf-8", "replace") for stream in streams[1:])
        return Ran(code, out, err)

    yield run
    sys.modules.pop("shop", None)
    sys.modules.pop("broken", None)


class Process:
    """A command that stays; its output goes to a file that can be waited on."""

    def __init__(self, here: Path, arguments: tuple[str, ...]) -> None:
        self.log = here / f"process-{len(list(here.glob('process-*')))}.log"
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen(
                [*COMMAND, *arguments],
                cwd=here,
                env=clean_environment(REDRIVE_LOG_FORMAT="json"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def text(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def lines(self) -> list[dict[str, Any]]:
        """The JSON lines so far."""
        found = []
        for line in self.text().splitlines():
            if line.startswith("{") and line.endswith("}"):
                found.append(json.loads(line))
        return found

    async def until(self, condition: Callable[[], Any]) -> Any:
        """What the condition gives once it is true."""
        async with asyncio.timeout(PATIENCE_S):
            while not (found := condition()):
                assert self.popen.poll() is None, self.text()
                await asyncio.sleep(0.02)  # sleep: another process writes a file
        return found

    async def event(self, name: str, **fields: Any) -> dict[str, Any]:
        """The first log line of this event with these fields."""

        def found() -> dict[str, Any] | None:
            return next(
                (line for line in self.lines() if line.get("event") == name and fields.items() <= line.items()), None
            )

        return await self.until(found)

    async def url(self) -> str:
        """Where it serves."""
        return str(await self.until(lambda: next((line["url"] for line in self.lines() if line.get("url")), None)))

    async def ended(self) -> int:
        """Its exit code."""
        return await asyncio.wait_for(asyncio.to_thread(self.popen.wait), PATIENCE_S)

    def tell(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.popen.send_signal(number)


@pytest.fixture
def start(here: Path) -> Iterator[Callable[..., Process]]:
    """Start a command that stays; killed at the end of the test where it still runs."""
    started: list[Process] = []

    def run(*arguments: str) -> Process:
        started.append(Process(here, arguments))
        return started[-1]

    yield run
    for process in started:
        process.popen.kill()
        process.popen.wait()


def get(url: str) -> tuple[int, str]:
    """Status and body of a GET."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
async def shop(here: Path) -> AsyncIterator[Redrive]:
    """The file of the app in `shop.py`, open, with the queue `orders` known."""
    app = Redrive("shop", f"sqlite:///{here / 'shop.db'}")
    async with app:
        await app.backend.broker.receive(QUEUE, limit=1, lease_ms=1_000, worker="w0", wait_ms=0)
        yield app


async def put(app: Redrive, count: int, **changes: Any) -> list[str]:
    """So many dead letters in `orders`; their ids, oldest first."""
    now = app.clock.now()
    made: list[Letter] = [
        letter(f"dl_{number:04}", died_at=now - 100_000 + number, **changes) for number in range(1, count + 1)
    ]
    await app.backend.letters.put(made)
    return [found.id for found in made]
