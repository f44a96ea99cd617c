"""Guarded processes and free ports: what every private server needs."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

LOOPBACK: Final = "127.0.0.1"
_GUARD: Final = Path(__file__).with_name("guard.py")

_PORTS: Final = range(20_000, 30_000)
"""Below the range clients get their own ports from (32768 and up on Linux): a port must still be free for its server
after a restart, while other tests open connections."""


class ServerFailed(RuntimeError):
    """A private server did not start, did not answer or did not end; the text has the end of its log."""


def free_ports(count: int) -> list[int]:
    """As many loopback ports on which nobody listens, and which no other call is given, in no process of this user on
    this machine, until this process ends. Programs of others may still take one.
    """
    found: list[int] = []
    with _LOCK:
        for port in random.sample(_PORTS, len(_PORTS)):
            if _reserve(port):
                found.append(port)
            if len(found) == count:
                return found
    raise ServerFailed(f"No {count} free ports between {_PORTS.start} and {_PORTS.stop}.")


_LOCK: Final = threading.Lock()
_RESERVED: Final[set[int]] = set()


def _reserve(port: int) -> bool:
    if port in _RESERVED or not _is_free(port):
        return False
    try:
        fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    _RESERVED.add(port)
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, port))
        return True
    return False


@functools.cache
def _reservations() -> int:
    """A file of which each process locks the bytes whose places are its ports: the kernel unlocks them at its end.

    Never closed: closing any descriptor of it would end all locks of this process.
    """
    path = Path(tempfile.gettempdir()) / f"redrive-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


class GuardedProcess:
    """One process of a server, ended at the latest when `owner` (a process id; `None`: this process) has ended."""

    __slots__ = ("_guard", "log", "pid")

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        owner: int | None = None,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`folder` is removed when the owner goes first; `environment` replaces this process's own."""
        guarded = [str(os.getpid() if owner is None else owner), str(folder or ""), str(log), *command]
        self._guard = subprocess.Popen(  # noqa: S603 - our own guard
            [sys.executable, "-S", "-E", str(_GUARD), *guarded],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=environment,
        )
        self.log = log
        assert self._guard.stdout is not None
        with self._guard.stdout as line:
            self.pid = int(line.readline() or 0)
        if not self.pid:
            self._guard.wait()
            raise ServerFailed(f"{command[0]} could not be started.\n{self.log_tail()}")

    @property
    def is_running(self) -> bool:
        return self._guard.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal; nothing happens where the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it (SIGKILL), and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self._guard.wait()

    def stop(self, *, timeout_s: float) -> None:
        """SIGTERM, and wait until it is gone; what has not ended after `timeout_s` is killed."""
        self.signal(signal.SIGTERM)
        try:
            self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def log_tail(self, lines: int = 30) -> str:
        """The end of what the process has printed, for an error's text."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text("utf-8", errors="replace").splitlines()[-lines:])
