"""A RabbitMQ node of one's own: started in seconds, killed and started again at will, nothing of it left behind.

Everything lies in one temporary folder (data, log, cookie, plugins, settings) and listens on free loopback ports (AMQP,
management, Erlang distribution, its own epmd), so that any number of nodes and a machine's own RabbitMQ stand side by
side. The node ends with its owner (`guard.py`), even where the owner is killed.

Tests share a node and get a virtual host each (30 ms, against seconds for a node). What stops, kills or floods a node
starts its own.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

from redrive.testing.servers.lifecycle import Lifecycle
from redrive.testing.servers.processes import LOOPBACK, GuardedProcess, ServerFailed, free_ports
from redrive.testing.servers.rabbitmq_install import Install

_USER: Final = "redrive"
_START_S: Final = 120.0
_POLL_S: Final = 0.05

_SETTINGS: Final = {
    # A machine in a container, and a chroot without /proc, tell Erlang nothing about memory.
    "total_memory_available_override_value": "4GB",
    "vm_memory_calculation_strategy": "allocated",
    "disk_free_limit.absolute": "50MB",
    "log.file.level": "info",
    "loopback_users": "none",
}

# Spinning while there is nothing to do takes from the tests what they need: the processors.
_ERLANG: Final = "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"

_CTL_PORTS: Final = range(19_000, 20_000)
"""`rabbitmqctl` listens too, by habit on one of eleven ports where clients get theirs from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vhost:
    """An empty virtual host, and a user (administrator) who may do everything in it."""

    name: str
    user: str
    password: str = field(repr=False)
    host: str
    amqp_port: int
    management_port: int

    @property
    def url(self) -> str:
        """The `amqp://` URL, credentials included."""
        return self.url_by(self.host, self.amqp_port)

    def url_by(self, host: str, port: int) -> str:
        """The same through another address: a proxy's."""
        return f"amqp://{self.user}:{self.password}@{host}:{port}/{quote(self.name, safe='')}"

    @property
    def management_url(self) -> str:
        """The URL of the management plugin's HTTP API, credentials included, without a path."""
        return f"http://{self.user}:{self.password}@{self.host}:{self.management_port}"


class RabbitServer:
    """A RabbitMQ that answers: somebody else's, or a `RabbitNode`. Hands out virtual hosts."""

    def __init__(self, *, host: str, amqp_port: int, management_port: int, user: str, password: str) -> None:
        self.host = host
        self.amqp_port = amqp_port
        self.management_port = management_port
        self.user = user
        self.password = password

    @classmethod
    def at(cls, url: str) -> RabbitServer:
        """The server at an `amqp://` URL whose user is an administrator; its management plugin listens 10 000 ports
        higher (5672 and 15672), which is RabbitMQ's own habit.
        """
        parts = urlsplit(url)
        port = parts.port or 5672
        user, password = (unquote(text or "guest") for text in (parts.username, parts.password))
        host = parts.hostname or "localhost"
        return cls(host=host, amqp_port=port, management_port=port + 10_000, user=user, password=password)

    @property
    def version(self) -> str:
        """As the server says, `3.10.8`."""
        return str(self.api("GET", "/api/overview")["rabbitmq_version"])

    @contextlib.contextmanager
    def vhost(self) -> Iterator[Vhost]:
        """A virtual host of its own for the length of the block, deleted with all that is in it at the end."""
        name = f"t-{secrets.token_hex(6)}"
        vhost = Vhost(
            name=name,
            user=name,
            password=secrets.token_hex(8),
            host=self.host,
            amqp_port=self.amqp_port,
            management_port=self.management_port,
        )
        self.api("PUT", f"/api/vhosts/{name}", {})
        self.api("PUT", f"/api/users/{name}", {"password": vhost.password, "tags": "administrator"})
        self.api("PUT", f"/api/permissions/{name}/{name}", {"configure": ".*", "write": ".*", "read": ".*"})
        try:
            yield vhost
        finally:
            with contextlib.suppress(OSError, ServerFailed):
                self.api("DELETE", f"/api/vhosts/{name}")
                self.api("DELETE", f"/api/users/{name}")

    def api(self, method: str, path: str, body: object = None) -> Any:
        """One request to the management plugin as its administrator; the JSON of the answer, `None` where it is empty.

        Raises `ServerFailed` with the server's own words for every refusal, `OSError` where it does not answer.
        """
        request = Request(
            f"http://{self.host}:{self.management_port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
        )
        login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        request.add_header("Authorization", f"Basic {login}")
        request.add_header("Content-Type", "application/json")
        try:
            with urlopen(request, timeout=60) as answer:  # noqa: S310
                text = answer.read()
        except HTTPError as error:
            with error:
                said = error.read().decode(errors="replace")
            raise ServerFailed(f"{method} {path} was answered {error.code}: {said}") from None
        return json.loads(text) if text else None


class RabbitNode(Lifecycle, RabbitServer):
    """A private node. A clean `stop` is what `systemctl stop` does; clients see their connections closed with 320.

    After `kill` (kill -9) the next `start` recovers what RabbitMQ recovers after a power cut of its process; files are
    whole, for the machine lives on. All calls block: from a coroutine, `await asyncio.to_thread(node.restart)`.
    """

    def __init__(
        self,
        install: Install,
        *,
        owner: int | None = None,
        settings: Mapping[str, str] | None = None,
        plugins: Sequence[str] = ("rabbitmq_management",),
    ) -> None:
        """Nothing runs before `start`. The node ends with the process `owner` (an id; `None`: this process).

        `settings` are further lines of `rabbitmq.conf`, `{"consumer_timeout": "5000"}`.
        """
        super().__init__(host=LOOPBACK, amqp_port=0, management_port=0, user=_USER, password=secrets.token_hex(8))
        self.install = install
        self._owner = os.getpid() if owner is None else owner
        self._settings = dict(settings or {})
        self._plugins = tuple(plugins)
        self._files = _Files.made_for(install)
        self._dist_port = self._epmd_port = 0
        self._epmd: GuardedProcess | None = None

    @property
    def version(self) -> str:
        return self.install.version

    @property
    def log(self) -> str:
        """What the node has logged so far, over all its starts."""
        folder = self._files.outside / "log"
        return "\n".join(path.read_text("utf-8", errors="replace") for path in sorted(folder.glob("*.log")))

    def ctl(self, *arguments: str, timeout_s: float = 120.0) -> str:
        """`rabbitmqctl` of this node's own version; what it printed. Takes some seconds: prefer `api` where it can.

        Raises `ServerFailed` with its output where it fails.
        """
        command = self._command(str(self.install.programs / "rabbitmqctl"), "--quiet", *arguments)
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, check=False, timeout=timeout_s
        )
        if done.returncode != 0:
            raise ServerFailed(f"rabbitmqctl {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def import_definitions(self, definitions: str, *, vhost: str | None = None) -> None:
        """What `rabbitmqctl import_definitions` does with the text of a definitions file.

        `vhost`: into that virtual host, for definitions that name none (through the HTTP API, which offers this).
        """
        if vhost is not None:
            self.api("POST", f"/api/definitions/{quote(vhost, safe='')}", json.loads(definitions))
            return
        (self._files.outside / "definitions.json").write_text(definitions, "utf-8")
        self.ctl("import_definitions", f"{self._files.inside}/definitions.json")

    def _take_ports(self) -> None:
        self.amqp_port, self.management_port, self._dist_port, self._epmd_port = free_ports(4)

    def _remove(self) -> None:
        self._files.remove()

    def _end_processes(self) -> None:
        self.kill()
        if self._epmd is not None:
            self._epmd.kill()

    def _start(self) -> None:
        self._files.write_settings(
            {
                "listeners.tcp.local": f"{LOOPBACK}:{self.amqp_port}",
                "management.tcp.ip": LOOPBACK,
                "management.tcp.port": str(self.management_port),
                "default_user": self.user,
                "default_pass": self.password,
                **_SETTINGS,
                **self._settings,
            },
            plugins=self._plugins,
        )
        if self._epmd is None or not self._epmd.is_running:
            epmd = self._command("/usr/bin/epmd" if self.install.root else "epmd", "-port", str(self._epmd_port))
            self._epmd = self._guarded(epmd, log="epmd.out", folder=self._files.outside)
            _wait_for_port(self._epmd_port, process=self._epmd)
        server = self._command(str(self.install.programs / "rabbitmq-server"))
        self._server = self._guarded(server, log="server.out", folder=None)
        self._wait_until_it_answers(self._server)

    def _guarded(self, command: list[str], *, log: str, folder: Path | None) -> GuardedProcess:
        return GuardedProcess(command, log=self._files.outside / log, owner=self._owner, folder=folder)

    def _command(self, *command: str) -> list[str]:
        """The command in an environment of its own, so that no `RABBITMQ_*` of the machine reaches the node."""
        inside = self._files.inside
        environment = {
            "PATH": os.environ["PATH"] if self.install.root is None else "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": inside,
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": self._epmd_port,
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_CRASH_DUMP": f"{inside}/erl_crash.dump",
            # An address as its host's name: nothing has to be looked up, on machines without /etc/hosts neither.
            "RABBITMQ_NODENAME": f"redrive-{self._epmd_port}@{LOOPBACK}",
            "RABBITMQ_USE_LONGNAME": "true",
            "RABBITMQ_DIST_PORT": self._dist_port,
            "RABBITMQ_CTL_DIST_PORT_MIN": _CTL_PORTS.start,
            "RABBITMQ_CTL_DIST_PORT_MAX": _CTL_PORTS.stop - 1,
            "RABBITMQ_CONFIG_FILE": f"{inside}/rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": f"{inside}/rabbitmq-env.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{inside}/advanced.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{inside}/enabled_plugins",
            "RABBITMQ_MNESIA_BASE": f"{inside}/data",
            "RABBITMQ_LOG_BASE": f"{inside}/log",
            "RABBITMQ_PID_FILE": f"{inside}/pid",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _ERLANG,
            # Not a shell that waits for the server: the server itself, which then has the process id we know.
            "detached": "true",
        }
        pairs = [f"{name}={value}" for name, value in environment.items()]
        chroot = ["chroot", str(self.install.root)] if self.install.root else []
        return [*chroot, "env", "-i", *pairs, *command]

    def _wait_until_it_answers(self, server: GuardedProcess) -> None:
        deadline = time.monotonic() + _START_S
        while not self._answers():
            if not server.is_running:
                raise ServerFailed(f"{self.install} ended while it was starting.\n{server.log_tail()}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.install} did not answer within {_START_S:g} s.\n{server.log_tail()}")
            time.sleep(_POLL_S)  # sleep: another process sets no event of ours

    def _answers(self) -> bool:
        try:
            self.api("GET", "/api/vhosts")
            with socket.create_connection((LOOPBACK, self.amqp_port), timeout=10) as connection:
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                return connection.recv(1) == b"\x01"
        except (OSError, URLError, ServerFailed):
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """The node's folder: where we see it, and where the node sees it (the same, but for a chroot)."""

    outside: Path
    inside: str

    @classmethod
    def made_for(cls, install: Install) -> _Files:
        if install.root is None:
            folder = Path(tempfile.mkdtemp(prefix="redrive-rabbitmq-"))
            files = cls(outside=folder, inside=str(folder))
        else:
            folder = Path(tempfile.mkdtemp(prefix="redrive-rabbitmq-", dir=install.root / "var" / "tmp"))
            files = cls(outside=folder, inside=f"/var/tmp/{folder.name}")  # noqa: S108 - inside the chroot
        cookie = folder / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16), "ascii")
        cookie.chmod(0o400)
        (folder / "rabbitmq-env.conf").touch()
        return files

    def write_settings(self, settings: Mapping[str, str], *, plugins: Sequence[str]) -> None:
        text = "".join(f"{name} = {value}\n" for name, value in settings.items())
        (self.outside / "rabbitmq.conf").write_text(text, "utf-8")
        (self.outside / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n", "ascii")

    def remove(self) -> None:
        shutil.rmtree(self.outside, ignore_errors=True)


def _wait_for_port(port: int, *, process: GuardedProcess) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=10):
            return
        if not process.is_running or time.monotonic() > deadline:
            raise ServerFailed(f"Nobody listens on port {port}.\n{process.log_tail()}")
        time.sleep(_POLL_S)  # sleep: another process sets no event of ours
