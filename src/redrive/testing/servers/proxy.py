"""A TCP proxy that breaks connections on demand: between a client and a real server, for tests of what comes then.

    with FaultProxy("127.0.0.1", node.amqp_port) as proxy:
        url = vhost.url_by("127.0.0.1", proxy.port)
        ...
        proxy.drop()        # every connection is reset, now
        proxy.refuse()      # and nobody gets a new one
        proxy.heal()        # the network is well again

It lives in a thread with a loop of its own, so that it can be told from a test function, from a coroutine and from a
signal handler alike; every call has taken effect when it returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from enum import Enum
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from redrive.testing.servers.lifecycle import TRIES
from redrive.testing.servers.processes import LOOPBACK, free_ports

_CHUNK: Final = 65_536
_CONNECT_S: Final = 10.0

T = TypeVar("T")


class Way(Enum):
    """The direction bytes travel in."""

    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"


_BOTH: Final = frozenset(Way)


class FaultProxy:
    """Forwards `port` to a server's. Without a fault it is a plain forwarder; faults last until `heal`.

    What was forwarded stays forwarded: a drop loses what is on its way inside the proxy and in the kernels' buffers,
    as a cut cable does.
    """

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self._target = (host, port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._listener: asyncio.Server | None = None
        self._opened: list[asyncio.StreamWriter] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._links: set[_Link] = set()
        self._faults = _Faults()

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen_first)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def connections(self) -> int:
        """How many clients are connected at the moment."""
        return len(self._links)

    def drop(self) -> None:
        """Reset (RST) every connection now, on both sides. New ones are welcome."""
        self._do(self._close_links, "reset")

    def hang_up(self) -> None:
        """Close every connection now in the polite way (FIN on both sides). New ones are welcome."""
        self._do(self._close_links, "close")

    def refuse(self) -> None:
        """New connections are refused by the kernel, as where no server runs; open ones stay."""
        self._do(self._stop_listening)

    def delay(self, seconds: float) -> None:
        """Each portion of bytes waits so long before it goes on, in both directions."""
        self._set(delay_s=seconds)

    def stall(self, *ways: Way) -> None:
        """Nothing more passes (in these directions; none named: in both); connections stay open and look alive.

        What is sent meanwhile is held, and passes after `heal`.
        """
        self._set(stalled=frozenset(ways) or _BOTH)

    def cut_after(self, byte_count: int, way: Way = Way.TO_SERVER) -> None:
        """Reset the connection that is the one to exceed so many more bytes in this direction: once, mid-frame."""
        self._set(cut=way, cut_after=byte_count)

    def half_close(self, way: Way = Way.TO_CLIENT) -> None:
        """End every open connection in one direction (FIN); the other goes on. What comes this way is thrown away."""
        self._do(self._half_close, way)

    def heal(self) -> None:
        """No fault any more: listens again, forwards what was held. What was cut stays cut."""
        self._do(self._heal)

    def close(self) -> None:
        """Reset everything, listen no more, end the thread."""
        if not self._thread.is_alive():
            return
        self._do(self._stop_listening)
        self._do(self._close_links, "reset")
        self._do(self._end_tasks)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, what: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        asyncio.run_coroutine_threadsafe(what(*arguments), self._loop).result()

    def _set(self, **faults: object) -> None:
        async def change() -> None:
            for name, value in faults.items():
                setattr(self._faults, name, value)
            self._faults.changed()

        self._do(change)

    async def _listen_first(self) -> None:
        for last in range(1, TRIES + 1):
            (self.port,) = free_ports(1)
            try:
                await self._listen()
            except OSError:
                # Somebody else's program may have taken it in the meantime: another port, another try.
                if last == TRIES:
                    raise
            else:
                return

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accept, LOOPBACK, self.port, limit=_CHUNK)

    async def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is None:
            return
        for each in listener.sockets:
            self._loop.remove_reader(each.fileno())
        # Who is being accepted right now comes to a closed server otherwise, and is left open (CPython 3.11).
        for _ in range(3):
            await asyncio.sleep(0)
        listener.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Remembered until the end: a task that is cancelled before its first step closes nothing, and a polite close
        # waits for a client that does not read.
        self._opened.append(writer)
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server = await asyncio.wait_for(asyncio.open_connection(*self._target, limit=_CHUNK), _CONNECT_S)
        except (OSError, TimeoutError):
            _reset(writer)
            return
        self._opened.append(server[1])
        link = _Link(client=(reader, writer), server=server, faults=self._faults)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)

    async def _close_links(self, how: str) -> None:
        links = set(self._links)
        for link in links:
            link.end(how)
        # Not for those that come meanwhile: whose client is it that waits here, they would never end.
        while links & self._links:  # noqa: ASYNC110 - the links end within a few turns of the loop
            await asyncio.sleep(0)

    async def _half_close(self, way: Way) -> None:
        for link in list(self._links):
            link.half_close(way)

    async def _heal(self) -> None:
        self._faults.heal()
        await self._listen()

    async def _end_tasks(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for writer in self._opened:
            _reset(writer)
        # An aborted transport closes its socket in the next turn of the loop.
        await asyncio.sleep(0)


class _Faults:
    """What is wrong with the network at the moment, shared by all links."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.stalled: frozenset[Way] = frozenset()
        self.cut: Way | None = None
        self.cut_after = 0
        self._flowing = asyncio.Event()
        self._flowing.set()

    def changed(self) -> None:
        """Wakes who waits for the end of a stall, or makes them wait."""
        (self._flowing.clear if self.stalled else self._flowing.set)()

    def heal(self) -> None:
        self.delay_s, self.stalled, self.cut, self.cut_after = 0.0, frozenset(), None, 0
        self.changed()

    async def pass_through(self, way: Way) -> None:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)  # sleep: the delay is the fault
        while way in self.stalled:
            await self._flowing.wait()

    def take(self, way: Way, data: bytes) -> tuple[bytes, bool]:
        """What of the bytes may still pass, and whether the connection is cut behind them."""
        if self.cut is not way:
            return data, False
        allowed = data[: self.cut_after]
        self.cut_after -= len(data)
        if self.cut_after > 0:
            return data, False
        self.cut = None
        return allowed, True


_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One client's connection and the server's that belongs to it."""

    def __init__(self, *, client: _Stream, server: _Stream, faults: _Faults) -> None:
        self._readers = {Way.TO_SERVER: client[0], Way.TO_CLIENT: server[0]}
        self._writers = {Way.TO_SERVER: server[1], Way.TO_CLIENT: client[1]}
        self._faults = faults
        self._half_closed: set[Way] = set()
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Pump both ways until both have ended, or the link is told to."""

        async def pump_both_ways() -> None:
            async with asyncio.TaskGroup() as pumps:
                for way in Way:
                    pumps.create_task(self._pump(way))

        pumping = asyncio.create_task(pump_both_ways())
        ended = asyncio.create_task(self._ended.wait())
        await asyncio.wait([pumping, ended], return_when=asyncio.FIRST_COMPLETED)
        for task in (pumping, ended):
            task.cancel()
        await asyncio.gather(pumping, ended, return_exceptions=True)
        for writer in self._writers.values():
            writer.close()

    def end(self, how: str) -> None:
        """`reset` (RST) or `close` (FIN) on both sides."""
        for writer in self._writers.values():
            (_reset if how == "reset" else asyncio.StreamWriter.close)(writer)
        self._ended.set()

    def half_close(self, way: Way) -> None:
        self._half_closed.add(way)
        _send_end(self._writers[way])

    async def _pump(self, way: Way) -> None:
        reader, writer = self._readers[way], self._writers[way]
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                await self._faults.pass_through(way)
                allowed, is_cut = self._faults.take(way, data)
                if way not in self._half_closed:
                    writer.write(allowed)
                    await writer.drain()
                if is_cut:
                    self.end("reset")
                    return
            if way not in self._half_closed:
                _send_end(writer)
            return
        self.end("reset")


def _send_end(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of FIN: linger for no time at all."""
    raw = writer.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
