"""BlockingLink: one connection for threads: leases are renewed while the event loop may hang.

One thread at a time uses it. Connects when it is first needed, and again after every failure: the next call tries.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from typing import Any, Final

import hiredis

from redrive.redis.address import Address
from redrive.redis.failures import Kind, LinkLost, Refusal, node_in, refused, unavailable
from redrive.redis.link import Argument, Command, greeting
from redrive.redis.scripts import Script

_CHUNK: Final = 65_536
_TRIES: Final = 5
"""What one call may meet in a row: a connection that was closed, a node that is away, a node that names another one,
which does not know the script, and the reply.
"""


class BlockingLink:
    """Commands from any thread, one at a time. Raises `RedriveError`."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._reader = hiredis.Reader()
        self._node: tuple[str, int] | None = None
        """The node of a cluster that had the keys last; the address's hosts know who has them now."""
        self._asked = ""

    def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """The script's reply. Sent again after a lost connection: only for scripts that may be run twice."""
        with self._lock:
            return self._run((len(keys), *keys, *args), script)

    def close(self) -> None:
        """Disconnect. May be called twice; a later call connects again."""
        with self._lock:
            self._drop()

    def _run(self, command: Command, script: Script) -> Any:
        for last in range(1, _TRIES + 1):
            try:
                reply = self._ask(("EVALSHA", script.sha, *command))
                if not isinstance(reply, Exception):
                    return reply
                refusal = Refusal(str(reply))
                if last == _TRIES or not self._can_go_on(refusal, script):
                    raise refused(self._address.where, refusal)
            except (OSError, LinkLost, hiredis.HiredisError) as error:
                self._drop()
                # A connection that was closed is made anew at once; one that hangs has cost enough time.
                if last == _TRIES or isinstance(error, TimeoutError):
                    text = "it does not answer" if isinstance(error, TimeoutError) else str(error)
                    raise unavailable(self._address.where, text) from error
        raise AssertionError("the last try returns or raises")

    def _can_go_on(self, refusal: Refusal, script: Script) -> bool:
        if refusal.kind is Kind.UNKNOWN_SCRIPT:
            loaded = self._ask(("SCRIPT", "LOAD", script.text))
            if not isinstance(loaded, Exception):
                return True
            return Refusal(str(loaded)).kind is Kind.TRANSIENT or script.without_flags()
        if refusal.kind is Kind.MOVED:
            self._node = node_in(refusal, asked=self._asked)
            self._drop()
            return True
        if refusal.code == "READONLY":
            self._drop()
            return True
        return False

    def _ask(self, command: Command) -> Any:
        if self._socket is None:
            self._socket = self._connect()
        self._socket.sendall(hiredis.pack_command(tuple(command)))  # type: ignore[arg-type]
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(_CHUNK)
            if not data:
                raise LinkLost("the connection was closed")
            self._reader.feed(data)
        return reply

    def _connect(self) -> socket.socket:
        failed: Exception = LinkLost("no host is known")
        for host, port in self._hosts():
            try:
                self._open(host, port, is_sentinel=False)
                info = self._ask(("INFO", "replication"))
            except (OSError, LinkLost) as error:
                self._drop()
                failed = error
                continue
            if self._socket is not None and not (isinstance(info, bytes) and b"role:slave" in info):
                return self._socket
            self._drop()
            failed = LinkLost(f"{host}:{port} is a replica")
        # A node that is away may have handed on its keys.
        self._node = None
        raise failed

    def _hosts(self) -> Sequence[tuple[str, int]]:
        if self._node is not None:
            return (self._node,)
        if self._address.sentinel is None:
            return self._address.hosts
        for host, port in self._address.hosts:
            with contextlib.suppress(OSError, LinkLost):
                self._open(host, port, is_sentinel=True)
                found = self._ask(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._address.sentinel))
                self._drop()
                if isinstance(found, list):
                    return ((found[0].decode(), int(found[1])),)
            self._drop()
        return ()

    def _open(self, host: str, port: int, *, is_sentinel: bool) -> None:
        address = self._address
        plain = socket.create_connection((host, port), timeout=address.connect_timeout_ms / 1_000)
        if address.tls is not None:
            plain = address.tls.wrap_socket(plain, server_hostname=address.server_name or host)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.settimeout(address.answer_timeout_ms / 1_000)
        self._socket = plain
        self._asked = host
        self._reader = hiredis.Reader()
        for command in greeting(address, is_sentinel=is_sentinel):
            reply = self._ask(command)
            if isinstance(reply, Exception) and command[0] in ("AUTH", "SELECT"):
                self._drop()
                raise refused(address.where, Refusal(str(reply)))

    def _drop(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
        self._socket = None
