"""The fault proxy: forwards faithfully, and breaks a connection in each way it promises."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import time
import warnings
from collections.abc import Iterator

import pytest

from redrive.testing.servers.proxy import FaultProxy, Way

SOON_S = 0.3
"""How long silence has to last to count as silence."""
PATIENCE_S = 30.0
CUTS = 100


class Echo:
    """A server that sends back what it gets, and "bye" when the client has ended."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.received = b""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        serving = []
        while True:
            connection, _ = self._listener.accept()
            if self._ended.is_set():
                connection.close()
                break
            serving.append(threading.Thread(target=self._echo, args=(connection,)))
            serving[-1].start()
        for thread in serving:
            thread.join()

    def _echo(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(ConnectionError):
            while data := connection.recv(65_536):
                self.received += data
                connection.sendall(data)
            connection.sendall(b"bye")

    def close(self) -> None:
        self._ended.set()
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join()
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", echo.port) as made:
        yield made


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[socket.socket]:
    """A connection that has proved to work."""
    with connected(proxy) as made:
        assert b"hello" == said(made, b"hello")
        yield made


def connected(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=30)


def said(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    return heard(client, len(data))


def heard(client: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (data := client.recv(size - len(found))):
        found += data
    return found


def read_all(client: socket.socket) -> None:
    while client.recv(65_536):
        pass


def is_silent(client: socket.socket) -> bool:
    client.settimeout(SOON_S)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(30)
    return False


def test_without_a_fault_it_forwards_every_byte_in_order(client: socket.socket) -> None:
    data = bytes(range(256)) * 4_000
    sending = threading.Thread(target=client.sendall, args=(data,))
    sending.start()

    found = heard(client, len(data))

    sending.join()
    assert data == found


def test_drop_resets_every_connection_and_lets_new_ones_in(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.drop()

    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert 0 == proxy.connections
    with connected(proxy) as another:
        assert b"again" == said(another, b"again")


def test_hang_up_ends_every_connection_politely(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.hang_up()

    assert b"" == client.recv(1)


def test_refused_connections_work_again_after_heal(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.refuse()

    with pytest.raises(ConnectionRefusedError):
        connected(proxy)
    assert b"still" == said(client, b"still")

    proxy.heal()
    with connected(proxy) as another:
        assert b"again" == said(another, b"again")


def test_a_stall_holds_what_is_sent_until_it_heals(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.stall()
    client.sendall(b"held")
    assert is_silent(client)

    proxy.heal()

    assert b"held" == heard(client, 4)


def test_a_stall_of_one_way_lets_the_other_pass(proxy: FaultProxy, client: socket.socket, echo: Echo) -> None:
    proxy.stall(Way.TO_CLIENT)
    client.sendall(b"there")

    assert is_silent(client)
    assert b"hellothere" == echo.received


def test_a_cut_comes_after_exactly_so_many_bytes(proxy: FaultProxy, client: socket.socket, echo: Echo) -> None:
    proxy.cut_after(3)

    client.sendall(b"abcdef")

    with pytest.raises(ConnectionResetError):
        heard(client, 6)
    assert echo.received in {b"hello", b"helloabc"}
    with connected(proxy) as another:
        assert b"abcdef" == said(another, b"abcdef")


def test_a_half_closed_connection_ends_one_way_and_goes_on_the_other(
    proxy: FaultProxy, client: socket.socket, echo: Echo
) -> None:
    proxy.half_close(Way.TO_CLIENT)
    assert b"" == client.recv(1)

    client.sendall(b"!")
    client.shutdown(socket.SHUT_WR)

    while proxy.connections:
        time.sleep(0.01)  # sleep: the proxy's own thread sets no event of ours
    assert b"hello!" == echo.received


def test_delayed_bytes_come_late_and_whole(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.delay(SOON_S)
    began = time.monotonic()

    assert b"late" == said(client, b"late")

    # once on the way there, once on the way back
    assert time.monotonic() - began >= 2 * SOON_S


def test_a_server_that_is_away_is_a_reset_for_the_client(proxy: FaultProxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with FaultProxy("127.0.0.1", port) as lonely, pytest.raises(ConnectionResetError), connected(lonely) as client:
        client.recv(1)


def test_who_came_while_the_server_did_not_answer_is_reset_with_the_proxy() -> None:
    with unanswering() as port:
        proxy = FaultProxy("127.0.0.1", port)
        with proxy, socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S) as client:
            client.sendall(b"hello")
            deadline = time.monotonic() + PATIENCE_S
            while not proxy._opened:
                assert time.monotonic() < deadline
                time.sleep(0.01)  # sleep: the proxy's thread sets no event of ours
            proxy.close()
            with pytest.raises(ConnectionResetError):
                client.recv(1)


def test_who_does_not_read_is_reset_with_the_proxy_though_it_was_hung_up_on(echo: Echo) -> None:
    proxy = FaultProxy("127.0.0.1", echo.port)
    with proxy, connected(proxy) as client:
        client.settimeout(SOON_S)
        with contextlib.suppress(TimeoutError):
            while True:
                client.sendall(bytes(65_536))
        proxy.hang_up()
        proxy.close()
        client.settimeout(PATIENCE_S)
        with pytest.raises(ConnectionResetError):
            read_all(client)


def test_those_who_come_while_all_are_cut_do_not_hold_it_up(echo: Echo) -> None:
    with FaultProxy("127.0.0.1", echo.port) as proxy, contextlib.ExitStack() as clients:
        is_over = threading.Event()

        def come() -> None:
            while not is_over.is_set():
                with contextlib.suppress(OSError):
                    clients.enter_context(socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S))

        def cut() -> None:
            for _ in range(CUTS):
                proxy.drop()
            is_over.set()

        coming, cutting = threading.Thread(target=come), threading.Thread(target=cut, daemon=True)
        coming.start()
        cutting.start()
        cutting.join(PATIENCE_S)
        is_done = is_over.is_set()
        is_over.set()
        coming.join()
        assert is_done


def test_who_comes_while_it_stops_to_listen_is_not_left_open(proxy: FaultProxy) -> None:
    is_over = threading.Event()

    def come() -> None:
        while not is_over.is_set():
            with contextlib.suppress(OSError):
                connected(proxy).close()

    coming = threading.Thread(target=come)
    with warnings.catch_warnings(record=True) as left_open:
        warnings.simplefilter("always", ResourceWarning)
        coming.start()
        for _ in range(CUTS):
            proxy.refuse()
            proxy.heal()
        is_over.set()
        coming.join()
        proxy.close()
        gc.collect()

    assert [] == left_open


@contextlib.contextmanager
def unanswering() -> Iterator[int]:
    """The port of a server that takes no more connections: whoever tries waits."""
    with socket.socket() as listener, contextlib.ExitStack() as fillers:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        place = listener.getsockname()
        with contextlib.suppress(BlockingIOError, TimeoutError):
            while True:
                fillers.enter_context(socket.create_connection(place, timeout=SOON_S))
        yield place[1]
