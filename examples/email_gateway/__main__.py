"""`python -m examples.email_gateway`: relay and worker in one process, until Ctrl-C."""

from __future__ import annotations

import asyncio
import sys

from redrive.runtime import logs
from redrive.runtime.hosting import host_process

from . import app, outbox
from .relay import relay

logs.start(app.events, system=app.name)
worker = app.worker(owns_process=True)


async def run() -> None:
    """The worker, and the relay as long as it works."""
    stopping = asyncio.Event()
    async with app, asyncio.TaskGroup() as group:
        group.create_task(relay(app, outbox, stopping))
        try:
            await worker.run()
        finally:
            stopping.set()


sys.exit(host_process(run, stop=worker.stop, last_resort=worker.last_resort))
