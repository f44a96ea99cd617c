"""A handler's transaction on the file: its effects and the message's end, together or not at all.

Begun, it holds the file's write lock: other writes of this and of every other process wait until it ends. So it may
be open for `HOLD_MAX_MS` at most; then it is rolled back by the watch thread, and its next statement or its end
raises `LeaseLostError`. Inside, everything goes through the transaction: `await app.publish()` would wait for the
lock that the transaction itself holds, and fail after the lock timeout.

Failures:
- An exception inside, a cancelled task, a killed process: SQLite rolls back; the message is still leased and comes
  back when its lease ends.
- The lease or claim passed to another worker meanwhile: seen by the fence check in this very transaction, which
  then rolls back and raises `LeaseLostError`. Because check and effects are one transaction there is no gap.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, Self

from redrive.core.ports import Outgoing
from redrive.errors import LeaseLostError, UnsupportedError
from redrive.sqlite.connect import begin, turn_not_given
from redrive.sqlite.failures import as_redrive_error, mapped
from redrive.sqlite.file import Live, SqliteFile
from redrive.sqlite.writer import Tx

HOLD_MAX_MS: Final = 4_000
"""Longest a transaction may hold the write lock; below the default lock timeout, so that waiting writers succeed."""

# Not the plain words: a statement the user writes must never meet our prepared one, which was authorized before.
_COMMIT: Final = "COMMIT -- redrive"
_ROLLBACK: Final = "ROLLBACK -- redrive"


class SqliteTransaction:
    """The `Transaction` a handler sees, and the context manager around it. `settle` makes the end true and says
    whether the fence allowed it; `publish` keeps a message that is to be sent. Both run inside.
    """

    def __init__(
        self,
        file: SqliteFile,
        name: str,
        *,
        settle: Callable[[Tx], bool],
        publish: Callable[[Tx, Outgoing], None],
    ) -> None:
        self._file = file
        self._name = name
        self._settle = settle
        self._keep = publish
        self.is_committed = False
        self._open = ExitStack()
        # Guards the connection: the watch thread may roll back while the handler's thread is between statements.
        self._guard = threading.Lock()
        self._tx: Tx | None = None
        self._live: Live | None = None
        self._deadline = 0.0
        self._is_expired = False

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> sqlite3.Cursor:
        """Run one statement of SQLite's SQL; tables of the application may be created in the file. Transaction
        control is refused. Raises what sqlite3 raises for the application's own mistakes.
        """
        with self._guard:
            return self._current().execute(sql, parameters)

    def publish(self, outgoing: Outgoing) -> None:
        """Send with the commit, or not at all."""
        with self._guard, mapped(self._file.path):
            self._keep(self._current(), outgoing)

    def _current(self) -> Tx:
        if self._is_expired:
            raise LeaseLostError(
                f"The transaction was open for more than {HOLD_MAX_MS} ms and was rolled back; the message comes back.",
                hint="Do slow work before the transaction, only the writes inside.",
            )
        if self._tx is None:
            raise UnsupportedError("This transaction is not open. Nothing was written.", hint="Use it inside `with`.")
        return self._tx

    # ------------------------------------------------------------------------------------------- in a thread

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._finish(is_commit=kind is None)

    # ------------------------------------------------------------------------------------------- on the loop

    async def __aenter__(self) -> Self:
        begun = asyncio.get_running_loop().run_in_executor(self._file.live.starters, self._begin)
        try:
            await asyncio.shield(begun)
        except asyncio.CancelledError:
            # The thread may get the lock after we are gone: it must not keep it.
            begun.add_done_callback(lambda done: None if done.cancelled() or done.exception() else self._abandon())
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self._finish(is_commit=False)
            return
        done = asyncio.get_running_loop().run_in_executor(
            self._file.live.finisher, lambda: self._finish(is_commit=True)
        )
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            # The commit cannot be taken back; wait for its answer, then pass the cancellation on.
            await asyncio.wait({done})
            if done.exception() is not None:
                raise done.exception() from None  # type: ignore[misc]
            raise

    # ------------------------------------------------------------------------------------------- both

    def _begin(self) -> None:
        live, wait_ms = self._file.live, self._file.lock_timeout_ms
        live.check_file()
        asked_at = time.monotonic()
        if not live.turn.acquire(wait_ms / 1_000):
            raise turn_not_given(self._file.path, wait_ms)
        self._open.callback(live.turn.release)
        try:
            connection = self._open.enter_context(live.borrowed_writer())
            left_ms = wait_ms - (time.monotonic() - asked_at) * 1_000
            begin(connection, path=self._file.path, wait_ms=max(0.0, left_ms))
            connection.set_authorizer(_no_transaction_control)
        except sqlite3.Error as error:
            self._open.close()
            raise as_redrive_error(error, self._file.path) from error
        except BaseException:
            self._open.close()
            raise
        self._deadline = time.monotonic() + HOLD_MAX_MS / 1_000
        self._tx = self._file.make_tx(connection, self._file.clock.now())
        self._live = live
        live.ticks.add(self._expire)
        live.watch.ask()

    def _finish(self, *, is_commit: bool) -> None:
        with self._guard:
            if not is_commit:
                self._release(_ROLLBACK)
                return
            try:
                tx = self._current()
                self._settle_in(tx)
            except BaseException:
                self._release(_ROLLBACK)
                raise
            woken = tx.woken
            with mapped(self._file.path):
                self._release(_COMMIT)
            self.is_committed = True
        assert self._live is not None
        self._live.watch.wake(woken)

    def _settle_in(self, tx: Tx) -> None:
        with mapped(self._file.path):
            tx.connection.set_authorizer(None)
            is_settled = self._settle(tx)
        if not is_settled:
            raise LeaseLostError(f"{self._name}: its lease passed to another worker. All effects were rolled back.")

    def _release(self, statement: str) -> None:
        """Commit or roll back, and hand the lock on; a commit that fails rolls back."""
        tx, self._tx = self._tx, None
        if tx is None or self._live is None:
            return
        self._live.ticks.discard(self._expire)
        try:
            tx.connection.set_authorizer(None)
            tx.connection.execute(statement)
        except BaseException:
            if tx.connection.in_transaction:
                tx.connection.execute(_ROLLBACK)
            raise
        finally:
            self._open.close()

    def _expire(self) -> None:
        """From the watch thread: give the lock back where the handler forgot it."""
        if time.monotonic() >= self._deadline and self._guard.acquire(blocking=False):
            try:
                self._is_expired = self._tx is not None
                self._release(_ROLLBACK)
            finally:
                self._guard.release()

    def _abandon(self) -> None:
        self._finish(is_commit=False)


def _no_transaction_control(action: int, *_: object) -> int:
    is_control = action in {sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT, sqlite3.SQLITE_ATTACH}
    return sqlite3.SQLITE_DENY if is_control else sqlite3.SQLITE_OK
