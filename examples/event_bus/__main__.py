"""`python -m examples.event_bus`: the bus and the label service in one process, until Ctrl-C."""

from __future__ import annotations

import sys
from urllib.parse import urlsplit

from redrive.runtime import logs
from redrive.runtime.hosting import host_process
from redrive.web.server import HttpServer

from . import LABELS_URL, app
from .label_service import service

logs.start(app.events, system=app.name)
url = urlsplit(LABELS_URL)
worker = app.worker(owns_process=True)


async def run() -> None:
    """Both consumers, and the service that one of them posts to, listening where LABELS_URL says."""
    async with HttpServer(service, host=url.hostname or "127.0.0.1", port=url.port or 80):
        await worker.run()


sys.exit(host_process(run, stop=worker.stop, last_resort=worker.last_resort))
