"""The inside of a handler's own process (`process=True`): waits for work on a pipe, runs it, answers.

The child ignores SIGINT and SIGTERM (its parent decides about stopping, and kills it where it must) and ends when its
parent does, however that ended. What it says is a pair (word, value); what it hears is the next call or the answer to
its own request.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import parent_process
from typing import Any, Final

from redrive.core.kept import kept_in
from redrive.core.message import Headers, Message
from redrive.core.ports import Published
from redrive.core.units import Duration, UnixMs
from redrive.errors import UnsupportedError

RETURNED: Final = "returned"
RAISED: Final = "raised"
PUBLISH: Final = "publish"
EXTEND: Final = "extend"
KEEP: Final = "keep"

TRACEBACK_NOTE: Final = "_redrive_traceback"
"""Attribute of an exception from a child: its traceback as text, which does not pickle."""


class ForeignError(Exception):
    """Stands for an exception of a handler's process that could not be sent back itself; says its type and text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What of a delivery crosses into the child."""

    message: Message
    attempt: int
    max_attempts: int
    queue: str
    deadline: UnixMs | None
    token: int


class ChildDelivery:
    """`Delivery` as a handler in its own process sees it. It is never told to stop: it is killed."""

    def __init__(self, facts: Facts, ask: Callable[[str, Any], Any]) -> None:
        self._facts = facts
        self._ask = ask
        self.cancelled = threading.Event()
        self.is_cancelled = False
        self._kept: dict[str, Any] | None = None

    @property
    def message(self) -> Message:
        return self._facts.message

    @property
    def headers(self) -> Headers:
        return self._facts.message.headers

    @property
    def attempt(self) -> int:
        return self._facts.attempt

    @property
    def max_attempts(self) -> int:
        return self._facts.max_attempts

    @property
    def queue(self) -> str:
        return self._facts.queue

    @property
    def tenant(self) -> str | None:
        return self._facts.message.tenant

    @property
    def key(self) -> str | None:
        return self._facts.message.key

    @property
    def trace_id(self) -> str | None:
        return self._facts.message.properties.trace_id

    @property
    def deadline(self) -> UnixMs | None:
        return self._facts.deadline

    @property
    def token(self) -> int:
        return self._facts.token

    def publish_sync(self, queue: str, payload: Any, **arguments: Any) -> Published:
        """Send through the parent; returns when the message is durable."""
        answer: Published = self._ask(PUBLISH, (queue, payload, arguments))
        return answer

    @property
    def kept(self) -> dict[str, Any]:
        """As `Delivery.kept`."""
        return kept_in(self._facts.message.body) if self._kept is None else dict(self._kept)

    def keep(self, **kept: Any) -> None:
        """As `Delivery.keep`."""
        self._ask(KEEP, kept)
        self._kept = kept

    def extend_lease(self, duration: Duration) -> bool:
        """As `Delivery.extend_lease`."""
        return bool(self._ask(EXTEND, duration))

    def transaction(self) -> Any:
        """Not here: the transaction belongs to the parent's connection."""
        raise UnsupportedError(
            "delivery.transaction() is not available in a process handler. Nothing was written.",
            hint="Use an async handler, or a plain one without process=True.",
        )


def main(pipe: connection.Connection, handler: Callable[..., Any], wants_delivery: bool) -> None:  # noqa: FBT001
    """The child's life. `pipe` is its end of the pair."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    while True:
        try:
            payload, facts, wants_result = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from our own parent
        except EOFError:
            return
        answer = _run(pipe, handler, (payload, facts), wants_delivery=wants_delivery)
        if not wants_result and answer[0] == RETURNED:
            answer = (RETURNED, None)
        try:
            pipe.send_bytes(_packed(answer))
        except OSError:
            return


def _run(
    pipe: connection.Connection, handler: Callable[..., Any], call: tuple[Any, Facts], *, wants_delivery: bool
) -> tuple[str, Any]:
    payload, facts = call

    def ask(word: str, value: Any) -> Any:
        pipe.send_bytes(pickle.dumps((word, value)))
        answer, error = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from our own parent
        if error is not None:
            raise error
        return answer

    try:
        result = handler(payload, ChildDelivery(facts, ask)) if wants_delivery else handler(payload)
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
        return RAISED, (error, "".join(traceback.format_exception(error)))
    return RETURNED, getattr(result, "status_code", result)


def _packed(answer: tuple[str, Any]) -> bytes:
    """The answer as bytes. An exception that does not survive pickling becomes a `ForeignError` of the same words."""
    try:
        packed = pickle.dumps(answer)
        pickle.loads(packed)  # noqa: S301 - our own bytes: an exception may pickle and not come back
    except Exception as problem:  # noqa: BLE001 - pickling runs the user's code
        word, value = answer
        if word == RAISED:
            error, trace = value
            kind = type(error)
            return pickle.dumps((RAISED, (ForeignError(f"{kind.__module__}.{kind.__qualname__}: {error}"), trace)))
        return pickle.dumps((RAISED, (ForeignError(f"the result cannot be sent back: {problem}"), "")))
    return packed


def _end_with_the_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
