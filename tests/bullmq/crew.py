"""A worker process for tests that kill it: python -m tests.bullmq.crew URL STORE JOURNAL.

It says "ready" in the journal once it is connected and about to take.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from redrive import Delivery, Fixed, Redrive, Retry, Settings

QUEUE = "orders"


def make(url: str, store: str, journal: Path) -> Redrive:
    """The app. A message with "bomb" kills the process; one with "s" takes so long
    in its first attempt (one that was interrupted runs alone, and would hold up the others).
    """
    app = Redrive("crew", settings=Settings(broker=url, store=f"sqlite:///{store}"))

    def write(**line: Any) -> None:
        with journal.open("a", encoding="utf-8") as out:
            out.write(json.dumps({**line, "pid": os.getpid()}) + "\n")

    @app.consumer(QUEUE, retry=Retry(max_attempts=3, backoff=Fixed("10ms")), concurrency=20)
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        write(start=order["n"], attempt=delivery.attempt, at=app.clock.now())
        if order.get("bomb"):
            os.kill(os.getpid(), signal.SIGKILL)
        if delivery.attempt == 1:
            await asyncio.sleep(order.get("s", 0))  # sleep: the handler's work
        write(end=order["n"], attempt=delivery.attempt)

    @app.consumer("idle")
    async def wait(_order: dict[str, Any]) -> None:
        """A worker of two queues has nothing in hand in one of them."""

    return app


async def main(url: str, store: str, journal: str) -> None:
    """Work until killed, or told to stop."""
    app = make(url, store, Path(journal))
    async with app:
        worker = app.worker()
        with Path(journal).open("a", encoding="utf-8") as out:
            out.write(json.dumps({"ready": os.getpid()}) + "\n")
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
