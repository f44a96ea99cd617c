"""Turn: whose turn it is to write, within one process. First come, first served.

SQLite lets one connection write at a time and hands the lock to whoever asks at the right moment. Inside a process
that would let a busy writer thread starve a handler's transaction (or the other way round), so both queue here first.
"""

from __future__ import annotations

import threading
from collections import deque


class Turn:
    """A lock that is fair and can be given up on after a time."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._is_taken = False

    def acquire(self, timeout_s: float) -> bool:
        """Whether it became ours within the time. Blocks; never call it on an event loop."""
        with self._mutex:
            if not self._is_taken:
                self._is_taken = True
                return True
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append(gate)
        if gate.acquire(timeout=timeout_s):
            return True
        with self._mutex:
            if gate in self._waiting:
                self._waiting.remove(gate)
                return False
        # It was handed to us between the end of the wait and the mutex.
        return True

    def release(self) -> None:
        """Hand it to the one who waits longest. Any thread may call it."""
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_taken = False
