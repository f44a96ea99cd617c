"""A service that consumes over HTTP: a real server on the loopback interface, with answers given beforehand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from redrive.web.server import HttpServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as the server saw it."""

    path: str
    headers: dict[str, str]
    body: bytes
    client: tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What to answer. `release`, where set, is waited for first."""

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    release: asyncio.Event | None = None


Decide = Callable[[Request], Reply]


@dataclass(slots=True)
class Endpoint:
    """`decide` says what is answered; `requests` is what came, in order. `at_once`: the most requests in hand."""

    decide: Decide
    requests: list[Request] = field(default_factory=list)
    in_hand: int = 0
    at_once: int = 0
    url: str = ""
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        request = await _read(scope, receive)
        self.requests.append(request)
        self.in_hand += 1
        self.at_once = max(self.at_once, self.in_hand)
        self.came.set()
        reply = self.decide(request)
        if reply.release is not None:
            await reply.release.wait()
        self.in_hand -= 1
        await send({"type": "http.response.start", "status": reply.status, "headers": list(reply.headers)})
        await send({"type": "http.response.body", "body": reply.body})


async def _lifespan(receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _read(scope: Any, receive: Any) -> Request:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    return Request(path=scope["path"], headers=headers, body=body, client=tuple(scope["client"]))


@asynccontextmanager
async def endpoint(decide: Decide | None = None) -> AsyncIterator[Endpoint]:
    """A running endpoint; without `decide` everything is answered with 200."""
    made = Endpoint(decide or (lambda _request: Reply()))
    async with HttpServer(made) as server:
        made.url = f"{server.url}/messages"
        yield made


def replies(*given: int | Reply) -> Decide:
    """These answers one after the other; the last one for all that come later."""
    waiting = [reply if isinstance(reply, Reply) else Reply(status=reply) for reply in given]

    def decide(_request: Request) -> Reply:
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]

    return decide
