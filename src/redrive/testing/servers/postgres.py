"""A PostgreSQL server of one's own: started in two seconds, killed and started again at will, gone with its owner.

    from redrive.testing.servers.postgres import PostgresNode

    with PostgresNode(install) as node, node.database() as url:
        ...                 # url is a postgresql:// URL of an empty database
        node.kill()         # kill -9; the data stay
        node.start()        # on the same data and the same port

It writes to disk before it answers (fsync), as in production; `settings={"fsync": "off"}` where no test kills it.
PostgreSQL refuses to run as root: there it runs as the user that its package makes, or as nobody.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import psycopg

from redrive.testing.servers.lifecycle import Lifecycle
from redrive.testing.servers.postgres_install import PostgresInstall, other_user
from redrive.testing.servers.processes import LOOPBACK, GuardedProcess, ServerFailed, free_ports

_START_S: Final = 60.0
_POLL_S: Final = 0.05
_ASK_S: Final = 5
USER: Final = "redrive"

SETTINGS: Final = {
    "listen_addresses": f"'{LOOPBACK}'",
    "unix_socket_directories": "''",
    "max_connections": "100",
    "shared_buffers": "128MB",
}
"""What every node is started with, unless told otherwise."""


class PostgresNode(Lifecycle):
    """One server. `settings`: lines of its configuration, over `SETTINGS`. `owner`: see `GuardedProcess`."""

    host: Final = LOOPBACK

    def __init__(
        self, install: PostgresInstall, *, settings: Mapping[str, str] | None = None, owner: int | None = None
    ) -> None:
        self.install = install
        self.port = 0
        self._owner = owner
        self._settings = {**SETTINGS, **(settings or {})}
        self._folder = Path(tempfile.mkdtemp(prefix="redrive-postgres-"))
        self._user = other_user()
        if self._user is not None:
            os.chown(self._folder, self._user.pw_uid, self._user.pw_gid)

    @property
    def url(self) -> str:
        """`postgresql://` URL of its first database; the user is its superuser."""
        return f"postgresql://{USER}@{self.host}:{self.port}/postgres"

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty database, dropped at the end of the block with all that is in it."""
        with database(self.url) as url:
            yield url

    def set(self, name: str, value: str) -> None:
        """Change one setting of the running server."""
        ask(self.url, f"ALTER SYSTEM SET {name} = '{value}'")
        ask(self.url, "SELECT pg_reload_conf()")

    def stop(self) -> None:
        """A clean shutdown, without waiting for who is connected (SIGTERM would)."""
        if self._server is not None:
            self._server.signal(signal.SIGINT)
        super().stop()

    def _take_ports(self) -> None:
        (self.port,) = free_ports(1)

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        data = self._folder / "data"
        if not data.exists():
            self._make(data)
        given = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value.strip(chr(39))}")]
        command = [*self._as_user(), str(self.install.programs / "postgres"), "-D", str(data), "-p", str(self.port)]
        deadline = time.monotonic() + _START_S
        while True:
            self._server = GuardedProcess(
                [*command, *given], log=self._folder / "log", owner=self._owner, folder=self._folder
            )
            if self._answers_in_time(self._server, deadline):
                return
            # Processes of the one that was killed may still hold its memory for a moment.
            if "still in use" not in self._server.log_tail() or time.monotonic() > deadline:
                raise ServerFailed(f"{self.install} ended while it was starting.\n{self._server.log_tail()}")
            time.sleep(_POLL_S)  # sleep: another process sets no event of ours

    def _make(self, data: Path) -> None:
        command = [
            *self._as_user(), str(self.install.programs / "initdb"), "-D", str(data), "-U", USER, "--auth=trust",
            "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync",
        ]  # fmt: skip
        done = subprocess.run(  # noqa: S603 - the program found by `installed_postgres`
            command, capture_output=True, text=True, check=False, timeout=120, cwd=self._folder
        )
        if done.returncode != 0:
            shutil.rmtree(data, ignore_errors=True)
            raise ServerFailed(f"initdb failed:\n{done.stdout}{done.stderr}")

    def _as_user(self) -> list[str]:
        if self._user is None:
            return []
        # Changing the user would forget that it dies with its guard: --pdeathsig says so once more.
        ids = [f"--reuid={self._user.pw_uid}", f"--regid={self._user.pw_gid}", "--clear-groups", "--pdeathsig=KILL"]
        return ["setpriv", *ids, "--"]

    def _answers_in_time(self, server: GuardedProcess, deadline: float) -> bool:
        """False where it has ended."""
        while True:
            with contextlib.suppress(ServerFailed):
                # Somebody else's server may have the port: ask for its folder.
                if ask(self.url, "SHOW data_directory") == [(str(self._folder / "data"),)]:
                    return True
            if not server.is_running:
                return False
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.install} did not answer within {_START_S:g} s.\n{server.log_tail()}")
            time.sleep(_POLL_S)  # sleep: another process sets no event of ours


@contextlib.contextmanager
def database(server_url: str) -> Iterator[str]:
    """The URL of an empty database of this server, dropped at the end of the block. Its user may make databases."""
    name = f"t_{secrets.token_hex(6)}"
    ask(server_url, f"CREATE DATABASE {name}")
    try:
        yield urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
    finally:
        with contextlib.suppress(ServerFailed):
            ask(server_url, f"DROP DATABASE {name} WITH (FORCE)")


def ask(url: str, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """One statement on a connection of its own; its rows. Raises `ServerFailed` with the server's words."""
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=_ASK_S) as connection:
            done = connection.execute(statement.encode(), values or None)
            return done.fetchall() if done.description is not None else []
    except psycopg.Error as error:
        raise ServerFailed(f"{statement:.200}: {error}") from error
