"""A process that collects one queue, and says so on its standard output."""

from __future__ import annotations

import asyncio
import sys

from redrive import Redrive
from redrive.runtime import collecting
from redrive.service import Service

collecting.LEASE_MS = 300  # type: ignore[misc]
collecting.ASK_EVERY_MS = 20  # type: ignore[misc]


async def main(url: str, store: str, queue: str) -> None:
    async with Redrive("found", broker=url, settings={"store": store, "log_level": "error"}) as app:
        app.events.subscribe(lambda event: print(event.name, flush=True))  # noqa: T201 - the test reads it
        await Service(app).collect(queue)


asyncio.run(main(*sys.argv[1:]))
