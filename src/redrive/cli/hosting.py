"""The processes behind `up`, `work` and `serve`: logs, probes, an HTTP server and a worker around one app.

The HTTP server starts first, so that probes answer while the broker is still away. The app is then opened, again and
again where that fails, and only then the worker starts. Signals belong to this module: the first SIGTERM or SIGINT
drains, the second stops at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from redrive.cli.output import note, print_json, say
from redrive.core.units import Millis, duration_ms
from redrive.errors import BrokerUnavailableError, ConfigurationError, RedriveError
from redrive.runtime.app import Redrive
from redrive.runtime.events import Level

if TYPE_CHECKING:
    from redrive.web.probes import Probes

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
OPEN_PAUSE_MS: Final[Millis] = 1_000
OPEN_PAUSE_MAX_MS: Final[Millis] = 10_000
FORCED_EXIT: Final = 128
"""A process that was told twice ends with 128 and the number of the signal, as a shell reports it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosting:
    """What to run around the app. `address` None: no HTTP server; a part that is None comes from the settings."""

    queues: tuple[str, ...] | None = None
    address: tuple[str | None, int | None] | None = None
    grace: str | None = None
    is_json: bool = False
    is_working: bool = True


def host_app(app: Redrive, options: Hosting) -> int:
    """Run in this process until a signal ends it; the exit code."""
    _set_grace(app, options.grace)
    _start_logs(app)
    code = asyncio.run(_Host(app, options).run())
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _set_grace(app: Redrive, grace: str | None) -> None:
    if grace is not None:
        from dataclasses import replace

        app.settings = replace(app.settings, grace_ms=duration_ms(grace, field="--grace"))


def _start_logs(app: Redrive) -> None:
    from redrive.runtime import logs

    styles: dict[str, logs.Style] = {"auto": "auto", "json": "json", "text": "console"}
    settings = app.settings
    logs.start(app.events, system=app.name, style=styles[settings.log_format], level=Level(settings.log_level))


class _Host:
    """One process."""

    def __init__(self, app: Redrive, options: Hosting) -> None:
        self._app = app
        self._options = options
        self._told = 0
        self._stopping = asyncio.Event()
        self._worker: Any = None
        self._probes: Probes | None = None
        self._closed_queues: tuple[str, ...] = ()
        self._code = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)
        async with AsyncExitStack() as stack:
            url = await self._serve(stack)
            self._announce(url)
            if await self._open(stack):
                await self._work()
        return self._code

    def _signalled(self, number: int) -> None:
        self._told += 1
        self._stopping.set()
        if self._told > 1:
            self._code = FORCED_EXIT + number
        if self._worker is not None:
            self._worker.stop(at_once=self._told > 1)
        if self._told > 2:  # noqa: PLR2004 - told three times, something in here does not let go
            os._exit(self._code)

    async def _serve(self, stack: AsyncExitStack) -> str | None:
        if self._options.address is None:
            return None
        from redrive.web.probes import Probes, compose
        from redrive.web.server import HttpServer

        host, port = self._options.address
        settings = self._app.settings
        self._probes = Probes(self._app)
        server = HttpServer(
            compose(self._app, self._probes, is_opening=False),
            host=settings.host if host is None else host,
            port=settings.port if port is None else port,
        )
        await stack.enter_async_context(server)
        return server.url

    def _announce(self, url: str | None) -> None:
        queues = list(self._options.queues or self._app.consumers) if self._options.is_working else []
        if self._options.is_json:
            print_json({"app": self._app.name, "pid": os.getpid(), "url": url, "queues": queues})
        elif url is not None:
            say(f"{self._app.name} is up at {url}")
            for path in (*self._app.mounts, "/readyz", "/metrics"):
                say(f"  {url}{path}")
            note("Ctrl-C drains and stops." if queues else "Ctrl-C stops.")
        sys.stdout.flush()

    async def _open(self, stack: AsyncExitStack) -> bool:
        """Open the app as soon as its broker lets us; False where we were told to stop before."""
        pause_ms = OPEN_PAUSE_MS
        while not self._stopping.is_set():
            try:
                await self._app.open()
            except BrokerUnavailableError as error:
                self._tell_closed(error, pause_ms)
            else:
                stack.push_async_callback(self._app.close)
                self._tell_open()
                return True
            await _first(self._stopping, pause_ms)
            pause_ms = min(OPEN_PAUSE_MAX_MS, 2 * pause_ms)
        return False

    def _tell_closed(self, error: RedriveError, pause_ms: Millis) -> None:
        if self._probes is not None:
            self._probes.readiness.failed_to_open = error
        self._closed_queues = tuple(self._options.queues or self._app.consumers) or ("-",)
        for queue in self._closed_queues:
            self._app.events.emit(
                "consumer.paused", queue=queue, error_code=error.code, error_text=str(error), delay_ms=pause_ms
            )

    def _tell_open(self) -> None:
        for queue in self._closed_queues:
            self._app.events.emit("consumer.resumed", queue=queue)

    async def _work(self) -> None:
        if not self._options.is_working:
            await self._stopping.wait()
            return
        if not self._app.consumers:
            raise ConfigurationError(
                f'The app "{self._app.name}" has no consumer.', hint="Use: redrive serve, or decorate a handler."
            )
        self._worker = self._app.worker(self._options.queues, owns_process=True)
        await self._worker.run()


async def _first(stopping: asyncio.Event, pause_ms: Millis) -> None:
    """Wait for the event, at most so long."""
    try:
        async with asyncio.timeout(pause_ms / 1_000):
            await stopping.wait()
    except TimeoutError:
        pass
