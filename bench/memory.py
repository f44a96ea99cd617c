"""What 100 000 scheduled retries cost a worker's memory: nothing, for they are rows. Run as a process of its own."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.measure import python, scratch
from redrive import Redrive, Retry, RetryLater, Settings

WARM_UP: Final = 30_000
"""Enough to fill SQLite's page caches, which are bounded (16 MB a connection) and are not what is measured."""

BATCH: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Resident megabytes of a worker after a warm-up, and with all retries scheduled."""

    retries: int
    before_mb: float
    after_mb: float

    @property
    def grown_mb(self) -> float:
        """How much the retries added."""
        return self.after_mb - self.before_mb


def measure(folder: Path, *, retries: int) -> Growth:
    """Run it in a process of its own."""
    with scratch(folder, "memory") as place:
        return Growth(**python("bench.memory", str(place / "bench.db"), str(retries)))


async def run(file: Path, count: int) -> dict[str, Any]:
    """Let every message fail once with an hour's delay; look at the process before and after."""
    app = Redrive("bench", settings=Settings(broker=f"sqlite:///{file}"))
    failed = 0

    @app.consumer("bench", retry=Retry(max_attempts=2), breaker=None)
    async def handle(_payload: dict[str, int]) -> None:
        nonlocal failed
        failed += 1
        raise RetryLater("1h")

    async def schedule(many: int) -> None:
        target = failed + many
        for start in range(0, many, BATCH):
            batch = [({"number": n}, {"message_id": f"m-{target}-{n}"}) for n in range(start, min(many, start + BATCH))]
            await app.publish_many("bench", batch)
        while failed < target or await _in_hand(app):
            await asyncio.sleep(0.05)
        gc.collect()

    async with app:
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        await schedule(WARM_UP)
        before_mb = _resident_mb()
        await schedule(count)
        after_mb = _resident_mb()
        worker.stop()
        await running
    return {"retries": count, "before_mb": before_mb, "after_mb": after_mb}


async def _in_hand(app: Redrive) -> bool:
    return any(depth.ready or depth.leased for depth in await app.backend.broker.depths())


def _resident_mb() -> float:
    """Resident memory of this process; from /proc, so on Linux only."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024 / 1024


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(Path(sys.argv[1]), int(sys.argv[2])))))
