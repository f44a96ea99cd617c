"""A gateway process that kills itself once, right before or right after the message is durable."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from redrive import Redrive
from redrive.ingest import Gateway
from tests.ingest.client import SECRET


class Doomed(Redrive):
    """Dies at `moment` unless it already did in an earlier life."""

    moment = ""
    died = Path()

    async def publish(self, queue: str, payload: Any, **arguments: Any) -> Any:
        if self.moment == "before":
            self._die()
        published = await super().publish(queue, payload, **arguments)
        if self.moment == "after":
            self._die()
        return published

    def _die(self) -> None:
        if not self.died.exists():
            self.died.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def main(port_file: str, database: str, moment: str) -> None:
    app = Doomed("doomed", broker=f"sqlite:///{database}")
    app.moment, app.died = moment, Path(f"{database}.died")
    gateway = Gateway(app, "hooks", sources={"courier-x": [SECRET]})

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with app:
            yield

    outer = Starlette(routes=[Mount("/webhooks", app=gateway)], lifespan=lifespan)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        Path(f"{port_file}.part").write_text(str(listening.getsockname()[1]))
        Path(f"{port_file}.part").rename(port_file)
        uvicorn.Server(uvicorn.Config(outer, log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    main(*sys.argv[1:])
