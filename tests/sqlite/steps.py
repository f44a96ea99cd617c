"""What the tests of the file do again and again."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from redrive.core.ports import End, Outgoing, Taken
from redrive.core.settlement import ACK, Reason, Settlement
from redrive.sqlite import SqliteFile, SqliteLedger
from redrive.sqlite.writer import Tx
from redrive.testing.samples import QUEUE, message

WHY = Reason(code="TEST", text="the test asked for it")
CHILD = Path(__file__).with_name("child.py")
LEASE_MS = 10_000
PATIENCE_S = 60.0
"""Only a failing test ever waits this long."""


def many(count: int, *, queue: str = QUEUE, start: int = 0, **changes: Any) -> list[Outgoing]:
    """So many small messages."""
    return [Outgoing(queue=queue, message=message(f"m-{number}", **changes)) for number in range(start, start + count)]


async def take(
    ledger: SqliteLedger, *, limit: int = 100, worker: str = "w1", wait_ms: int = 0, lease_ms: int = LEASE_MS
) -> list[Taken]:
    """Take with claims."""
    return await ledger.take(QUEUE, limit=limit, lease_ms=lease_ms, worker=worker, wait_ms=wait_ms, claims=True)


async def end_all(ledger: SqliteLedger, taken: Sequence[Taken], settlement: Settlement = ACK) -> list[bool]:
    """End them all alike."""
    return await ledger.commit([End(taken=each, settlement=settlement) for each in taken])


def rows(path: Path, statement: str, *values: Any) -> list[Any]:
    """What another program sees in the file."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement, values).fetchall()


async def blocked(file: SqliteFile) -> tuple[asyncio.Task[bool], threading.Event]:
    """The writer is busy with a call, which ends when the event is set."""
    is_busy, may_go = threading.Event(), threading.Event()

    def wait(_: Tx) -> bool:
        is_busy.set()
        return may_go.wait(PATIENCE_S)

    blocking = asyncio.create_task(file.write(wait, is_synced=False))
    assert await asyncio.to_thread(is_busy.wait, PATIENCE_S)
    return blocking, may_go


async def execute(file: SqliteFile, statement: str) -> None:
    """One statement by the file's own writer."""
    await file.write(lambda tx: tx.execute(statement).fetchall())


def run(path: Path, script: str) -> None:
    """What another program does to the file."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)


def start_child(path: Path, what: str, *arguments: str) -> subprocess.Popen[str]:
    """Another process on the same file; tests/sqlite/child.py says what it can do."""
    return subprocess.Popen(
        [sys.executable, str(CHILD), what, str(path), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )


def read_line(child: subprocess.Popen[str]) -> str:
    """The child's next line; it ends the test where the child died instead."""
    assert child.stdout is not None
    line = child.stdout.readline().strip()
    assert line, f"child ended with {child.wait()}"
    return line


def tell(child: subprocess.Popen[str], line: str = "go") -> None:
    """One line to the child."""
    assert child.stdin is not None
    child.stdin.write(line + "\n")
    child.stdin.flush()


def end_child(child: subprocess.Popen[str]) -> None:
    """Kill it as `kill -9` does, and close its pipes."""
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
