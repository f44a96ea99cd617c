"""A Redis server of one's own: started in a moment, killed and started again at will, nothing of it left behind.

    from redrive.testing.servers.redis import RedisNode
    from redrive.testing.servers.redis_install import installed_redis

    with RedisNode(installed_redis()[0]) as node:
        ...                 # node.url is a redis:// URL of an empty server
        node.kill()         # kill -9; the data stay
        node.start()        # on the same data and the same port

It keeps an append-only file, written to disk every second as a careful production does; `appendfsync="always"` for
counts that allow no second. The server ends with its owner (`guard.py`), even where the owner is killed.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import hiredis

from redrive.testing.servers.lifecycle import Lifecycle
from redrive.testing.servers.processes import LOOPBACK, GuardedProcess, ServerFailed, free_ports
from redrive.testing.servers.redis_install import RedisInstall

_START_S: Final = 60.0
_POLL_S: Final = 0.02
_TIMEOUT_S: Final = 30.0
_LOOK_S: Final = 2.0
"""While it starts: whoever else may have its port need not answer at all."""

SETTINGS: Final = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "aof-use-rdb-preamble": "yes",
    "maxmemory-policy": "noeviction",
    "save": '""',
    "databases": "64",
}
"""What every node is started with, unless told otherwise."""


class RedisNode(Lifecycle):
    """One server. `settings`: lines of its configuration, over `SETTINGS`. `owner`: see `GuardedProcess`.

    A node of a cluster (`cluster-enabled`) talks to the others on `bus_port`: `CLUSTER MEET host port bus_port`.
    """

    host: Final = LOOPBACK

    def __init__(
        self, install: RedisInstall, *, settings: Mapping[str, str] | None = None, owner: int | None = None
    ) -> None:
        self.install = install
        self.port = self.bus_port = 0
        self._owner = owner
        self._settings = {**SETTINGS, **(settings or {})}
        base = None if install.root is None else install.root / "var" / "tmp"
        self._folder = Path(tempfile.mkdtemp(prefix="redrive-redis-", dir=base))

    @property
    def version(self) -> str:
        return self.install.version

    @property
    def folder(self) -> Path:
        """Where its data lie."""
        return self._folder

    @property
    def url(self) -> str:
        """`redis://` URL of its first database."""
        return f"redis://{self.host}:{self.port}/0"

    def url_by(self, host: str, port: int) -> str:
        """The URL for who connects through a proxy."""
        return f"redis://{host}:{port}/0"

    def ask(self, *command: str | bytes | float) -> Any:
        """One command, as `redis-cli` would send it; raises `ServerFailed` with an error's words."""
        return ask(self.host, self.port, *command)

    def _take_ports(self) -> None:
        self.port, self.bus_port = free_ports(2)

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        inside = str(self._folder) if self.install.root is None else f"/var/tmp/{self._folder.name}"  # noqa: S108
        lines = {"port": str(self.port), "bind": LOOPBACK, "dir": inside, "daemonize": "no", **self._settings}
        if "cluster-enabled" in lines:
            # Its habit is the port 10 000 higher, where clients get theirs from.
            lines["cluster-port"] = str(self.bus_port)
        text = "".join(f"{name} {value}\n" for name, value in lines.items())
        (self._folder / "redis.conf").write_text(text, "utf-8")
        chroot = ["chroot", str(self.install.root)] if self.install.root else []
        command = [*chroot, str(self.install.program), f"{inside}/redis.conf"]
        self._server = GuardedProcess(command, log=self._folder / "log", owner=self._owner, folder=self._folder)
        self._wait_until_it_answers(self._server)

    def _wait_until_it_answers(self, server: GuardedProcess) -> None:
        deadline = time.monotonic() + _START_S
        while not self._answers(server.pid):
            if not server.is_running:
                raise ServerFailed(f"{self.install} ended while it was starting.\n{server.log_tail()}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.install} did not answer within {_START_S:g} s.\n{server.log_tail()}")
            time.sleep(_POLL_S)  # sleep: another process sets no event of ours

    def _answers(self, pid: int) -> bool:
        """Whether this very process does: somebody else's server may have the port."""
        try:
            pong = ask(self.host, self.port, "PING", timeout_s=_LOOK_S)
            about = ask(self.host, self.port, "INFO", "server", timeout_s=_LOOK_S)
            return bool(pong == b"PONG") and f"process_id:{pid}\r".encode() in about
        except OSError:
            return False
        except ServerFailed as error:
            # It wants a password, or an answer from its data that it is still reading.
            return "NOAUTH" in str(error)


def ask(host: str, port: int, *command: str | bytes | float, timeout_s: float = _TIMEOUT_S) -> Any:
    """One command to any server on a connection of its own; raises `ServerFailed` with an error's words, `OSError`."""
    with socket.create_connection((host, port), timeout=timeout_s) as connection:
        connection.sendall(hiredis.pack_command(command))  # type: ignore[arg-type]
        reader = hiredis.Reader()
        while (reply := reader.gets()) is False:
            data = connection.recv(65_536)
            if not data:
                raise ServerFailed(f"{host}:{port} closed the connection")
            reader.feed(data)
    if isinstance(reply, Exception):
        raise ServerFailed(f"{command[0]!r}: {reply}")
    return reply
