"""A MongoDB server of one's own (FerretDB): started in a moment, killed and started again, nothing of it left behind.

    from redrive.testing.servers.mongodb import MongoNode
    from redrive.testing.servers.mongodb_install import installed_ferretdb

    with MongoNode(installed_ferretdb()) as node:
        ...                 # node.url is a mongodb:// URL of an empty server
        node.kill()         # kill -9; the data stay
        node.start()        # on the same data and the same port

The server ends with its owner (`guard.py`), even where the owner is killed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import pymongo
from pymongo.errors import PyMongoError

from redrive.testing.servers.lifecycle import Lifecycle
from redrive.testing.servers.processes import LOOPBACK, GuardedProcess, ServerFailed, free_ports

_START_S: Final = 60.0
_POLL_S: Final = 0.02
_LOOK_MS: Final = 1_000
"""While it starts: whoever else may have its port need not answer at all."""


class MongoNode(Lifecycle):
    """One server. `owner`: see `GuardedProcess`."""

    host: Final = LOOPBACK

    def __init__(self, program: Path, *, owner: int | None = None) -> None:
        self.program = program
        self.port = 0
        self._owner = owner
        self._folder = Path(tempfile.mkdtemp(prefix="redrive-mongodb-"))

    @property
    def url(self) -> str:
        """`mongodb://` URL of it, without a database."""
        return f"mongodb://{self.host}:{self.port}"

    def url_by(self, host: str, port: int) -> str:
        """The URL for who connects through a proxy."""
        return f"mongodb://{host}:{port}"

    def _take_ports(self) -> None:
        (self.port,) = free_ports(1)

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        data = self._folder / "data"
        data.mkdir(exist_ok=True)
        command = [
            str(self.program),
            "--handler=sqlite", f"--sqlite-url=file:{data}/", f"--state-dir={self._folder}", "--telemetry=disable",
            f"--listen-addr={LOOPBACK}:{self.port}", "--debug-addr=-", "--log-level=error",
        ]  # fmt: skip
        environment = {**os.environ, "DO_NOT_TRACK": "1"}
        self._server = GuardedProcess(
            command, log=self._folder / "log", owner=self._owner, folder=self._folder, environment=environment
        )
        self._wait_until_it_answers(self._server)

    def _wait_until_it_answers(self, server: GuardedProcess) -> None:
        deadline = time.monotonic() + _START_S
        while not self._answers():
            if not server.is_running:
                raise ServerFailed(f"FerretDB ended while it was starting.\n{server.log_tail()}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"FerretDB did not answer within {_START_S:g} s.\n{server.log_tail()}")
            time.sleep(_POLL_S)  # sleep: another process sets no event of ours

    def _answers(self) -> bool:
        try:
            options: dict[str, Any] = {"serverSelectionTimeoutMS": _LOOK_MS, "socketTimeoutMS": _LOOK_MS}
            client: pymongo.MongoClient[dict[str, Any]]
            with pymongo.MongoClient(self.url, **options) as client:
                client.admin.command("ping")
        except PyMongoError:
            return False
        return True
