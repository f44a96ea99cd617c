"""The writer: one thread that executes everything waiting as one transaction (group commit).

Authoritative is the file; a call is answered only after COMMIT returned, and where it is to be durable only after the
log was synced (`log_sync.py`): by then the write lock is free again for other processes. While the thread waits for
the disk, new calls queue up and share the next transaction: so the cost of an fsync is divided by the number of waiting
calls, and a call alone waits for nothing but its own. Calls that need not be durable (takes) do not wait for the disk;
of some the disk is told all the same, right after they were answered.

Failures:
- One operation of a group raises: the whole group is rolled back and each operation runs again in a transaction of
  its own. Operations are functions of the transaction and change nothing outside it, so running one twice is safe.
- BEGIN cannot get the lock in time, or COMMIT fails: every call of the group gets that error, nothing is written.
- The disk does not take it: those who wait for it get that error; what was committed is seen by everyone all the same.
- The process is killed: SQLite rolls back what had not committed; whoever waited is dead too.
- Calls of one group that do the same step with a batch each (publish, commit) are one call of that step: a hundred
  requests that publish one message each cost four statements, not four hundred.
- The caller was cancelled meanwhile: the operation still took effect. A call may bring `undo` for that case.

Known weak spot: a thread that dies of `MemoryError` in the middle of answering leaves callers waiting.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from redrive.core.policy.fair import Fair
from redrive.core.policy.flow import Rate
from redrive.core.ports import Clock
from redrive.core.units import UnixMs
from redrive.errors import BrokerUnavailableError
from redrive.sqlite.connect import begin, turn_not_given
from redrive.sqlite.failures import as_redrive_error
from redrive.sqlite.turn import Turn

T = TypeVar("T")
B = TypeVar("B")

GROUP_MAX: Final = 256
"""Most calls in one transaction: bounds how long the first of them waits for the others."""


@dataclass(slots=True)
class Tx:
    """An open write transaction. `now` is one instant for all of it; `wake` names queues to wake after the commit.
    `is_pruned`: records went for good, so that their space may be given back. `fair`, `rates`: how this process serves
    its queues.
    """

    connection: sqlite3.Connection
    now: UnixMs
    woken: set[str] = field(default_factory=set)
    is_pruned: bool = False
    fair: Mapping[str, Fair] = field(default_factory=dict)
    rates: Mapping[str, Rate] = field(default_factory=dict)

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        """One statement."""
        return self.connection.execute(sql, parameters)

    def wake(self, queue: str) -> None:
        """Whoever waits for this queue looks again once this is committed."""
        self.woken.add(queue)


Operation = Callable[[Tx], Any]
Step = Callable[[Tx, Sequence[B]], list[T]]
"""Does something with each element of a batch and has one answer for each, in order. Must be the same function for
calls that are to be carried out together.
"""


@dataclass(slots=True, eq=False)
class _Call:
    """`batch` None: `work` is an `Operation`; else it is a `Step` for this batch. `is_synced`: it waits for the disk.
    `syncs`: the disk gets it right after it was answered.
    """

    work: Callable[..., Any]
    batch: Sequence[Any] | None
    is_synced: bool
    future: Future[Any] | asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop | None
    undo: Callable[[Any], None] | None = None
    syncs: bool = False
    result: Any = None
    error: BaseException | None = None


class Writer:
    """Owns the writing connection and its thread."""

    def __init__(
        self,
        *,
        connection: sqlite3.Connection,
        path: Path,
        clock: Clock,
        turn: Turn,
        lock_timeout_ms: int,
        sync: Callable[[], None] | None,
        check_file: Callable[[], None],
        on_commit: Callable[[set[str]], None],
        tend: Callable[[sqlite3.Connection, bool], None],
        make_tx: Callable[[sqlite3.Connection, UnixMs], Tx],
    ) -> None:
        self._connection = connection
        self._path = path
        self._clock = clock
        self._turn = turn
        self._lock_timeout_ms = lock_timeout_ms
        self._sync = sync
        self._check_file = check_file
        self._on_commit = on_commit
        self._tend = tend
        self._make_tx = make_tx
        self._is_pruned = False
        self._disk_error: Exception | None = None
        self._calls: deque[_Call] = deque()
        self._some = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name=f"redrive-writer {path.name}", daemon=True)

    def start(self) -> None:
        """Begin to carry out calls."""
        self._thread.start()

    def stop(self) -> None:
        """Carry out what is waiting, then end the thread and close the connection. Blocks."""
        with self._some:
            self._is_closing = True
            self._some.notify()
        self._thread.join()
        self._connection.close()

    async def call(
        self,
        operation: Callable[[Tx], T],
        *,
        is_synced: bool = True,
        syncs: bool = False,
        undo: Callable[[T], None] | None = None,
    ) -> T:
        """The operation's result, once it is committed, and with `is_synced` durable. With `syncs` it becomes durable
        right after. `undo` gets it where the caller was cancelled meanwhile.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._submit(_Call(operation, None, is_synced, future, loop, undo, syncs))
        try:
            return await future
        except asyncio.CancelledError:
            # The answer may have come in the very turn of the loop that cancels us: then nobody else will see it.
            if undo is not None and not future.cancelled() and future.exception() is None:
                undo(future.result())
            raise

    async def call_step(self, step: Step[B, T], batch: Sequence[B]) -> list[T]:
        """The step's answers for this batch; it is carried out together with other batches that wait for it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[T]] = loop.create_future()
        self._submit(_Call(step, batch, True, future, loop))  # noqa: FBT003
        return await future

    def call_blocking(self, operation: Callable[[Tx], T], *, is_synced: bool = True) -> T:
        """As `call`, from any thread but the writer's."""
        future: Future[T] = Future()
        self._submit(_Call(operation, None, is_synced, future, None))
        return future.result()

    def send(self, operation: Operation) -> None:
        """Carry it out some time; nobody waits for it or learns of its failure."""
        self._submit(_Call(operation, None, False, Future(), None))  # noqa: FBT003

    def _submit(self, call: _Call) -> None:
        with self._some:
            if self._is_closing:
                raise BrokerUnavailableError(f'File "{self._path}" is closed. Nothing was written.')
            self._calls.append(call)
            self._some.notify()

    # ------------------------------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        while group := self._next_group():
            self._carry_out(group)
            waiting = self._answer_all_but_synced(group)
            if waiting or (self._sync is not None and any(call.syncs for call in group)):
                self._make_durable(waiting)
                self._answer(waiting)
            is_pruned, self._is_pruned = self._is_pruned, False
            self._tend(self._connection, is_pruned)

    def _next_group(self) -> list[_Call]:
        """What waits, as soon as something does; empty once the writer is closing and nothing is left."""
        group: list[_Call] = []
        with self._some:
            while not group:
                while not self._calls and not self._is_closing:
                    self._some.wait()
                if not self._calls:
                    return []
                while self._calls and len(group) < GROUP_MAX:
                    call = self._calls.popleft()
                    if not call.future.cancelled():
                        group.append(call)
        return group

    def _carry_out(self, group: list[_Call]) -> None:
        try:
            self._commit(group)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer to the calls
            if len(group) == 1 or _is_about_all(error):
                for call in group:
                    call.error = as_redrive_error(error, self._path)
            else:
                for call in group:
                    self._carry_out([call])

    def _commit(self, group: list[_Call]) -> None:
        if not self._turn.acquire(self._lock_timeout_ms / 1_000):
            raise turn_not_given(self._path, self._lock_timeout_ms)
        try:
            self._check_file()
            begin(self._connection, path=self._path, wait_ms=self._lock_timeout_ms)
            tx = self._make_tx(self._connection, self._clock.now())
            try:
                _run_all(tx, group)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        finally:
            self._turn.release()
        self._is_pruned = self._is_pruned or tx.is_pruned
        if tx.woken:
            self._on_commit(tx.woken)

    def _answer_all_but_synced(self, group: list[_Call]) -> list[_Call]:
        """Those that are left wait for the disk."""
        waiting: list[_Call] = []
        done: list[_Call] = []
        for call in group:
            (waiting if call.is_synced and call.error is None and self._sync is not None else done).append(call)
        self._answer(done)
        return waiting

    def _make_durable(self, waiting: list[_Call]) -> None:
        assert self._sync is not None
        try:
            self._sync()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer to the calls
            self._disk_error = error
        if waiting and self._disk_error is not None:
            # The system tells it once; who waits next has to know, also where it was a sync that nobody waited for.
            for call in waiting:
                call.error = self._disk_error
            self._disk_error = None

    def _answer(self, group: list[_Call]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[_Call]] = {}
        for call in group:
            if call.loop is None:
                _resolve(call)
            else:
                by_loop.setdefault(call.loop, []).append(call)
        for loop, calls in by_loop.items():
            try:
                loop.call_soon_threadsafe(_resolve_all, calls)
            except RuntimeError:  # The loop is closed: nobody waits any more.
                for call in calls:
                    _undo(call)


def _run_all(tx: Tx, group: list[_Call]) -> None:
    together: dict[Callable[..., Any], list[_Call]] = {}
    for call in group:
        if call.batch is not None:
            together.setdefault(call.work, []).append(call)
    for call in group:
        if call.batch is None:
            call.result = call.work(tx)
        elif calls := together.pop(call.work, None):
            _run_together(tx, calls)


def _run_together(tx: Tx, calls: list[_Call]) -> None:
    if len(calls) == 1:
        calls[0].result = calls[0].work(tx, calls[0].batch)
        return
    answers = calls[0].work(tx, [element for call in calls for element in call.batch or ()])
    start = 0
    for call in calls:
        end = start + len(call.batch or ())
        call.result = answers[start:end]
        start = end


def _is_about_all(error: Exception) -> bool:
    """Whether the error is the file's state, not one operation's: trying each call alone would only wait again."""
    return isinstance(error, BrokerUnavailableError)


def _resolve_all(calls: list[_Call]) -> None:
    for call in calls:
        _resolve(call)


def _resolve(call: _Call) -> None:
    if call.future.cancelled():
        _undo(call)
    elif call.error is not None:
        call.future.set_exception(call.error)
    else:
        call.future.set_result(call.result)


def _undo(call: _Call) -> None:
    if call.undo is not None and call.error is None:
        call.undo(call.result)
