"""Link: one connection to one Redis server on the event loop. Everything sent is a pipeline.

Calls of many tasks share the connection: each writes its commands at once, and the server answers in that order. So a
call that was cancelled leaves the connection as it is: its replies are read and dropped. What it did is done, though:
whoever must know what came of it shields the call.

A connection whose oldest call is unanswered for `answer_timeout_ms` is taken for broken and cut. All calls on a cut
connection raise `LinkLost`; what they asked for may have been carried out.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import hiredis

from redrive.core.units import Millis
from redrive.redis.address import Address
from redrive.redis.failures import LinkLost, Refusal, check

Argument: TypeAlias = "str | bytes | float"
Command: TypeAlias = "Sequence[Argument]"

FULL_UP: Final = "max number of clients"
MAX_ALLOWED_INFO_BYTES: Final = 65_536


class _Call:
    """Replies that are still to come for one `send`."""

    __slots__ = ("answer", "give_up_at", "left", "replies")

    def __init__(self, answer: asyncio.Future[list[Any]], left: int, give_up_at: float) -> None:
        self.answer = answer
        self.left = left
        self.give_up_at = give_up_at
        self.replies: list[Any] = []


class Link(asyncio.Protocol):
    """One connection. Made by `connect`; not used again once it is lost."""

    def __init__(self, *, answer_timeout_ms: Millis) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self._calls: deque[_Call] = deque()
        self._transport: asyncio.Transport | None = None
        self._answer_timeout_s = answer_timeout_ms / 1_000
        self._watch: asyncio.TimerHandle | None = None
        self._lost: LinkLost | None = None
        self.info: dict[str, str] = {}
        self.where = ""
        self.on_lost: Callable[[], None] | None = None

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._lost is not None

    # --------------------------------------------------------------------------------------- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        reader.feed(data)
        try:
            # RESP2 knows no booleans: False is "nothing complete yet".
            while (reply := reader.gets()) is not False:
                self._take(reply)
        except hiredis.ProtocolError as error:
            self._lose(f"what came is not Redis's protocol: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(str(exc) if exc is not None and str(exc) else "the connection was closed")

    # ------------------------------------------------------------------------------------------------- calls

    def send(self, commands: Sequence[Command], *, patience_ms: float | None = None) -> asyncio.Future[list[Any]]:
        """Write the commands; their replies, an error among them as an exception object. `patience_ms`: how long the
        answer may take, for commands that wait. Raises `LinkLost` (in the future).
        """
        answer: asyncio.Future[list[Any]] = self._loop.create_future()
        if self._lost is not None or self._transport is None:
            answer.set_exception(LinkLost("the connection was lost", was_sent=False))
            return answer
        patience_s = self._answer_timeout_s if patience_ms is None else patience_ms / 1_000
        give_up_at = self._loop.time() + patience_s
        self._calls.append(_Call(answer, len(commands), give_up_at))
        self._transport.write(b"".join([hiredis.pack_command(tuple(command)) for command in commands]))  # type: ignore[arg-type]
        if self._watch is None:
            self._watch = self._loop.call_at(give_up_at, self._look_at_the_clock)
        return answer

    async def ask(self, *command: Argument) -> Any:
        """One command; its reply. Raises `Refusal` where that is an error, `LinkLost`."""
        (reply,) = await self.send([command])
        return check(reply)

    def close(self) -> None:
        """Cut the connection. May be called twice."""
        self._lose("it was closed here")

    def _take(self, reply: Any) -> None:
        call = self._calls[0]
        call.replies.append(reply)
        call.left -= 1
        if not call.left:
            self._calls.popleft()
            if not call.answer.done():
                call.answer.set_result(call.replies)

    def _look_at_the_clock(self) -> None:
        self._watch = None
        if not self._calls:
            return
        give_up_at = self._calls[0].give_up_at
        if give_up_at <= self._loop.time():
            self._lose("it does not answer")
        else:
            self._watch = self._loop.call_at(give_up_at, self._look_at_the_clock)

    def _lose(self, text: str) -> None:
        if self._lost is not None:
            return
        self._lost = LinkLost(text)
        if self._watch is not None:
            self._watch.cancel()
        if self._transport is not None:
            self._transport.abort()
        for call in self._calls:
            if not call.answer.done():
                call.answer.set_exception(LinkLost(text))
                # Whoever called may be gone by now.
                call.answer.exception()
        self._calls.clear()
        if self.on_lost is not None:
            self.on_lost()


async def connect(host: str, port: int, address: Address, *, is_sentinel: bool = False) -> Link:
    """A link to this server, greeted. Raises `LinkLost` where it is away, starting, or (but for a sentinel) a replica;
    `Refusal` where it wants other credentials; `ssl.SSLError`.
    """
    link = await dial(host, port, address)
    try:
        async with asyncio.timeout(address.connect_timeout_ms / 1_000):
            await _greet(link, address, is_sentinel=is_sentinel)
    except TimeoutError as error:
        link.close()
        raise LinkLost(f"{host}:{port} does not answer", was_sent=False) from error
    except BaseException:
        link.close()
        raise
    return link


async def dial(host: str, port: int, address: Address) -> Link:
    """A link to this server, on which nothing was said yet. Raises `LinkLost` where it is away, `ssl.SSLError`."""
    loop = asyncio.get_running_loop()
    name = (address.server_name or host) if address.tls is not None else None
    try:
        async with asyncio.timeout(address.connect_timeout_ms / 1_000):
            _, link = await loop.create_connection(
                lambda: Link(answer_timeout_ms=address.answer_timeout_ms),
                host,
                port,
                ssl=address.tls,
                server_hostname=name,
            )
    except TimeoutError as error:
        raise LinkLost(f"{host}:{port} does not answer", was_sent=False) from error
    except ssl.SSLError:
        raise
    except (OSError, UnicodeError) as error:
        # UnicodeError: no name of a host can be so.
        raise LinkLost(f"{host}:{port}: {getattr(error, 'strerror', None) or error}", was_sent=False) from error
    link.where = f"{host}:{port}"
    return link


async def _greet(link: Link, address: Address, *, is_sentinel: bool) -> None:
    for command in greeting(address, is_sentinel=is_sentinel):
        reply = (await link.send([command]))[0]
        # A server without a free connection says so instead of the first answer, and closes.
        if isinstance(reply, Exception) and (command[0] in ("AUTH", "SELECT") or Refusal(str(reply)).code == FULL_UP):
            check(reply)
    if is_sentinel:
        return
    reply = (await link.send([("INFO",)]))[0]
    if isinstance(reply, Exception):
        if Refusal(str(reply)).code != "NOPERM":
            check(reply)
        return
    link.info = read_info(reply)
    if link.info.get("loading", "0") != "0":
        raise LinkLost(f"{link.where} is starting and reads its data", was_sent=False)
    if link.info.get("role") == "slave":
        raise LinkLost(f"{link.where} is a replica and takes no writes", was_sent=False)


def greeting(address: Address, *, is_sentinel: bool = False) -> list[Command]:
    """What is said first on every connection."""
    commands: list[Command] = []
    password = address.sentinel_password if is_sentinel else address.password
    if password is not None:
        user = () if address.user is None or is_sentinel else (address.user,)
        commands.append(("AUTH", *user, password))
    if address.database and not is_sentinel:
        commands.append(("SELECT", address.database))
    commands.append(("CLIENT", "SETNAME", "redrive"))
    return commands


def read_info(reply: bytes) -> dict[str, str]:
    """The lines of INFO."""
    text = reply[:MAX_ALLOWED_INFO_BYTES].decode("utf-8", "replace")
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}
