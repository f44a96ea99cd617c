"""Database: connections to one PostgreSQL database, and the threads that use them.

Every call runs in a thread of its own pool, on a connection that does nothing else meanwhile. Handlers write beside
their claim with plain blocking statements and leases are renewed from a thread, so blocking connections are needed
anyway; one kind is simpler than two.

Nothing lives in a session: no SET, no prepared statement, no temporary table, no advisory lock beyond a transaction.
So PgBouncer may stand between in transaction mode, without any option.

Failures: a server that is gone is seen before an idle connection is used again (its socket can be read), so a restart
costs one new connection. Where the answer of a commit is lost, `BrokerUnavailableError` says that it is not known
whether it happened; every call may be repeated. A server that says nothing for `CALL_MS` is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Final, TypeVar

import psycopg

from redrive.core.ports import Clock
from redrive.core.units import Millis, UnixMs
from redrive.errors import BrokerUnavailableError, ConfigurationError
from redrive.postgres.address import parse
from redrive.postgres.failures import as_redrive_error, is_lost, is_repeated, mapped
from redrive.postgres.schema import migrate, migrations

T = TypeVar("T")

CONNECT_S: Final = 5
CALL_MS: Final[Millis] = 30_000
"""Longest a call may take before its connection is cut."""
LOCK_MS: Final[Millis] = 10_000
REPEATS: Final = 5
"""How often a transaction is tried that the server chose to fail (a deadlock)."""
NOW: Final = "coalesce(%(now)s::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)"
"""The time by which leases are judged: the server's, so that hosts whose clocks differ agree."""

_TABLE: Final = re.compile(r"@(?=[a-z])")
_BEGIN: Final = (
    f"BEGIN; SET LOCAL lock_timeout = {LOCK_MS}; SET LOCAL idle_in_transaction_session_timeout = {2 * CALL_MS}; "  # noqa: S608 - numbers
    "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
).encode()


class Tx:
    """One connection inside a transaction, or between two (a single statement). `now`: the time it began."""

    def __init__(self, connection: psycopg.Connection, *, prefix: str, now: UnixMs) -> None:
        self.connection = connection
        self.now = now
        self._prefix = prefix

    def execute(self, statement: str, values: Sequence[Any] | dict[str, Any] = ()) -> psycopg.Cursor:
        """Run one statement; @name is the table redrive_name."""
        return self.connection.execute(_named(statement, self._prefix), values)


@lru_cache(maxsize=512)
def _named(statement: str, prefix: str) -> bytes:
    return _TABLE.sub(prefix, statement).encode()


class Job:
    """One call in its thread. `interrupt` cuts its connection, from any thread; what it was about to do fails."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._connection: psycopg.Connection | None = None
        self.is_cut = False

    @contextlib.contextmanager
    def on(self, connection: psycopg.Connection) -> Iterator[psycopg.Connection]:
        """Inside, this is the connection to be cut."""
        with self._guard:
            if self.is_cut:
                raise psycopg.OperationalError("it took too long to connect")
            self._connection = connection
        try:
            yield connection
        finally:
            with self._guard:
                self._connection = None

    def interrupt(self) -> None:
        """End the connection as if the server had; nothing more is tried."""
        with self._guard:
            self.is_cut = True
            if self._connection is not None and not self._connection.closed:
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as cut:
                    cut.shutdown(socket.SHUT_RDWR)


class Database:
    """Opened and closed by each store on it; connected while at least one is open."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        """Connects to nothing yet. `clock` None: the server's own, as it should be. Raises `ConfigurationError`."""
        self.address = parse(url)
        self.clock = clock
        self._opens = 0
        self._opening = asyncio.Lock()
        self._idle: deque[psycopg.Connection] = deque()
        self._idle_guard = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._renewing: ThreadPoolExecutor | None = None
        # Of transactions. Those that begin may all be waiting for one that has to end.
        self._beginning: ThreadPoolExecutor | None = None
        self._ending: ThreadPoolExecutor | None = None
        self.transactions = threading.BoundedSemaphore(self.address.pool)

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return self.address.shown

    def sql(self, statement: str) -> bytes:
        """The statement with its tables named."""
        return _named(statement, self.address.prefix)

    @property
    def clock_now(self) -> UnixMs | None:
        """For `NOW`: None where the server's clock counts."""
        return None if self.clock is None else self.clock.now()

    # ------------------------------------------------------------------------------------------- open, close

    async def open(self) -> None:
        """Connect, and bring the tables up to date. Raises `ConfigurationError`, `BrokerUnavailableError`,
        `SchemaTooNewError`; nothing is left open then.
        """
        async with self._opening:
            if self._opens == 0:
                self._threads = ThreadPoolExecutor(self.address.pool, thread_name_prefix="redrive-postgres")
                self._renewing = ThreadPoolExecutor(1, thread_name_prefix="redrive-postgres-renew")
                self._beginning = ThreadPoolExecutor(self.address.pool, thread_name_prefix="redrive-postgres-begin")
                self._ending = ThreadPoolExecutor(self.address.pool, thread_name_prefix="redrive-postgres-end")
                try:
                    await self._call(self._prepare)
                except BaseException:
                    await self._shut()
                    raise
            self._opens += 1

    async def close(self) -> None:
        """Disconnect, once all who opened it have closed it. Calls that run are waited for."""
        async with self._opening:
            if self._opens == 0:
                return
            self._opens -= 1
            if self._opens == 0:
                await self._shut()

    async def _shut(self) -> None:
        for threads in (self._threads, self._renewing, self._beginning, self._ending):
            if threads is not None:
                await asyncio.to_thread(threads.shutdown)
        self._threads = self._renewing = self._beginning = self._ending = None
        self._drop_idle()

    def _prepare(self, job: Job) -> None:
        with self._connection() as connection, job.on(connection):
            encoding = connection.info.parameter_status("server_encoding")
            if encoding != "UTF8":
                raise ConfigurationError(
                    f'Store "{self.shown}" has the encoding {encoding}; redrive needs UTF8. Nothing was written.',
                    hint="Make a database for it: createdb --encoding=UTF8 --template=template0 redrive",
                )
            with mapped(self.shown):
                migrate(connection, migrations(), sql=self.sql, schema=self.address.schema)

    # ------------------------------------------------------------------------------------------- calls

    async def write(self, operation: Callable[[Tx], T], *, undo: Callable[[Tx, T], object] | None = None) -> T:
        """The operation's result once it is committed. Must be safe to run twice. `undo`: what to do with a result
        that nobody waits for any more (the caller was cancelled).
        """
        return await self._call(lambda job: self._transact(operation, job), undo=undo)

    async def step(self, operation: Callable[[Tx], T], *, undo: Callable[[Tx, T], object] | None = None) -> T:
        """As `write`, for an operation that is one statement: one round trip. It must tell the same again where it is
        sent again because its answer was lost.
        """
        return await self._call(lambda job: self._once_more(operation, job), undo=undo)

    async def read(self, operation: Callable[[Tx], T]) -> T:
        """What the operation finds; all of its statements see the same moment only where it is one."""
        return await self._call(lambda job: self._once_more(operation, job))

    async def look(self, operation: Callable[[Tx], T]) -> T:
        """As `read`, of one instant."""

        def frozen(tx: Tx) -> T:
            tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return operation(tx)

        return await self._call(lambda job: self._transact(frozen, job, is_look=True))

    def step_blocking(self, operation: Callable[[Tx], T]) -> T:
        """As `step`, for any thread: on a connection that waits for nothing else."""
        if self._renewing is None:
            raise _not_open(self.shown)
        job = Job()
        future: Future[T] = self._renewing.submit(self._once_more, operation, job)
        try:
            return future.result(CALL_MS / 1_000)
        except TimeoutError:
            job.interrupt()
            return future.result()

    def in_beginning(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Begin a transaction in a thread; it may have to wait for another one's end."""
        return self._submit(self._beginning, work)

    def in_ending(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """End a transaction in a thread that is free for it."""
        return self._submit(self._ending, work)

    def _submit(self, threads: ThreadPoolExecutor | None, work: Callable[[], T]) -> asyncio.Future[T]:
        if threads is None:
            raise _not_open(self.shown)
        return asyncio.get_running_loop().run_in_executor(threads, work)

    async def _call(self, work: Callable[[Job], T], *, undo: Callable[[Tx, T], object] | None = None) -> T:
        if self._threads is None:
            raise _not_open(self.shown)
        loop, job = asyncio.get_running_loop(), Job()
        future = loop.run_in_executor(self._threads, work, job)
        watch = loop.call_later(CALL_MS / 1_000, job.interrupt)
        future.add_done_callback(lambda _: watch.cancel())
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # The thread goes on to its end, which is near; what it took is given back.
            future.add_done_callback(lambda done: self._abandoned(done, undo))
            raise

    def _abandoned(self, done: asyncio.Future[T], undo: Callable[[Tx, T], object] | None) -> None:
        if done.cancelled() or done.exception() is not None or undo is None or self._threads is None:
            return
        result = done.result()
        with contextlib.suppress(RuntimeError):  # the pool is shutting down: its lease ends by itself
            self._threads.submit(lambda: self._transact(lambda tx: undo(tx, result), Job()))

    # ------------------------------------------------------------------------------------------- in a thread

    def _transact(self, operation: Callable[[Tx], T], job: Job, *, is_look: bool = False) -> T:
        for last in range(1, REPEATS + 1):
            try:
                with self._connection() as connection, job.on(connection):
                    return self._transact_on(connection, operation, is_look=is_look)
            except psycopg.Error as error:
                if not is_repeated(error) or last == REPEATS:
                    raise as_redrive_error(error, self.shown) from error
        raise AssertionError("unreachable: the last try returns or raises")

    def _transact_on(self, connection: psycopg.Connection, operation: Callable[[Tx], T], *, is_look: bool) -> T:
        tx = self._begun_look(connection) if is_look else self.begin(connection)
        try:
            result = operation(tx)
            connection.execute(b"COMMIT")
        except BaseException:
            roll_back(connection)
            raise
        return result

    def begin(self, connection: psycopg.Connection) -> Tx:
        """Begin a transaction, in one round trip."""
        cursor = connection.execute(_BEGIN)
        while cursor.nextset():
            pass
        row = cursor.fetchone()
        assert row is not None
        return Tx(connection, prefix=self.address.prefix, now=row[0] if self.clock is None else self.clock.now())

    def _begun_look(self, connection: psycopg.Connection) -> Tx:
        connection.execute(b"BEGIN")
        return Tx(connection, prefix=self.address.prefix, now=0)

    def _once_more(self, operation: Callable[[Tx], T], job: Job) -> T:
        for last in range(1, REPEATS + 1):
            try:
                with self._connection() as connection, job.on(connection):
                    return operation(Tx(connection, prefix=self.address.prefix, now=0))
            except psycopg.Error as error:
                # Lost once: the server may have restarted. Lost again: it is away.
                is_again = is_repeated(error) or (is_lost(error) and last == 1)
                if not is_again or job.is_cut or last == REPEATS:
                    raise as_redrive_error(error, self.shown) from error
        raise AssertionError("unreachable: the last try returns or raises")

    @contextlib.contextmanager
    def _connection(self) -> Iterator[psycopg.Connection]:
        connection = self.borrow()
        try:
            yield connection
        finally:
            self.give_back(connection)

    def borrow(self) -> psycopg.Connection:
        """A connection that is alive as far as one can know without asking. Raises `BrokerUnavailableError`."""
        while True:
            with self._idle_guard:
                found = self._idle.pop() if self._idle else None
            if found is None:
                return self._connect()
            if _is_alive(found):
                return found
            found.close()

    def give_back(self, connection: psycopg.Connection) -> None:
        """Keep it for the next call, unless it is broken or a replica's, or somebody left a transaction open in it."""
        is_idle = connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
        if connection.closed or not is_idle or self._threads is None:
            connection.close()
            return
        with self._idle_guard:
            self._idle.append(connection)

    def _connect(self) -> psycopg.Connection:
        with mapped(self.shown):
            return psycopg.connect(
                self.address.conninfo,
                autocommit=True,
                prepare_threshold=None,
                client_encoding="UTF8",
                connect_timeout=CONNECT_S,
            )

    def _drop_idle(self) -> None:
        with self._idle_guard:
            idle, self._idle = self._idle, deque()
        for connection in idle:
            connection.close()


def roll_back(connection: psycopg.Connection) -> None:
    """End the transaction; a connection on which even that fails is closed."""
    try:
        connection.execute(b"ROLLBACK")
    except psycopg.Error:
        connection.close()


def _is_alive(connection: psycopg.Connection) -> bool:
    """Whether the server has said nothing since: on an idle connection it only ever says that it ends."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def _not_open(shown: str) -> BrokerUnavailableError:
    return BrokerUnavailableError(f'Store "{shown}" is not open. Nothing was read or written.', hint="Open it first.")
