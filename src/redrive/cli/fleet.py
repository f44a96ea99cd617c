"""Several worker processes as one: the supervisor's command, and its probes with everybody's numbers.

The supervisor blocks the main thread; its HTTP server, where one is wanted, has a loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from redrive.cli.hosting import Hosting, address_of, announce, prepare
from redrive.runtime.app import Redrive
from redrive.runtime.supervisor import supervise
from redrive.runtime.tallies import DIRECTORY, STALE_S, TallyReader
from redrive.web.readiness import Obstacle

START_WAIT_S: Final = 30.0
STOP_WAIT_S: Final = 10.0


def run_fleet(app: Redrive, spec: str, options: Hosting, *, processes: int) -> int:
    """Keep so many workers of the app running until told to stop; the exit code."""
    prepare(app, options)
    app.worker(options.queues)  # says now what every worker would say
    command = [sys.executable, "-m", "redrive.cli", "work", spec, "--processes", "1"]
    if options.queues is not None:
        command += ["--queues", ",".join(options.queues)]
    if options.grace is not None:
        command += ["--grace", options.grace]
    if options.address is None:
        announce(app, options, None)
        return supervise(command, processes=processes, events=app.events)
    with tempfile.TemporaryDirectory(prefix="redrive-") as directory:
        os.environ[DIRECTORY] = directory
        with _served(app, options, directory=Path(directory), processes=processes) as url:
            announce(app, options, url)
            return supervise(command, processes=processes, events=app.events)


class FleetReadiness:
    """Ready when every worker is there, has just reported, and is ready itself."""

    def __init__(self, reader: TallyReader, processes: int) -> None:
        self._reader = reader
        self._processes = processes

    async def obstacles(self) -> tuple[Obstacle, ...]:
        """Why the fleet is not ready."""
        reports = self._reader.reports()
        found = [Obstacle(code="worker", text=f"{r.pid}: {text}") for r in reports for text in r.obstacles]
        found += [
            Obstacle(code="worker_hangs", text=f"{r.pid} has not reported for {r.age_s:.0f} s.")
            for r in reports
            if r.age_s > STALE_S
        ]
        if len(reports) < self._processes:
            missing = self._processes - len(reports)
            found.append(Obstacle(code="starting", text=f"{missing} of {self._processes} workers are not running."))
        return tuple(found)

    @property
    def paused(self) -> tuple[str, ...]:
        """Queues that a person has paused, as any worker says."""
        found = [report.tally.numbers.get("queue_paused", {}) for report in self._reader.reports()]
        return tuple(sorted({labels[0] for series in found for labels, value in series.items() if value}))


@contextmanager
def _served(app: Redrive, options: Hosting, *, directory: Path, processes: int) -> Iterator[str]:
    """The probes in a thread for as long as the block runs; yields the URL."""
    thread = _ServerThread(app, options, directory=directory, processes=processes)
    thread.start()
    try:
        yield thread.url()
    finally:
        thread.stop()


class _ServerThread(threading.Thread):
    """A loop of its own with the HTTP server in it."""

    def __init__(self, app: Redrive, options: Hosting, *, directory: Path, processes: int) -> None:
        super().__init__(name="redrive-http", daemon=True)
        self._app = app
        self._options = options
        self._directory = directory
        self._processes = processes
        self._is_up = threading.Event()
        self._url: str | None = None
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - told to whoever waits for the URL
            self._error = error
        finally:
            self._is_up.set()

    def url(self) -> str:
        """Where it listens. Raises what kept it from listening."""
        self._is_up.wait(START_WAIT_S)
        if self._error is not None:
            raise self._error
        assert self._url is not None, "the HTTP server did not start"
        return self._url

    def stop(self) -> None:
        """Stop listening."""
        if self._loop is not None and self._stopping is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self.join(STOP_WAIT_S)

    async def _serve(self) -> None:
        from redrive.runtime.metrics import Metrics
        from redrive.web.probes import Probes, probes_app
        from redrive.web.server import HttpServer

        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        reader = TallyReader(self._directory)
        readiness = FleetReadiness(reader, self._processes)
        probes = Probes(
            self._app, Metrics(others=reader.tallies, prefix=self._app.settings.metrics_prefix), readiness=readiness
        )
        host, port = address_of(self._app, self._options)
        async with HttpServer(probes_app(self._app, probes), host=host, port=port) as server:
            self._url = server.url
            self._is_up.set()
            await self._open_and_wait(self._stopping)

    async def _open_and_wait(self, stopping: asyncio.Event) -> None:
        """Depths need the app open; where its broker is away the workers say so, and the scrape shows their numbers."""
        from redrive.errors import RedriveError

        opened: Any = None
        try:
            await self._app.open()
            opened = self._app
        except RedriveError:
            pass
        await stopping.wait()
        if opened is not None:
            await opened.close()
