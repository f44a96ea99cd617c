"""A process whose purpose is one coroutine: signals, a parent that may vanish, and an end that always comes.

Signals are read from a pipe by a thread of their own, so that they work while the event loop is blocked:

    1st SIGTERM or SIGINT   stop(): drain
    2nd                     stop(at_once=True); if the process is still there 1.5 s later: as the third
    3rd                     last_resort(), then the process ends at once

A signal within a tenth of a second of the one before is its echo and does not count.

A process started by `redrive.runtime.supervisor` also drains when its parent is gone.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any, Final, Protocol

LIFELINE: Final = "_REDRIVE_LIFELINE"
"""Environment variable: a descriptor that is at its end once the supervising process is gone."""

FORCE_S: Final = 1.5
"""How long the process may take to end after the second signal."""

CANCEL_S: Final = 1.0
"""How long tasks that are left over may take to be cancelled."""

THREADS_S: Final = 0.3
"""How long threads that are left over may take; then the process ends without them."""

ECHO_S: Final = 0.1
"""The same wish told twice: `timeout`, and runners that pass a Ctrl-C on to a child that got it too."""

GARBAGE_YOUNG: Final = 10_000
"""Objects made since the last collection before the next: a few batches, whose own objects die without a collector."""

GARBAGE_STEPS: Final = (20, 50)
"""Collections of the young before one of the middle, of the middle before one of all."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Stop(Protocol):
    """Ask the coroutine to end; called on the loop."""

    def __call__(self, *, at_once: bool) -> None: ...


def host_process(
    run: Callable[[], Coroutine[Any, Any, None]], *, stop: Stop, last_resort: Callable[[], None] | None = None
) -> int:
    """Run until it ends by itself or by signals; the exit code: 0, or 128 + the signal's number after a second one.

    What `run` raises passes through. Call it in the main thread. Where threads are left over that do not end, the
    process ends here, with the exit code it would have returned.
    """
    spare_the_collector()
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    signals = _Signals(loop, stop, last_resort)
    task = loop.create_task(run())
    try:
        with signals:
            _complete(loop, task)
            _cancel_the_rest(loop, signals)
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    if signals.code:
        _leave(signals.code)
    task.result()
    if signals.count:
        _leave_if_stuck(0)
    return 0


def spare_the_collector() -> None:
    """Keep the cyclic collector from walking what lives as long as the process, again and again.

    Modules and the app are set aside for good; a batch in hand is thousands of objects that are no cycles, so the
    young are looked at less often (measured: a fifth of the time of a small handler). Only for a process of our own.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_YOUNG, *GARBAGE_STEPS)


def _complete(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    """Run the loop until the task is done. SystemExit or KeyboardInterrupt in some child task of a handler's own comes
    out here through the loop; it is that task's failure, not our end.
    """
    while not task.done():
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_until_complete(asyncio.wait({task}))


def _cancel_the_rest(loop: asyncio.AbstractEventLoop, signals: _Signals) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        with suppress(SystemExit, KeyboardInterrupt):
            _, pending = loop.run_until_complete(asyncio.wait(tasks, timeout=CANCEL_S))
            if pending and signals.count:
                _leave(signals.code)
    loop.run_until_complete(loop.shutdown_asyncgens())


class _Signals:
    """The signals while the block runs. `count` of them came; `code` is the exit code they ask for."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stop: Stop, last_resort: Callable[[], None] | None) -> None:
        self._loop = loop
        self._stop = stop
        self._last_resort = last_resort
        self._restore: list[tuple[signal.Signals, Any]] = []
        self._heard_at = 0.0
        self.count = 0
        self.code = 0

    def __enter__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._restore = [(each, signal.signal(each, _ignore)) for each in _SIGNALS]
        threading.Thread(target=self._watch, name="redrive-signals", daemon=True).start()
        lifeline = os.environ.get(LIFELINE)
        if lifeline is not None:
            arguments = (int(lifeline), self._write)
            threading.Thread(target=_watch_parent, args=arguments, name="redrive-lifeline", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._before)
        for each, handler in self._restore:
            signal.signal(each, handler)
        os.write(self._write, b"\0")

    def _watch(self) -> None:
        while numbers := os.read(self._read, 64):
            # What lies in the pipe together came together, however long this thread is kept from looking at it.
            now = time.monotonic()
            for number in numbers:
                if number == 0:
                    return
                if number in _SIGNALS:
                    self._heard(number, at=now)

    def _heard(self, number: int, *, at: float) -> None:
        before, self._heard_at = self._heard_at, at
        if self.count and at - before < ECHO_S:
            return
        self.count += 1
        if self.count == 1:
            self._ask(at_once=False)
            return
        self.code = 128 + number
        if self.count == 2:  # noqa: PLR2004 - the second of the docstring's table
            self._ask(at_once=True)
            timer = threading.Timer(FORCE_S, self._force)
            timer.daemon = True
            timer.start()
        else:
            self._force()

    def _ask(self, *, at_once: bool) -> None:
        with suppress(RuntimeError):  # the loop is closed: we are at the end already
            self._loop.call_soon_threadsafe(lambda: self._stop(at_once=at_once))

    def _force(self) -> None:
        if self._last_resort is not None:
            with suppress(Exception):
                self._last_resort()
        _leave(self.code)


def _watch_parent(lifeline: int, signals: int) -> None:
    """As if told SIGTERM, once the parent is gone."""
    with suppress(OSError):
        while os.read(lifeline, 1):
            pass
        os.write(signals, bytes([signal.SIGTERM]))


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """The pipe has it."""


def _leave_if_stuck(code: int) -> None:
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(THREADS_S)
            if thread.is_alive():
                _leave(code)


def _leave(code: int) -> None:
    """End this process without waiting for anybody; what was printed is not lost."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)
