"""Guarded processes and free ports: what every private server needs."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
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
    """As many loopback ports on which nobody listens. Nothing reserves them: start what needs them soon."""
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
            found.append(port)
        if len(found) == count:
            return found
    raise ServerFailed(f"No {count} free ports between {_PORTS.start} and {_PORTS.stop}.")


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
