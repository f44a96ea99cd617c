"""Supervisor: several worker processes of one command, restarted when they die.

    supervisor ──starts──→ worker 1 … worker N          each in a process group of its own
        │ SIGTERM, SIGINT ──→ SIGTERM to every worker    (they drain; a second one stops them at once; a third kills)
        └ a pipe whose write end only the supervisor has: at its end the workers drain, for their parent is gone

A worker that dies is started again after a growing, jittered delay that starts anew once one has lived for a minute.
One that ends with the exit code of a configuration error would do so for ever: the others are drained, and that code is
the supervisor's own. Nothing grows with time: a slot keeps its process and two numbers.

Weak spot: the supervisor itself holds no message and can be killed at any time; its workers drain and are gone.
"""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Final

from redrive.core.policy.backoff import Exponential
from redrive.runtime.events import Events
from redrive.runtime.hosting import LIFELINE

RESTART_BACKOFF: Final = Exponential("500ms", cap="30s", jitter="equal")
STABLE_S: Final = 60.0
"""A worker that lived so long starts the delays anew."""

CONFIGURATION_CODE: Final = 2
"""Exit code of a worker that cannot start as it is told to."""

POLL_S: Final = 1.0
"""Longest time between two looks; a dying child and a signal wake it at once."""

SECOND_SIGNAL: Final = 2

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def supervise(command: Sequence[str], *, processes: int, events: Events) -> int:
    """Keep `processes` of this command running until told to stop; the exit code.

    0 where every worker drained; else the first other code. Call it in the main thread. The workers write to the same
    standard output and error.
    """
    return _Supervisor(tuple(command), processes, events).run()


@dataclass(slots=True)
class _Slot:
    """One worker's place. `failures`: deaths in a row; `start_at`: when the next may start (monotonic seconds)."""

    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    start_at: float = 0.0
    failures: int = 0


class _Supervisor:
    def __init__(self, command: tuple[str, ...], processes: int, events: Events) -> None:
        self._command = command
        self._events = events
        self._slots = [_Slot() for _ in range(processes)]
        self._signals = 0
        self._code = 0

    def run(self) -> int:
        life_read, life_write = os.pipe()
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(wake_read, False)
        before = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        handlers = [(each, signal.signal(each, _ignore)) for each in (*_SIGNALS, signal.SIGCHLD)]
        try:
            while self._signals == 0 or any(slot.process is not None for slot in self._slots):
                self._reap()
                if self._signals == 0:
                    self._start_due(life_read)
                self._wait(wake_read)
        finally:
            for slot in self._slots:
                if slot.process is not None:
                    slot.process.kill()
            signal.set_wakeup_fd(before)
            for each, handler in handlers:
                signal.signal(each, handler)
            for descriptor in (life_read, life_write, wake_read, wake_write):
                os.close(descriptor)
        return self._code

    def _start_due(self, lifeline: int) -> None:
        now = time.monotonic()
        for slot in self._slots:
            if slot.process is None and slot.start_at <= now:
                slot.process = subprocess.Popen(  # noqa: S603 - our own command line
                    self._command,
                    env={**os.environ, LIFELINE: str(lifeline)},
                    pass_fds=(lifeline,),
                    # A Ctrl-C in the terminal reaches the supervisor only, which passes it on once.
                    process_group=0,
                )
                slot.started_at = now

    def _reap(self) -> None:
        for slot in self._slots:
            if slot.process is None:
                continue
            code = slot.process.poll()
            if code is None:
                continue
            pid, slot.process = slot.process.pid, None
            if self._signals:
                self._code = self._code or _shell_code(code)
                continue
            now = time.monotonic()
            slot.failures = 1 if now - slot.started_at >= STABLE_S else slot.failures + 1
            delay_ms = RESTART_BACKOFF.delay_ms(slot.failures, random.random())  # noqa: S311 - jitter
            slot.start_at = now + delay_ms / 1_000
            self._events.emit("process.exited", pid=pid, exit_code=code, delay_ms=delay_ms)
            if code == CONFIGURATION_CODE:
                self._code = code
                self._stop()

    def _wait(self, wake: int) -> None:
        waits = [slot.start_at - time.monotonic() for slot in self._slots if slot.process is None]
        timeout = POLL_S if self._signals else min([POLL_S, *(max(0.0, each) for each in waits)])
        select.select([wake], [], [], timeout)
        with suppress(BlockingIOError):
            for number in os.read(wake, 64):
                if number in _SIGNALS:
                    self._stop()

    def _stop(self) -> None:
        self._signals += 1
        number = signal.SIGTERM if self._signals <= SECOND_SIGNAL else signal.SIGKILL
        for slot in self._slots:
            if slot.process is not None:
                slot.process.send_signal(number)


def _shell_code(code: int) -> int:
    """A death by signal as a shell reports it."""
    return code if code >= 0 else 128 - code


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """The pipe has it."""
