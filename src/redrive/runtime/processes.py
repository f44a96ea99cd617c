"""Handlers in processes of their own: one child per slot, started when first needed, kept for the next message.

A child can be killed: on its timeout, when its lease is lost, at shutdown. A child that dies by itself (segmentation
fault, out of memory, `os._exit`) fails this attempt with WORKER_LOST; the worker and its other messages go on.
Each child belongs to one thread of this process, which speaks to it over a pipe and does nothing else.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import multiprocessing
import pickle
import threading
from dataclasses import replace
from typing import Any, Final

from redrive.runtime import child as inside
from redrive.runtime.delivery import CancelReason, Delivery
from redrive.runtime.runners import RunnerHost
from redrive.runtime.threads import ThreadRunner

JOIN_S: Final = 1.0
"""How long a killed child may take to be gone."""


class ChildLostError(Exception):
    """The process of a handler died before it answered; whether the effect happened is not known."""


class _Child:
    """One process and our end of its pipe."""

    def __init__(self, host: RunnerHost) -> None:
        consumer = host.consumer
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, consumer.handler, consumer.wants_delivery)
        name = f"redrive-{consumer.queue}"
        self.process = context.Process(target=inside.main, args=arguments, name=name, daemon=True)
        self.process.start()
        theirs.close()

    def end(self) -> int | None:
        """Kill it if it lives; its exit code."""
        self.pipe.close()
        self.process.kill()
        self.process.join(JOIN_S)
        return self.process.exitcode


class ProcessRunner(ThreadRunner):
    """A `ThreadRunner` whose threads hand each call on to a child."""

    def __init__(self, host: RunnerHost) -> None:
        super().__init__(host, self._call_child)
        self._local = threading.local()
        self._lock = threading.Lock()
        self._children: set[_Child] = set()
        # Children ignore SIGTERM; multiprocessing would wait for them for ever at exit.
        atexit.register(self.close)

    def cancel(self, delivery: Delivery, reason: CancelReason) -> None:  # noqa: ARG002 - killed for every reason
        with self._lock:
            running = delivery._running
            if isinstance(running, _Child):
                running.process.kill()

    def close(self) -> None:
        super().close()
        atexit.unregister(self.close)
        with self._lock:
            children, self._children = self._children, set()
        for child in children:
            child.end()

    def _call_child(self, delivery: Delivery, payload: Any) -> Any:
        child = self._ready_child()
        with self._lock:
            if delivery._cancel_reason is not None:
                raise asyncio.CancelledError
            delivery._running = child
        try:
            word, value = self._converse(child, delivery, payload)
        except (EOFError, OSError) as error:
            raise self._lost(child) from error
        finally:
            with self._lock:
                delivery._running = None
        if word == inside.RETURNED:
            return value
        raised, trace = value
        with contextlib.suppress(AttributeError):
            setattr(raised, inside.TRACEBACK_NOTE, trace)
        raise raised

    def _converse(self, child: _Child, delivery: Delivery, payload: Any) -> tuple[str, Any]:
        facts = inside.Facts(
            # A frozen empty mapping does not pickle; a dict does.
            message=replace(delivery.message, headers=dict(delivery.headers)),
            attempt=delivery.attempt,
            max_attempts=delivery.max_attempts,
            queue=delivery.queue,
            deadline=delivery.deadline,
            token=delivery.token,
        )
        child.pipe.send_bytes(pickle.dumps((payload, facts, self._host.consumer.http_status)))
        while True:
            word, value = pickle.loads(child.pipe.recv_bytes())  # noqa: S301 - from our own child
            if word in {inside.RETURNED, inside.RAISED}:
                return word, value
            child.pipe.send_bytes(pickle.dumps(self._answer(delivery, word, value)))

    @staticmethod
    def _answer(delivery: Delivery, word: str, value: Any) -> tuple[Any, BaseException | None]:
        try:
            if word == inside.PUBLISH:
                queue, payload, arguments = value
                return delivery.publish_sync(queue, payload, **arguments), None
            if word == inside.KEEP:
                delivery.keep(**value)
                return None, None
            return delivery.extend_lease(value), None
        except Exception as error:  # noqa: BLE001 - the child's handler asked, the child's handler shall see it
            return None, error

    def _ready_child(self) -> _Child:
        child: _Child | None = getattr(self._local, "child", None)
        if child is None or not child.process.is_alive():
            if child is not None:
                self._lost(child)
            child = self._local.child = _Child(self._host)
            with self._lock:
                self._children.add(child)
        return child

    def _lost(self, child: _Child) -> ChildLostError:
        code = child.end()
        self._local.child = None
        with self._lock:
            self._children.discard(child)
        return ChildLostError(f"The handler's process died (exit code {code}) before it answered.")
