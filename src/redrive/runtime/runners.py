"""What every way of running a handler has in common, and the one for `async def` handlers."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any, Protocol

from redrive.runtime.delivery import CancelReason, Delivery, Host


class RunnerHost(Host, Protocol):
    """What a runner tells the pipeline; both on the event loop. Every handler runs in its own copy of `context`."""

    context: contextvars.Context

    def payload(self, delivery: Delivery) -> Any:
        """What the handler is called with; from any thread. What it raises goes to `raised`, as if the handler had."""
        ...

    def returned(self, delivery: Delivery, result: Any) -> None:
        """The handler came to its end."""
        ...

    def raised(self, delivery: Delivery, error: BaseException) -> None:
        """The handler raised, was stopped, or its process died."""
        ...


class Runner(Protocol):
    """Runs handlers of one consumer. Every `start` ends in exactly one `returned` or `raised`."""

    def start(self, delivery: Delivery) -> None:
        """Begin; called on the loop, at most `concurrency` at once."""
        ...

    def cancel(self, delivery: Delivery, reason: CancelReason) -> None:
        """Stop this handler as far as its kind can be stopped; may be called from any thread."""
        ...

    def close(self) -> None:
        """Nothing is started any more."""
        ...


class TaskRunner:
    """Each handler is a task of its own: its own context variables, its own `asyncio.current_task()`."""

    def __init__(self, host: RunnerHost) -> None:
        self._host = host
        self._handler = host.consumer.handler
        self._wants_delivery = host.consumer.wants_delivery
        self._monotonic_ms = host.app.clock.monotonic_ms
        self._name = f"redrive {host.consumer.queue}"

    def start(self, delivery: Delivery) -> None:
        run, context = self._run(delivery), self._host.context.copy()
        loop = self._host.loop
        if loop.get_task_factory() is None:
            # What `create_task` does then, but for a detour per message.
            delivery._running = asyncio.Task(run, loop=loop, name=self._name, context=context)
        else:
            delivery._running = loop.create_task(run, name=self._name, context=context)

    def cancel(self, delivery: Delivery, reason: CancelReason) -> None:  # noqa: ARG002 - all reasons stop a task alike
        self._host.loop.call_soon_threadsafe(self._cancel, delivery)

    def close(self) -> None:
        """Tasks end by themselves."""

    @staticmethod
    def _cancel(delivery: Delivery) -> None:
        # A task cancelled before its first step never runs, and would never report its end.
        if delivery._started_ms and delivery._running is not None:
            delivery._running.cancel()

    async def _run(self, delivery: Delivery) -> None:
        delivery._started_ms = self._monotonic_ms() or 1e-9
        try:
            if delivery._cancel_reason is not None:
                raise asyncio.CancelledError  # noqa: TRY301 - as if it had been cancelled a moment later
            # Made here and not when the batch is taken: then one payload at a time is alive, and still in the cache.
            payload = self._host.payload(delivery)
            call: Coroutine[Any, Any, Any] = (
                self._handler(payload, delivery) if self._wants_delivery else self._handler(payload)
            )
            result = await call
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome, never the worker's end
            self._host.raised(delivery, error)
        else:
            self._host.returned(delivery, result)
