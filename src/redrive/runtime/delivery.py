"""Delivery: what a handler is told beside the payload, and what it may ask for.

One object per hand-over serves both the handler and the runtime; the underscored part is the runtime's. Its state is
the table of `redrive.core.delivery`: SETTLED once an end is decided (a commit may still be refused by the fence) or a
transaction has committed (`_committed`); LOST once its lease is over, whatever the handler still does.
`_cancel_reason` says why the runtime wants the handler to stop; None while it does not.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import replace
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from redrive.core.delivery import DeliveryState
from redrive.core.kept import kept_in, with_kept
from redrive.core.message import Headers, Message
from redrive.core.origin import origin_of
from redrive.core.policy.retry import Retry
from redrive.core.ports import End, Ledger, LedgerTransaction, Published, Taken, Transaction
from redrive.core.units import Duration, UnixMs, duration_ms
from redrive.errors import LeaseLostError, UnsupportedError
from redrive.runtime.outgoing import make_outgoing

if TYPE_CHECKING:
    from redrive.runtime.app import Redrive
    from redrive.runtime.consumer import Consumer


class CancelReason(StrEnum):
    """Why the runtime stops a handler."""

    TIMEOUT = "timeout"
    LEASE_LOST = "lease_lost"
    SHUTDOWN = "shutdown"


class Host(Protocol):
    """What a delivery needs of the pipeline it belongs to."""

    app: Redrive
    consumer: Consumer
    ledger: Ledger
    loop: asyncio.AbstractEventLoop

    def processed_end(self, delivery: Delivery) -> End:
        """The end of a delivery whose handler succeeded."""
        ...

    def request_cancel(self, delivery: Delivery, reason: CancelReason) -> None:
        """Have the handler stopped."""
        ...


class Delivery:
    """One hand-over of one message; the optional second parameter of a handler.

    Everything on it may be read from any thread.
    """

    __slots__ = (
        "_attempt",
        "_cancel_reason",
        "_cancelled",
        "_committed",
        "_deadline",
        "_host",
        "_kept",
        "_lease_ms",
        "_lease_until",
        "_message",
        "_running",
        "_started_at",
        "_started_ms",
        "_state",
        "_taken",
    )

    def __init__(self, host: Host, taken: Taken, *, attempt: int, started_at: UnixMs, lease_until: UnixMs) -> None:
        self._host = host
        self._taken = taken
        self._message = taken.received.message
        self._attempt = attempt
        self._started_at = started_at
        self._started_ms = 0.0
        self._lease_until = lease_until
        self._lease_ms = 0
        self._state = DeliveryState.RECEIVED
        self._committed = False
        self._cancel_reason: CancelReason | None = None
        self._cancelled: threading.Event | None = None
        self._deadline: UnixMs | None = None
        self._running: Any = None
        self._kept: bytes | None = None

    @property
    def message(self) -> Message:
        """The whole message, with the body's exact bytes."""
        return self._message

    @property
    def headers(self) -> Headers:
        """The message's headers, every kind as the producer sent it."""
        return self._message.headers

    @property
    def attempt(self) -> int:
        """1, 2, …: failed and lost starts of this message since its last redrive, plus this one."""
        return self._attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts there are; in the last one a failure is final."""
        return self._retry.max_attempts

    @property
    def _retry(self) -> Retry:
        """The consumer's rule; where it has none of its own, the producer's."""
        consumer, given = self._host.consumer, self._taken.received.retry
        return consumer.retry if given is None or consumer.has_own_retry else given

    @property
    def queue(self) -> str:
        """The consumer queue."""
        return self._host.consumer.queue

    @property
    def routing_key(self) -> str:
        """What the message was first published with, whatever way it came back after a failure."""
        key = self._origin()[1]
        return self.queue if key is None else key

    @property
    def exchange(self) -> str:
        """Where the message was first published to; "" straight to a queue."""
        return self._origin()[0] or ""

    @property
    def tenant(self) -> str | None:
        """Whose message it is, as published."""
        return self._message.tenant

    @property
    def key(self) -> str | None:
        """The idempotency key, or None where there is none."""
        return self._message.key

    @property
    def trace_id(self) -> str | None:
        """The trace this message belongs to, as published."""
        return self._message.properties.trace_id

    @property
    def kept(self) -> dict[str, Any]:
        """What `keep` kept, in this attempt or an earlier one; empty at first. A redriven message still has it."""
        return kept_in(self._message.body if self._kept is None else self._kept)

    def keep(self, **kept: Any) -> None:
        """Keep this with the message for the next attempt: what is done and must not be done again.

            done = set(delivery.kept.get("done", ()))
            …
            delivery.keep(done=sorted(done))
            raise RetryLater("30s")

        Written with the end of this attempt, when it is retried or dead-lettered; a redrive sends it along. Anything
        JSON holds, in place of all that was kept before. Raises `UnsupportedError` where the body is no JSON object
        (it has no place for it), and ValueError for what JSON cannot hold.
        """
        body = with_kept(self._message.body, kept)
        if body is None:
            raise UnsupportedError("The body of this message is no JSON object: nothing can be kept in it.")
        self._kept = body

    @property
    def deadline(self) -> UnixMs | None:
        """When this attempt's time is over (unix ms), or None where the consumer has no timeout."""
        return self._deadline

    @property
    def token(self) -> int:
        """The fencing token: grows with every hand-over of this message. Give it to a store that can compare, so that
        an older hand-over of the same message cannot write after a newer one.
        """
        return self._taken.received.lease.token

    @property
    def is_cancelled(self) -> bool:
        """Whether the handler should stop: its lease is lost, its time is over, or the worker stops at once."""
        return self._cancel_reason is not None

    @property
    def cancelled(self) -> threading.Event:
        """Set when `is_cancelled` turns true. A handler in a thread waits on it, or asks now and then."""
        if self._cancelled is None:
            self._cancelled = threading.Event()
            if self._cancel_reason is not None:
                self._cancelled.set()
        return self._cancelled

    async def publish(self, queue: str, payload: Any, **arguments: Any) -> Published:
        """As `Redrive.publish`, with this message's trace id and tenant unless others are given.

        Sent at once, whatever becomes of this delivery; to send only if it is processed, use `transaction()`.
        """
        return await self._host.app.publish(queue, payload, **self._inherited(arguments))

    def publish_sync(self, queue: str, payload: Any, **arguments: Any) -> Published:
        """`publish` for handlers in threads and processes: returns when the message is durable."""
        future = asyncio.run_coroutine_threadsafe(self.publish(queue, payload, **arguments), self._host.loop)
        return future.result()

    def extend_lease(self, duration: Duration) -> bool:
        """Hold this message for at least `duration` from now, and renew it by that much from then on.

        Not needed for long handlers: leases are renewed by themselves. False: the message is lost already, and the
        result will be refused. Blocks for one write of the store. Raises `BrokerUnavailableError`.
        """
        lease_ms = max(duration_ms(duration, field="extend_lease"), self._host.consumer.lease_ms)
        asked_at = self._host.app.clock.now()
        is_held = self._is_open and self._host.ledger.renew([self._taken], lease_ms=lease_ms)[0]
        if is_held:
            self._lease_ms = lease_ms
            self._lease_until = asked_at + lease_ms
        else:
            self._host.request_cancel(self, CancelReason.LEASE_LOST)
        return is_held

    def transaction(self) -> HandlerTransaction:
        """Effects and the end of this message in one transaction: both happen, once, or neither.

            async with delivery.transaction() as tx:      # `with` in a thread
                tx.execute("UPDATE balance SET …", (…,))
                tx.publish("receipts", {"order": 1})

        The statements run in the SQLite file of the embedded broker, or of the store beside another broker. Leaving
        the block settles the message as processed: what the handler raises after it is reported and changes nothing.
        An exception inside rolls back and is treated as any failure. Raises `LeaseLostError` after a rollback where
        the message is another worker's by now, and `UnsupportedError` where the store has no transactions or, beside
        another broker, the message has no idempotency key.

        Killed inside: nothing happened, and the message comes again. Killed after: all of it is true; a copy the
        broker hands out again finds its key processed and is acknowledged unseen, and what was published inside is
        sent by the next upkeep of any worker on this store, at least once and always under the same message id.
        """
        return HandlerTransaction(self, self._host.ledger.transaction(self._host.processed_end(self)))

    @property
    def _is_open(self) -> bool:
        """Whether an end can still be decided."""
        return self._state is DeliveryState.RECEIVED or self._state is DeliveryState.RUNNING

    def _cancel(self, reason: CancelReason) -> None:
        """Tell the handler; stopping it is the runner's part. A lost lease stays the reason, whatever comes later."""
        if self._cancel_reason is not CancelReason.LEASE_LOST:
            self._cancel_reason = reason
        if self._cancelled is not None:
            self._cancelled.set()

    def _show(self, body: bytes) -> None:
        """Let the handler see this body; what is stored stays as it is."""
        self._message = replace(self._message, body=body, original=self._message.original_body)

    def _origin(self) -> tuple[str | None, str | None]:
        return origin_of(self._message, queue=self.queue, wiring=self._host.app.topology.wiring(self.queue))

    def _inherited(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"tenant": self.tenant, "trace_id": self.trace_id, **arguments}


class HandlerStatements:
    """What a handler does inside `delivery.transaction()`."""

    def __init__(self, delivery: Delivery, transaction: Transaction) -> None:
        self._delivery = delivery
        self._transaction = transaction

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        """Run one statement in the store's SQL; returns its cursor."""
        return self._transaction.execute(sql, parameters)

    def publish(self, queue: str, payload: Any, **arguments: Any) -> None:
        """Send with the commit, or not at all. Arguments as in `Redrive.publish`."""
        delivery = self._delivery
        app = delivery._host.app
        inherited = delivery._inherited(arguments)
        limit = app.settings.max_body_bytes
        outgoing = make_outgoing(
            queue, payload, app.clock.now(), max_body_bytes=limit, keyed=app.gives_keys, **inherited
        )
        for each in app.routed(outgoing):
            self._transaction.publish(each)


class HandlerTransaction(
    AbstractContextManager[HandlerStatements, None], AbstractAsyncContextManager[HandlerStatements, None]
):
    """`with` or `async with`: the ledger's transaction, which marks its delivery as settled once it has committed."""

    def __init__(self, delivery: Delivery, transaction: LedgerTransaction) -> None:
        self._delivery = delivery
        self._transaction = transaction

    def __enter__(self) -> HandlerStatements:
        self._check()
        return HandlerStatements(self._delivery, self._transaction.__enter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._transaction.__exit__(kind, error, trace)
        except LeaseLostError:
            self._lost()
            raise
        self._ended(error)

    async def __aenter__(self) -> HandlerStatements:
        self._check()
        return HandlerStatements(self._delivery, await self._transaction.__aenter__())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._transaction.__aexit__(kind, error, trace)
        except LeaseLostError:
            self._lost()
            raise
        self._ended(error)

    def _check(self) -> None:
        if not self._delivery._is_open:
            raise LeaseLostError("This delivery is settled or its lease is lost; nothing was written.")

    def _lost(self) -> None:
        self._delivery._state = DeliveryState.LOST

    def _ended(self, error: BaseException | None) -> None:
        if error is None:
            self._delivery._state = DeliveryState.SETTLED
            self._delivery._committed = True
