"""How exactly a retry comes: 2 000 retries due within 10 s of each other. Run as a process of its own.

`python -m bench.retries BROKER COUNT` is one run on any broker, `redis://…` or `sqlite:///…`: with 1 000 that is 100
retries a second.

The error is the start of the second attempt minus its due time, as the worker itself announced it. A negative error
would be an early retry, which must not be.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.measure import python, scratch
from redrive import Delivery, Redrive, Retry, RetryLater, Settings

FIRST_DUE_S: Final = 3.0
"""All first attempts are over before the first retry is due, so that only the retries are measured."""

WINDOW_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Milliseconds between due and started; `early` counts those before their time."""

    retries: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    early: int


def measure(folder: Path, *, retries: int) -> Accuracy:
    """Run it in a process of its own."""
    with scratch(folder, "retries") as place:
        return Accuracy(**python("bench.retries", f"sqlite:///{place / 'bench.db'}", str(retries)))


async def run(broker: str, count: int) -> dict[str, Any]:
    """Fail every message once with a delay of its own, and see when each comes back."""
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        store = None if broker.startswith("sqlite:") else f"sqlite:///{folder}/letters.db"
        return await _run(Settings(broker=broker, store=store), count)


async def _run(settings: Settings, count: int) -> dict[str, Any]:
    app = Redrive("bench", settings=settings)
    due: dict[str, float] = {}
    errors_ms: list[float] = []
    done = asyncio.Event()
    ends_at = time.time() + FIRST_DUE_S
    rng = random.Random(1)

    def note(event: Any) -> None:
        if event.name == "delivery.retry_scheduled":
            due[event.fields["message_id"]] = event.fields["due_at"]

    @app.consumer("bench", retry=Retry(max_attempts=2), breaker=None)
    async def handle(_payload: dict[str, int], delivery: Delivery) -> None:
        now_ms = time.time() * 1_000
        if delivery.attempt == 1:
            raise RetryLater(max(0.0, ends_at - time.time()) + rng.random() * WINDOW_S)
        errors_ms.append(now_ms - due[delivery.message.id])
        if len(errors_ms) == count:
            done.set()

    app.events.subscribe(note)
    async with app:
        await app.publish_many("bench", [({"number": n}, {"message_id": f"m-{n}"}) for n in range(count)])
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        await done.wait()
        worker.stop()
        await running
    errors_ms.sort()
    return {
        "retries": count,
        "p50_ms": median(errors_ms),
        "p99_ms": errors_ms[int(count * 0.99)],
        "max_ms": errors_ms[-1],
        # Due times are whole milliseconds: less than one below is the clock's own rounding.
        "early": sum(error <= -1.0 for error in errors_ms),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(sys.argv[1], int(sys.argv[2])))))
