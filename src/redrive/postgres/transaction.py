"""A handler's transaction in the user's own database: its effects, what it publishes, and the end of its claim.

    begin ─execute, publish─> … ─leave─> check the claim's token, end the claim, commit
                                  └─ an exception, another's claim ─> roll back

The rows of the application lie in the same database as redrive's, so there is one commit. What is published inside is a
row of redrive_outbox until the broker has confirmed it; a killed process's rows are sent by the next one's upkeep.

Failures:
- An exception inside, a cancelled task, a killed process, a server that restarts: rolled back by the server; the
  message comes back when its lease ends.
- The claim passed to another worker meanwhile: seen by the check in this very transaction, which rolls back and raises
  `LeaseLostError`. Check and effects are one transaction, so there is no gap.
- The answer of the commit is lost: `BrokerUnavailableError`. The message comes back; where the commit was done, the
  claim says so, and the handler does not run again.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

import psycopg

from redrive.core.ports import ClaimEnd, Outgoing, Unsent
from redrive.core.units import Millis
from redrive.core.wire import message_document, message_from_document
from redrive.errors import BrokerUnavailableError, LeaseLostError, UnsupportedError
from redrive.postgres import claims
from redrive.postgres.database import CALL_MS, Database, Tx, roll_back
from redrive.postgres.failures import mapped
from redrive.postgres.values import text_in, text_out

HOLD_MS: Final[Millis] = 15_000
"""How long the process that committed has to send before others do."""

_CONTROL: Final = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/|\()*(begin|commit|rollback|end|abort|start|savepoint|release|prepare|set\s+transaction)\b",
    re.IGNORECASE | re.DOTALL,
)


class ClaimTransaction:
    """The `Transaction` a handler sees, and the `StoreTransaction` around it."""

    def __init__(self, database: Database, end: ClaimEnd) -> None:
        self._database = database
        self._end = end
        self._guard = threading.Lock()
        self._tx: Tx | None = None
        self._unsent: list[Unsent] = []
        self.is_committed = False

    @property
    def unsent(self) -> Sequence[Unsent]:
        """What was published inside, once it has committed."""
        return self._unsent if self.is_committed else ()

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> psycopg.Cursor:
        """Run one statement of PostgreSQL's SQL, its values as %s. Transaction control is refused. Raises what psycopg
        raises for the application's own mistakes.
        """
        with self._guard:
            connection = self._current().connection
            if _CONTROL.match(sql) is not None:
                raise UnsupportedError(
                    f'"{sql.strip():.40}" would end the transaction of the message. Nothing of it was run.',
                    hint="Leave the with block to commit; raise an exception to roll back.",
                )
            # Binary results: psycopg then sends one statement only, whatever the text holds.
            return connection.execute(sql.encode(), parameters or None, binary=not parameters)

    def publish(self, outgoing: Outgoing) -> None:
        """Send with the commit, or not at all."""
        with self._guard, mapped(self._database.shown):
            self._unsent.append(Unsent(ref=_keep(self._current(), outgoing), outgoing=outgoing))

    def _current(self) -> Tx:
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
        begun = self._database.in_beginning(self._begin)
        try:
            await asyncio.shield(begun)
        except asyncio.CancelledError:
            # The thread may get a connection after we are gone: it must not keep it.
            begun.add_done_callback(
                lambda done: None if done.cancelled() or done.exception() else self._finish(is_commit=False)
            )
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        done = self._database.in_ending(lambda: self._finish(is_commit=kind is None))
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
        database = self._database
        if not database.transactions.acquire(timeout=CALL_MS / 1_000):
            raise BrokerUnavailableError(
                f"All {database.address.pool} transactions of this process are open. Nothing was written.",
                hint="Keep them short, lower the consumer's concurrency, or raise ?pool=… in the store's URL.",
            )
        try:
            connection = database.borrow()
            try:
                with mapped(database.shown):
                    self._tx = database.begin(connection)
            except BaseException:
                connection.close()
                raise
        except BaseException:
            database.transactions.release()
            raise

    def _finish(self, *, is_commit: bool) -> None:
        with self._guard:
            tx, self._tx = self._tx, None
            if tx is None:
                return
            try:
                if is_commit:
                    with mapped(self._database.shown):
                        self._commit(tx)
                    self.is_committed = True
                else:
                    roll_back(tx.connection)
            except BaseException:
                roll_back(tx.connection)
                raise
            finally:
                self._database.give_back(tx.connection)
                self._database.transactions.release()

    def _commit(self, tx: Tx) -> None:
        now = self._database.clock_now
        if not claims.finish(tx, [self._end], now=now, call=uuid.uuid4())[0]:
            ref = self._end.ref
            raise LeaseLostError(
                f'Key "{ref.key}" of queue "{ref.queue}": its claim passed to another worker. '
                "All effects were rolled back."
            )
        tx.connection.execute(b"COMMIT")


# ---------------------------------------------------------------------------------------------------- outbox


def _keep(tx: Tx, outgoing: Outgoing) -> int:
    row = tx.execute(
        "INSERT INTO @outbox (queue, exchange, due_at, message, held_until) VALUES (%s, %s, %s, %s, %s) RETURNING seq",
        (
            text_in(outgoing.queue), text_in(outgoing.exchange), outgoing.due_at,
            text_in(json.dumps(message_document(outgoing.message))), tx.now + HOLD_MS,
        ),
    ).fetchone()  # fmt: skip
    assert row is not None
    return int(row[0])


def take_left(tx: Tx, *, limit: int) -> list[Unsent]:
    """What nobody holds any more, oldest first; held from now on by who asked."""
    rows = tx.execute(
        "UPDATE @outbox o SET held_until = %s FROM (SELECT seq FROM @outbox WHERE held_until <= %s ORDER BY seq "
        "LIMIT %s FOR UPDATE SKIP LOCKED) left_over WHERE o.seq = left_over.seq "
        "RETURNING o.seq, queue, exchange, due_at, message",
        (tx.now + HOLD_MS, tx.now, limit),
    ).fetchall()
    return [
        Unsent(
            ref=seq,
            outgoing=Outgoing(
                queue=text_out(queue),
                exchange=text_out(exchange),
                due_at=due_at,
                message=message_from_document(json.loads(text_out(message))),
            ),
        )
        for seq, queue, exchange, due_at, message in sorted(rows)
    ]


def forget(tx: Tx, seqs: Sequence[int]) -> None:
    """Delete what the broker has. One statement."""
    tx.execute("DELETE FROM @outbox WHERE seq = ANY (%s)", (list(seqs),))
