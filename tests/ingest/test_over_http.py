"""The gateway behind a real server on a real socket: what arrives is not always what an ASGI test would send."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn

from redrive import Redrive
from redrive.ingest import Gateway, Source
from tests.ingest.client import SECRET, signed

BODY = b'{"n":1}'
WAIT_S = 60.0


class Served:
    """A gateway served by uvicorn in a thread."""

    def __init__(self, *, body_timeout: str) -> None:
        self.app = Redrive("served", broker="memory://")
        gateway = Gateway(
            self.app,
            "hooks",
            sources={"courier-x": Source(secrets=[SECRET])},
            max_body_bytes=100_000,
            body_timeout=body_timeout,
            tolerance="3650d",
        )
        config = uvicorn.Config(gateway, port=0, log_level="critical", lifespan="on", timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)
        self.started = threading.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        serving = asyncio.create_task(self.server.serve())
        while not self.server.started:
            await asyncio.sleep(0.01)  # sleep: until it is looked at again
        self.port = self.server.servers[0].sockets[0].getsockname()[1]
        self.started.set()
        await serving


@contextmanager
def serving(*, body_timeout: str) -> Iterator[Served]:
    served = Served(body_timeout=body_timeout)
    served.thread.start()
    assert served.started.wait(WAIT_S)
    yield served
    served.server.should_exit = True
    served.thread.join(WAIT_S)
    assert not served.thread.is_alive()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(body_timeout="10m") as served:
        yield served


@pytest.fixture
def hasty() -> Iterator[Served]:
    """One that waits for a body as little as a busy machine makes anyone wait."""
    with serving(body_timeout="300ms") as served:
        yield served


def head(*lines: bytes, host: bytes = b"gateway") -> bytes:
    return b"\r\n".join([b"POST /courier-x HTTP/1.1", b"Host: " + host, *lines, b"", b""])


def signature_lines(body: bytes) -> list[bytes]:
    return [name + b": " + value for name, value in signed(body)]


async def exchange(served: Served, sent: bytes, *, then_close: bool = False) -> bytes:
    """Send bytes as they are; all that comes back until the server closes or has answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        writer.write(sent)
        await writer.drain()
        if then_close:
            return b""
        async with asyncio.timeout(WAIT_S):
            return await reader.readuntil(b"}")
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_a_chunked_body_is_one_body(served: Served) -> None:
    chunked = b"3\r\n" + BODY[:3] + b"\r\n4\r\n" + BODY[3:] + b"\r\n0\r\n\r\n"

    answer = await exchange(served, head(b"Transfer-Encoding: chunked", *signature_lines(BODY)) + chunked)

    assert 202 == status_of(answer)


async def test_a_declared_length_over_the_limit_is_answered_before_the_body_is_sent(served: Served) -> None:
    answer = await exchange(served, head(b"Content-Length: 100000000", b"Expect: 100-continue"))

    assert 413 == status_of(answer)
    assert b"100 Continue" not in answer


async def test_a_stream_without_end_is_cut_at_the_limit(served: Served) -> None:
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"

    answer = await exchange(served, head(b"Transfer-Encoding: chunked") + chunk * 3)

    assert 413 == status_of(answer)


async def test_a_body_that_stops_in_the_middle_is_408(hasty: Served) -> None:
    answer = await exchange(hasty, head(b"Content-Length: 10") + b"12345")

    assert 408 == status_of(answer)


@pytest.mark.parametrize("size", [5_000, 1_000_000])
async def test_wh04_a_signature_header_of_any_size_is_refused_and_nothing_breaks(served: Served, size: int) -> None:
    sent = head(b"X-Signature-Timestamp: 1700000000", b"X-Signature: " + b"a" * size, b"Content-Length: 0")

    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(sent)
    async with asyncio.timeout(WAIT_S):
        answer = await reader.read(200)
    writer.close()

    assert status_of(answer) in {400, 401, 413, 431}
    assert b"Traceback" not in answer


async def test_clients_that_leave_in_the_middle_leave_nothing_behind(served: Served) -> None:
    for _ in range(20):
        await exchange(served, head(b"Content-Length: 50") + b"half", then_close=True)

    answer = await exchange(served, head(*signature_lines(BODY), b"Content-Length: 7") + BODY)

    assert 202 == status_of(answer)


async def test_many_at_once_are_all_answered(served: Served) -> None:
    bodies = [b'{"n":%d}' % number for number in range(100, 200)]

    answers = await asyncio.gather(
        *(exchange(served, head(*signature_lines(body), b"Content-Length: %d" % len(body)) + body) for body in bodies)
    )

    assert {202} == {status_of(answer) for answer in answers}
