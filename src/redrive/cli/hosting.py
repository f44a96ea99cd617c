"""The processes behind `up`, `work` and `serve`: logs, probes, an HTTP server and a worker around one app.

The HTTP server starts first, so that probes answer while the broker is still away. The app is then opened, again and
again where that fails, and only then the worker starts. Signals are those of `redrive.runtime.hosting`: the first
drains, the second stops at once.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from redrive.cli.options import parse_duration
from redrive.cli.output import note, print_json, say
from redrive.core.units import Millis, duration_ms
from redrive.errors import BrokerUnavailableError, ConfigurationError, SchemaTooNewError
from redrive.runtime.app import AsgiApp, Redrive
from redrive.runtime.events import Level
from redrive.runtime.outage import Outage

if TYPE_CHECKING:
    from redrive.runtime.logs import Style
    from redrive.runtime.tallies import TallyWriter
    from redrive.runtime.worker import Worker
    from redrive.web.admin import AdminApi
    from redrive.web.readiness import Readiness

_STYLES: Final[dict[str, Style]] = {"auto": "auto", "json": "json", "text": "console"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosting:
    """What to run around the app. `address` None: no HTTP server; a part that is None comes from the settings."""

    queues: tuple[str, ...] | None = None
    address: tuple[str | None, int | None] | None = None
    grace: str | None = None
    is_json: bool = False
    is_working: bool = True
    has_admin: bool = False


def host_app(app: Redrive, options: Hosting) -> int:
    """Run in this process until a signal ends it; the exit code. Raises `ConfigurationError` before anything runs."""
    from redrive.runtime.hosting import host_process

    prepare(app, options)
    host = _Host(app, options)
    return host_process(host.run, stop=host.stop, last_resort=host.last_resort)


def prepare(app: Redrive, options: Hosting) -> None:
    """Settings from the command line, and logs. Raises `ConfigurationError` for what the command line has wrong."""
    from redrive.runtime import logs

    grace = parse_duration(options.grace, "--grace")
    if grace is not None:
        app.settings = replace(app.settings, grace_ms=duration_ms(grace))
    address_of(app, options)
    settings = app.settings
    style = _STYLES[settings.log_format]
    logs.start(app.events, system=app.name, style=style, level=Level(settings.log_level))
    logs.take_in_library_logs(system=app.name, style=style)


def address_of(app: Redrive, options: Hosting) -> tuple[str, int]:
    """Where to listen: the command line over the settings. Raises `ConfigurationError` for an empty host."""
    host, port = options.address or (None, None)
    settings = app.settings
    found = replace(
        settings, host=settings.host if host is None else host, port=settings.port if port is None else port
    )
    return found.host, found.port


def announce(app: Redrive, options: Hosting, url: str | None, *, token: str | None = None) -> None:
    """Say on standard output what runs here, as soon as it does. `token`: the admin API's, shown nowhere else."""
    queues = list(options.queues or app.consumers) if options.is_working else []
    if options.is_json:
        shown = {"token": token} if options.has_admin else {}
        print_json({"app": app.name, "pid": os.getpid(), "url": url, "queues": queues, **shown})
    elif url is not None:
        say(f"{app.name} is up at {url}")
        for path in (*app.mounts, *(("/api/v1", "/openapi.json") if options.has_admin else ()), "/readyz", "/metrics"):
            say(f"  {url}{path}")
        if token is not None:
            say(f"Token of the admin API, until this process ends: {token}")
        note("Ctrl-C drains and stops." if queues else "Ctrl-C stops.")
    sys.stdout.flush()


class _Host:
    """One process."""

    def __init__(self, app: Redrive, options: Hosting) -> None:
        self._app = app
        self._options = options
        self._stopping = asyncio.Event()
        self._worker: Worker | None = None
        self._readiness: Readiness | None = None
        self._admin: AdminApi | None = None
        self._token: str | None = None
        if options.is_working:
            self._worker = app.worker(options.queues, owns_process=True)

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            url = await self._serve(stack)
            announce(self._app, self._options, url, token=self._token)
            if not await self._open(stack):
                return
            if self._admin is not None:
                # Before the app is closed: the redrive jobs it carries out need the store.
                stack.push_async_callback(self._admin.close)
            if self._worker is None:
                await self._stopping.wait()
            else:
                await self._worker.run()

    def stop(self, *, at_once: bool) -> None:
        self._stopping.set()
        if self._worker is not None:
            self._worker.stop(at_once=at_once)

    def last_resort(self) -> None:
        if self._worker is not None:
            self._worker.last_resort()

    async def _serve(self, stack: AsyncExitStack) -> str | None:
        """Start what reports on this process: a file for a supervisor, a server for everybody else."""
        from redrive.runtime.tallies import DIRECTORY

        directory = os.environ.get(DIRECTORY)
        if directory is None and self._options.address is None:
            return None
        from redrive.web.probes import Probes, compose
        from redrive.web.readiness import Readiness
        from redrive.web.server import HttpServer

        self._readiness = Readiness(self._app)
        probes = Probes(self._app, readiness=self._readiness)
        if directory is not None:
            stack.callback(_reporting(Path(directory), probes.metrics.tally, self._readiness).close)
        if self._options.address is None:
            return None
        host, port = address_of(self._app, self._options)
        asgi: AsgiApp = compose(self._app, probes, is_opening=False)
        if not self._options.has_admin:
            server = await stack.enter_async_context(HttpServer(asgi, host=host, port=port))
            return server.url
        from redrive.web.admin import AdminApi, beside, guard_of

        guard, self._token = guard_of(self._app, host=host)
        self._admin = AdminApi(self._app, guard)
        server = await stack.enter_async_context(HttpServer(beside(self._admin, asgi), host=host, port=port))
        # Before the server ends: it waits for its streams.
        stack.push_async_callback(self._admin.close)
        return server.url

    async def _open(self, stack: AsyncExitStack) -> bool:
        """Open the app as soon as its broker lets us; False where we were told to stop before."""
        app = self._app
        queues = self._options.queues or tuple(app.consumers) or ("-",)
        outage = Outage(queues, app.settings, clock=app.clock, events=app.events)
        while not self._stopping.is_set():
            try:
                await app.open()
            except (BrokerUnavailableError, SchemaTooNewError) as error:
                if self._readiness is not None:
                    self._readiness.failed_to_open = error
                await _at_most(self._stopping.wait(), outage.failed(error))
            else:
                stack.push_async_callback(app.close)
                outage.succeeded()
                return True
        return False


def _reporting(directory: Path, tally: Any, readiness: Readiness) -> TallyWriter:
    from redrive.runtime.tallies import TallyWriter

    writer = TallyWriter(directory, tally, lambda: [obstacle.text for obstacle in readiness.known()])
    writer.start()
    return writer


async def _at_most(waiting: Any, pause_ms: Millis) -> None:
    try:
        async with asyncio.timeout(pause_ms / 1_000):
            await waiting
    except TimeoutError:
        pass


def work_app(spec: str, options: Hosting, *, processes: int | None) -> int:
    """A worker in this process, or several under a supervisor; the exit code."""
    from redrive.cli.target import load_app

    app = load_app(spec)
    count = app.settings.processes if processes is None else processes
    if count == 1:
        return host_app(app, options)
    if not app.consumers:
        raise ConfigurationError(f'The app "{app.name}" has no consumer; there is nothing to work on.')
    from redrive.cli.fleet import run_fleet

    return run_fleet(app, spec, options, processes=count)
