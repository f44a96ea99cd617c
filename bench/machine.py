"""One line that says on what a number was measured."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from pathlib import Path

_SYNCS = 200


def line(folder: Path) -> str:
    """Processor count, load, versions, and what one fsync costs in `folder`: the number that bounds all others."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{cores} cores, load {load():.1f}, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
        f"one 4 kB write with fsync {sync_ms(folder):.2f} ms"
    )


def load() -> float:
    """Processes that wanted to run, the mean of the last minute."""
    return os.getloadavg()[0]


def sync_ms(folder: Path) -> float:
    """Milliseconds of a 4 kB append made durable, mean of 200."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"sync-{os.getpid()}"
    handle = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        started = time.perf_counter()
        for _ in range(_SYNCS):
            os.write(handle, b"\0" * 4096)
            os.fsync(handle)
        return (time.perf_counter() - started) / _SYNCS * 1_000
    finally:
        os.close(handle)
        path.unlink()
