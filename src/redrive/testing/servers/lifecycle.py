"""The life of a server of one's own, whichever server it is: started, stopped, killed, paused, gone with its folder."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Final, Self

from redrive.testing.servers.processes import GuardedProcess, ServerFailed

STOP_S: Final = 60.0
TRIES: Final = 3


class Lifecycle(ABC):
    """`start`, `stop`, `kill`, `pause` may be called in any order; data and ports stay until `close`.

    A server says how it takes its ports (`_take_ports`), starts on them (`_start`, which sets `_server` and returns
    once it answers), ends whatever runs beside it (`_end_processes`), and removes its folder (`_remove`).
    """

    _server: GuardedProcess | None = None
    _has_ports = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self._server is not None and self._server.is_running

    def start(self) -> None:
        """Start, on the data that are there, and wait until it answers. Running already: nothing. Raises
        `ServerFailed`.
        """
        if self.is_running:
            return
        if self._has_ports:
            self._start()
            return
        for last in range(1, TRIES + 1):
            self._take_ports()
            try:
                self._start()
            except ServerFailed:
                # Somebody else may have taken one of the ports in the meantime: other ports, another try.
                self._end_processes()
                if last == TRIES:
                    raise
            else:
                self._has_ports = True
                return

    def stop(self) -> None:
        """A clean shutdown: everything is on disk."""
        if self._server is not None:
            self._server.stop(timeout_s=STOP_S)

    def kill(self) -> None:
        """End the server by `kill -9`."""
        if self._server is not None:
            self._server.kill()

    def restart(self) -> None:
        """Stop cleanly and start again on the same data and ports."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """The process stands still (SIGSTOP): connections stay open, nothing answers. `resume` lets it go on."""
        assert self._server is not None
        self._server.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """The end of `pause`."""
        assert self._server is not None
        self._server.signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill what runs and remove the folder. The node is used up."""
        self._end_processes()
        self._remove()

    @abstractmethod
    def _take_ports(self) -> None: ...

    @abstractmethod
    def _start(self) -> None: ...

    def _end_processes(self) -> None:
        self.kill()

    @abstractmethod
    def _remove(self) -> None: ...
