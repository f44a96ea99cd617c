"""Publishes of one turn of the event loop go to the writer as one batch.

A web app with a hundred requests in flight publishes a hundred single messages. Each of them as an operation of its
own would be four statements; together they are four statements for all, and each caller still gets its own answer
after the same commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from redrive.core.ports import Outgoing, Published
from redrive.errors import BrokerUnavailableError
from redrive.sqlite.file import SqliteFile
from redrive.sqlite.writer import Tx

Step = Callable[[Tx, Sequence[Outgoing]], list[Published]]
_Waiting = tuple[Sequence[Outgoing], "asyncio.Future[list[Published]]"]

MOST_MESSAGES: Final = 1_000
"""In one batch, so that one write stays short; more of them are several batches of one group commit."""


class Together:
    """Collects what is published before the loop turns, and carries it out with `step`."""

    def __init__(self, file: SqliteFile, step: Step) -> None:
        self._file = file
        self._step = step
        self._waiting: list[_Waiting] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def publish(self, batch: Sequence[Outgoing]) -> list[Published]:
        """One answer per message, once all of them are durable. A cancelled caller's messages may still get in."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Published]] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._send, loop)
        self._waiting.append((batch, answer))
        return await answer

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        group: list[_Waiting] = []
        count = 0
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if group and count + len(each[0]) > MOST_MESSAGES:
                self._start(loop, group)
                group, count = [], 0
            group.append(each)
            count += len(each[0])
        self._start(loop, group)

    def _start(self, loop: asyncio.AbstractEventLoop, group: list[_Waiting]) -> None:
        task = loop.create_task(self._carry_out(group))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _carry_out(self, group: list[_Waiting]) -> None:
        batch = [outgoing for part, _ in group for outgoing in part]
        try:
            answers = await self._file.write(lambda tx: self._step(tx, batch))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer to those who wait
            if len(group) == 1 or isinstance(error, BrokerUnavailableError):
                _refuse(group, error)
            else:
                # One of them cannot be stored: the others must not suffer for it.
                for each in group:
                    await self._carry_out([each])
            return
        start = 0
        for part, answer in group:
            if not answer.done():
                answer.set_result(answers[start : start + len(part)])
            start += len(part)


def _refuse(group: list[_Waiting], error: Exception) -> None:
    for _, answer in group:
        if not answer.done():
            answer.set_exception(error)
