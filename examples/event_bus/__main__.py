"""`python -m examples.event_bus`: the bus and the label service in one process, until Ctrl-C."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import uvicorn

from redrive.runtime import logs

from . import LABELS_URL, app
from .label_service import service


async def main() -> None:
    """Both consumers, and the service that one of them posts to, listening where LABELS_URL says."""
    logs.start(app.events, system=app.name)
    url = urlsplit(LABELS_URL)
    server = uvicorn.Server(
        uvicorn.Config(service, host=url.hostname or "127.0.0.1", port=url.port or 80, log_level="warning")
    )
    worker = app.worker()
    working = asyncio.create_task(worker.run())
    await server.serve()  # takes Ctrl-C and SIGTERM
    worker.stop()
    await working


asyncio.run(main())
