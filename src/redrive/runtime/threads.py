"""Handlers in threads: a pool of the consumer's own, so that one slow consumer takes no thread of another.

The threads are daemons: a handler that never returns cannot keep the process from ending. A handler in a thread
cannot be stopped, only told (`delivery.is_cancelled`, `delivery.cancelled`); its slot stays taken until it returns.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from redrive.runtime.delivery import CancelReason, Delivery
from redrive.runtime.runners import RunnerHost

Call = Callable[[Delivery, Any], Any]


class ThreadRunner:
    """`call` runs in a thread, in a fresh copy of the context; threads are started when first needed."""

    def __init__(self, host: RunnerHost, call: Call | None = None) -> None:
        self._host = host
        self._call = self._handle if call is None else call
        self._jobs: SimpleQueue[Delivery | None] = SimpleQueue()
        self._ended: deque[tuple[Delivery, Any, BaseException | None]] = deque()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0

    def start(self, delivery: Delivery) -> None:
        self._unfinished += 1
        if self._unfinished > len(self._threads):
            name = f"redrive-{self._host.consumer.queue}-{len(self._threads) + 1}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put(delivery)

    def cancel(self, delivery: Delivery, reason: CancelReason) -> None:
        """Told already: the event is set."""

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)

    def _handle(self, delivery: Delivery, payload: Any) -> Any:
        consumer = self._host.consumer
        return consumer.handler(payload, delivery) if consumer.wants_delivery else consumer.handler(payload)

    def _work(self) -> None:
        monotonic_ms = self._host.app.clock.monotonic_ms
        while (delivery := self._jobs.get()) is not None:
            delivery._started_ms = monotonic_ms() or 1e-9
            payload, result, error = None, None, None
            try:
                payload = self._host.payload(delivery)
                result = self._host.context.copy().run(self._call, delivery, payload)
            except BaseException as raised:  # noqa: BLE001 - whatever a handler raises is its outcome
                error = raised
            self._report(delivery, result, error)
            del delivery, payload, result, error  # an idle thread keeps nothing alive

    def _report(self, delivery: Delivery, result: Any, error: BaseException | None) -> None:
        self._ended.append((delivery, result, error))
        with contextlib.suppress(RuntimeError):  # the loop is closed: the worker gave this delivery up already
            self._host.loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        while self._ended:
            delivery, result, error = self._ended.popleft()
            self._unfinished -= 1
            if error is None:
                self._host.returned(delivery, result)
            else:
                self._host.raised(delivery, error)
