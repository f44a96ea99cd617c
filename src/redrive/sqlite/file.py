"""SqliteFile: one file, its connections and threads, shared by all faces of it in this process.

- One writing connection in a thread of its own (`writer.py`), group commit, BEGIN IMMEDIATE.
- `READERS` read-only connections in threads of their own, so that a large list never holds up a write.
- Further writing connections for handlers' transactions (`transaction.py`), queueing for the same turn.
- A watch thread for other processes' commits (`waiting.py`).

The journal is a write-ahead log. With durability "full" every commit is on the disk before it is answered
(`log_sync.py`): what was accepted survives a power cut. With "normal" it survives every crash of the process, but a
power cut or a crash of the operating system can lose the last commits (the file stays consistent): messages answered
as accepted may be gone, and messages already processed may run again. Leases and their renewals are never fsynced on
their own: after a power cut there is no worker left that could hold them.

The log is copied back into the file beside the commits (`checkpoint.py`), and space a backlog left behind is given
back where records are pruned (`space.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import queue as queues
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Literal, TypeVar

from redrive.core.policy.fair import Fair
from redrive.core.policy.flow import Rate
from redrive.core.ports import Clock
from redrive.core.units import UnixMs
from redrive.errors import BrokerUnavailableError
from redrive.sqlite import queue, search
from redrive.sqlite.checkpoint import LOG_LIMIT_BYTES, Checkpoints
from redrive.sqlite.connect import (
    LONGEST_NAP_S,
    check_sqlite_version,
    connect_reader,
    connect_writer,
    nap,
    sync_directory,
    tune,
)
from redrive.sqlite.failures import is_locked, mapped
from redrive.sqlite.log_sync import LogSync
from redrive.sqlite.schema import is_current, migrate, migrations
from redrive.sqlite.turn import Turn
from redrive.sqlite.waiting import Watch
from redrive.sqlite.writer import Step, Tx, Writer

T = TypeVar("T")
B = TypeVar("B")
Durability = Literal["full", "normal"]

READERS: Final = 2
STARTERS: Final = 8
"""Handlers' transactions that wait for the write lock in threads at the same time; more wait for a thread."""


class SqliteFile:
    """One redrive file. Open it once per face that uses it; the last close ends its threads.

    Raises `BrokerUnavailableError` (locked, full, read-only, away), `StorageCorruptError` or `SchemaTooNewError`;
    sqlite/failures.py is the table.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock,
        durability: Durability = "full",
        lock_timeout_ms: int = 5_000,
        fair: Mapping[str, Fair] | None = None,
        rates: Mapping[str, Rate] | None = None,
    ) -> None:
        """`fair`, `rates`: the queues that this process takes from in turns, or at a rate that all processes share."""
        self.path = Path(path)
        # Looked into at each take: whoever gave the mapping may change it while the file is open.
        self.fair = {} if fair is None else fair
        self.rates = {} if rates is None else rates
        self.clock = clock
        self.durability = durability
        self.lock_timeout_ms = lock_timeout_ms
        self.turn = Turn()
        self._users = 0
        self._opening = threading.Lock()
        self._live: Live | None = None

    async def open(self) -> None:
        """Make or migrate the file and start its threads; counted, so that each face may open it."""
        await asyncio.to_thread(self.open_blocking)

    async def close(self) -> None:
        """Carry out what is waiting and stop, once everyone who opened it has closed it."""
        await asyncio.to_thread(self.close_blocking)

    def open_blocking(self) -> None:
        """As `open`, for a thread."""
        with self._opening:
            if self._live is None:
                with mapped(self.path):
                    self._live = Live(self)
            self._users += 1

    def close_blocking(self) -> None:
        """As `close`, for a thread. More closes than opens change nothing."""
        with self._opening:
            self._users = max(0, self._users - 1)
            if self._users == 0 and self._live is not None:
                live, self._live = self._live, None
                live.stop()

    @property
    def live(self) -> Live:
        """What is running while the file is open. Raises `BrokerUnavailableError` where it is not."""
        live = self._live
        if live is None:
            raise BrokerUnavailableError(f'File "{self.path}" is not open. Nothing was read or written.')
        return live

    def make_tx(self, connection: sqlite3.Connection, now: UnixMs) -> Tx:
        """A transaction that knows how this process serves its queues."""
        return Tx(connection, now, fair=self.fair, rates=self.rates)

    async def write(
        self, operation: Callable[[Tx], T], *, is_synced: bool = True, undo: Callable[[T], None] | None = None
    ) -> T:
        """The operation's result once it is committed. Must be safe to run twice; sees nothing but its `Tx`."""
        return await self.live.writer.call(operation, is_synced=is_synced, undo=undo)

    async def write_ahead(self, operation: Callable[[Tx], T]) -> T:
        """As `write`, but answered once it is committed; the disk has it a moment later. Killed in between it stands; a
        power cut then takes it, and an error of the disk is told to those who wait for it next.
        """
        return await self.live.writer.call(operation, is_synced=False, syncs=True)

    async def write_step(self, step: Step[B, T], batch: Sequence[B]) -> list[T]:
        """What `step` answers for this batch, once it is committed. Batches that wait for the same step go together."""
        return await self.live.writer.call_step(step, batch) if batch else []

    def write_blocking(self, operation: Callable[[Tx], T], *, is_synced: bool = True) -> T:
        """As `write`, for a thread."""
        return self.live.writer.call_blocking(operation, is_synced=is_synced)

    async def read(self, look: Callable[[sqlite3.Connection], T]) -> T:
        """What `look` finds, on a read-only connection, in a thread; writers go on meanwhile."""
        live = self.live
        return await asyncio.get_running_loop().run_in_executor(live.readers, live.read, look)


class Live:
    """Everything that runs while the file is open."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        connection = _prepare(file)
        connection.execute("PRAGMA synchronous = NORMAL")
        self._log = LogSync(file.path)
        self._identity = _identity(file.path)
        self.turn = file.turn
        self._spare_readers: queues.SimpleQueue[sqlite3.Connection] = queues.SimpleQueue()
        self.readers = ThreadPoolExecutor(READERS, thread_name_prefix="redrive-reader")
        self._spare_writers: list[sqlite3.Connection] = []
        self.starters = ThreadPoolExecutor(STARTERS, thread_name_prefix="redrive-transaction")
        self.finisher = ThreadPoolExecutor(1, thread_name_prefix="redrive-finish")
        self.ticks: set[Callable[[], None]] = set()
        self.watch = Watch(connect=lambda: connect_reader(file.path), probe=queue.next_at, on_tick=self._tick)
        self.checkpoints = Checkpoints(connect=lambda: connect_writer(file.path))
        self.writer = Writer(
            connection=connection,
            path=file.path,
            clock=file.clock,
            turn=file.turn,
            lock_timeout_ms=file.lock_timeout_ms,
            sync=self._log.sync if file.durability == "full" else None,
            check_file=self.check_file,
            on_commit=self.watch.wake,
            tend=self.checkpoints.tend,
            make_tx=file.make_tx,
        )
        self.checkpoints.start()
        self.writer.start()
        self.watch.start()

    def read(self, look: Callable[[sqlite3.Connection], T]) -> T:
        """In a reader thread."""
        with mapped(self._file.path):
            try:
                connection = self._spare_readers.get_nowait()
            except queues.Empty:
                connection = connect_reader(self._file.path)
                search.add_functions(connection)
            try:
                return look(connection)
            finally:
                self._spare_readers.put(connection)

    @contextlib.contextmanager
    def borrowed_writer(self) -> Iterator[sqlite3.Connection]:
        """A writing connection of the pool, outside a transaction."""
        connection = self._spare_writers.pop() if self._spare_writers else self._new_writer()
        try:
            yield connection
        finally:
            self._spare_writers.append(connection)

    def check_file(self) -> None:
        """Raises `BrokerUnavailableError` where the name no longer leads to the file that is open: SQLite would go on
        writing into a file that has no name, and everything accepted from then on would be gone with this process.
        """
        if _identity(self._file.path) != self._identity:
            raise BrokerUnavailableError(
                f'File "{self._file.path}" was deleted or replaced while it was open. Nothing was written.',
                hint="Put it back, then restart this process.",
            )

    def _new_writer(self) -> sqlite3.Connection:
        connection = connect_writer(self._file.path)
        tune(connection)
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._file.durability == 'full' else 'NORMAL'}")
        return connection

    def _tick(self) -> bool:
        for tick in list(self.ticks):
            tick()
        return bool(self.ticks)

    def stop(self) -> None:
        self.starters.shutdown(wait=True, cancel_futures=True)
        self.finisher.shutdown(wait=True)
        self.watch.stop()
        self.checkpoints.stop()
        self.writer.stop()
        self._log.close()
        self.readers.shutdown(wait=True, cancel_futures=True)
        while not self._spare_readers.empty():
            self._spare_readers.get().close()
        for connection in self._spare_writers:
            connection.close()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _prepare(file: SqliteFile) -> sqlite3.Connection:
    """The writing connection, on a file that exists and has our schema."""
    check_sqlite_version()
    is_new = not file.path.exists()
    # Entering WAL and migrating need the file for themselves for a moment. Several processes may start at once, and
    # SQLite answers "locked" without waiting where waiting could deadlock: then the whole of it is tried again.
    deadline = time.monotonic() + file.lock_timeout_ms / 1_000
    while True:
        connection = connect_writer(file.path, may_create=True)
        try:
            _set_up(connection, file)
        except BaseException as error:
            connection.close()
            if not (isinstance(error, sqlite3.Error) and is_locked(error)) or time.monotonic() >= deadline:
                raise
            nap(LONGEST_NAP_S)
        else:
            break
    if is_new:
        sync_directory(file.path)
    return connection


def _set_up(connection: sqlite3.Connection, file: SqliteFile) -> None:
    connection.execute(f"PRAGMA busy_timeout = {file.lock_timeout_ms}")
    tune(connection)
    steps = migrations()
    is_made = is_current(connection, steps)
    if not is_made:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise BrokerUnavailableError(
            f'File "{file.path}" cannot keep a write-ahead log (journal mode "{mode}"). Nothing was written.',
            hint="Put it on a local disk: network file systems and in-memory files cannot be shared.",
        )
    if not is_made:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        migrate(connection, steps)
        connection.execute("COMMIT")
    search.add_functions(connection)
    connection.execute(f"PRAGMA journal_size_limit = {LOG_LIMIT_BYTES}")
    # From here on the write lock is waited for by `connect.begin`.
    connection.execute("PRAGMA busy_timeout = 0")
