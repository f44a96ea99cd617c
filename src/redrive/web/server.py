"""HttpServer: uvicorn inside a loop that somebody else owns. It takes no signals and ends when it is told to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self

import uvicorn

from redrive.errors import ConfigurationError

GRACE_SECONDS: Final = 5
"""Requests in hand when the server is told to end get so long."""
POLL_SECONDS: Final = 0.01
BACKLOG: Final = 2_048


class HttpServer:
    """`async with HttpServer(asgi, host=…, port=…) as server:` serves for as long as the block runs.

    `port` 0 takes any free port; `url` says which. Raises `ConfigurationError` where the address cannot be bound.
    """

    def __init__(self, asgi: Callable[..., Awaitable[None]], *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._asgi = asgi
        self._host = host
        self._port = port
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._bound: tuple[str, int] | None = None

    @property
    def port(self) -> int:
        """The port that is really bound."""
        assert self._bound is not None, "the server is not started"
        return self._bound[1]

    @property
    def url(self) -> str:
        """Where to reach it, e.g. http://127.0.0.1:8000."""
        shown = "127.0.0.1" if self._host == "0.0.0.0" else self._host  # noqa: S104 - shown, not bound
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{self.port}"

    async def start(self) -> None:
        """Listen; returns when requests are answered."""
        bound = _bind(self._host, self._port)
        self._bound = bound.getsockname()[:2]
        config = uvicorn.Config(
            self._asgi,
            log_config=None,
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=GRACE_SECONDS,
            server_header=False,
            # Whoever asks could else choose the address that is counted and recorded.
            proxy_headers=False,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[bound]), name="http")
        while not self._server.started:
            if self._task.done():
                bound.close()
                await self._task
                raise ConfigurationError(f"The HTTP server on {self._host}:{self._port} ended while it was starting.")
            await asyncio.sleep(POLL_SECONDS)

    async def stop(self) -> None:
        """Take no more requests, finish those in hand, and close."""
        if self._server is None or self._task is None:
            return
        self._server.should_exit = True
        await asyncio.wait({self._task})

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class _Server(uvicorn.Server):
    """Leaves SIGINT and SIGTERM to whoever owns the process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(BACKLOG)
        bound.setblocking(False)  # noqa: FBT003 - the standard library's own signature
    except (OSError, OverflowError) as error:
        bound.close()
        raise ConfigurationError(
            f"Cannot listen on {host}:{port}: {_reason(error)}.",
            hint="Choose another port, or 0 for any free one; the host must be an address of this machine.",
        ) from error
    return bound


def _reason(error: Any) -> str:
    return str(getattr(error, "strerror", None) or error)
