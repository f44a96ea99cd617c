"""Who waits for messages, and what wakes them.

Three things make a waiting receiver look again:
- a commit of this process that touched its queue: at once, from the writer thread;
- a commit of another process: seen by `PRAGMA data_version`, which the watch thread reads every `WATCH_MS` while
  someone waits (a few microseconds each; nobody waiting: the thread sleeps);
- the clock: the earliest due time or lease end of its queue, which the receiver itself waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Final

from redrive.core.ports import Clock
from redrive.core.units import UnixMs

WATCH_MS: Final = 50
"""How often other processes' commits are looked for: half of the 100 ms they may take to be noticed."""

LONGEST_NAP_MS: Final = 1_000
"""Longest sleep towards a due time: after a step of the wall clock a message is at most this late."""


class Waiter:
    """One receiver waiting for one queue, on its own event loop."""

    __slots__ = ("_event", "_loop", "next_at", "queue")

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.next_at: UnixMs | None = None
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def wake(self) -> None:
        """From any thread."""
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits there.
            self._loop.call_soon_threadsafe(self._event.set)

    def rearm(self) -> None:
        """Forget earlier wakes; call it before looking at the queue, so that none is lost."""
        self._event.clear()
        self.next_at = None

    async def wait(self, clock: Clock, *, limit_ms: float, next_at: UnixMs | None) -> None:
        """Until woken, or `next_at` comes, or `limit_ms` are over."""
        self.next_at = next_at
        nap_ms = limit_ms
        if next_at is not None:
            nap_ms = min(limit_ms, LONGEST_NAP_MS, max(0, next_at - clock.now()))
        tasks = {asyncio.ensure_future(self._event.wait()), asyncio.ensure_future(clock.sleep(nap_ms))}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()


class Watch:
    """The waiters of one file, and the thread that looks for what other processes wrote."""

    def __init__(
        self,
        *,
        connect: Callable[[], sqlite3.Connection],
        probe: Callable[[sqlite3.Connection, str], UnixMs | None],
        on_tick: Callable[[], bool],
    ) -> None:
        """`probe` says when the next message of a queue can be handed out (0: now). `on_tick` is called every round
        and says whether the thread is needed though nobody waits.
        """
        self._connect = connect
        self._probe = probe
        self._on_tick = on_tick
        self._waiters: set[Waiter] = set()
        self._needed = threading.Condition()
        self._is_closing = False
        self._is_asked = False
        self._thread = threading.Thread(target=self._run, name="redrive-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Waiters are woken and find the file closed. Blocks for a moment."""
        with self._needed:
            self._is_closing = True
            self._needed.notify()
        self._thread.join()
        self.wake(None)

    def add(self, waiter: Waiter) -> None:
        """From now on this waiter is woken."""
        with self._needed:
            self._waiters.add(waiter)
            if len(self._waiters) == 1:
                self._needed.notify()

    def remove(self, waiter: Waiter) -> None:
        """No more."""
        with self._needed:
            self._waiters.discard(waiter)

    def ask(self) -> None:
        """Keep the thread ticking until `on_tick` says it is no longer needed."""
        with self._needed:
            self._is_asked = True
            self._needed.notify()

    def wake(self, queues: set[str] | None) -> None:
        """Wake those who wait for one of the queues (None: all)."""
        with self._needed:
            for waiter in self._waiters:
                if queues is None or waiter.queue in queues:
                    waiter.wake()

    # ------------------------------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        with contextlib.closing(self._connect()) as connection:
            seen = -1
            while self._wait_until_needed():
                time.sleep(WATCH_MS / 1_000)
                is_busy = self._on_tick()
                with self._needed:
                    self._is_asked = is_busy
                # A file that cannot be read now is looked at again next round; receivers meet the error themselves.
                with contextlib.suppress(sqlite3.Error):
                    version = connection.execute("PRAGMA data_version").fetchone()[0]
                    if version != seen:
                        self._wake_ready(connection)
                        seen = version

    def _wake_ready(self, connection: sqlite3.Connection) -> None:
        with self._needed:
            waiters = list(self._waiters)
        next_at = {queue: self._probe(connection, queue) for queue in {waiter.queue for waiter in waiters}}
        for waiter in waiters:
            found = next_at[waiter.queue]
            if found is not None and (waiter.next_at is None or found < waiter.next_at):
                waiter.wake()

    def _wait_until_needed(self) -> bool:
        with self._needed:
            while not (self._waiters or self._is_asked or self._is_closing):
                self._needed.wait()
            return not self._is_closing
