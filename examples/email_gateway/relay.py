"""The relay: from the outbox into the queue. `python -m examples.email_gateway.relay`, as many as one likes.

Enqueued first, marked then: killed in between, a row is enqueued again, and that adds nothing, because its job has the
id of the row.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from typing import Final

from redrive import BrokerUnavailableError, Redrive
from redrive.core.units import rfc3339

from .names import QUEUE
from .outbox import Outbox

BATCH: Final = 500
IDLE_S: Final = 0.2
AWAY_S: Final = 2.0


async def relay_once(app: Redrive, outbox: Outbox) -> int:
    """Enqueue what waits; how many. Raises `BrokerUnavailableError`: nothing is marked, so nothing is forgotten."""
    rows = await asyncio.to_thread(outbox.pending, BATCH)
    enqueued_at = rfc3339(time.time_ns() // 1_000_000)
    jobs = [
        (
            row.job(enqueued_at=enqueued_at),
            {"message_id": row.id, "idempotency_key": row.id, "tenant": row.company_id},
        )
        for row in rows
    ]
    if jobs:
        await app.publish_many(QUEUE, jobs, type=QUEUE, once=True)
        await asyncio.to_thread(outbox.mark_enqueued, [row.id for row in rows])
    return len(rows)


async def relay(app: Redrive, outbox: Outbox, stopping: asyncio.Event) -> None:
    """Enqueue whatever comes, until stopped."""
    while not stopping.is_set():
        try:
            wait_s = 0.0 if await relay_once(app, outbox) else IDLE_S
        except BrokerUnavailableError:
            wait_s = AWAY_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await stopping.wait()


async def main() -> None:
    """Relay until SIGINT or SIGTERM."""
    from . import app, outbox  # noqa: PLC0415 - the app imports this module

    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with app:
        await relay(app, outbox, stopping)


if __name__ == "__main__":
    asyncio.run(main())
