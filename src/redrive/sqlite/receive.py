"""Waiting for messages: try, wait for something to change, try again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from redrive.core.units import Millis, UnixMs
from redrive.errors import RedriveError
from redrive.sqlite.file import SqliteFile
from redrive.sqlite.queue import next_at
from redrive.sqlite.waiting import Waiter
from redrive.sqlite.writer import Tx

Rows = TypeVar("Rows")
T = TypeVar("T")
_Tried = tuple["Rows | None", "UnixMs | None"]


async def receive(
    file: SqliteFile,
    queue: str,
    *,
    step: Callable[[Tx], Rows | None],
    values: Callable[[Rows], list[T]],
    hand_back: Callable[[Tx, Sequence[T]], None],
    wait_ms: Millis,
) -> list[T]:
    """What `step` takes from the queue, as `values` makes of it; [] after `wait_ms` without anything.

    `step` runs in the writer thread and answers None where there is nothing; `values` runs in the receiver's.

    A receiver that is cancelled while its step is being committed hands the messages back at no cost to them.
    """

    def tried(tx: Tx) -> _Tried[Rows]:
        rows = step(tx)
        return rows, None if rows is not None or wait_ms <= 0 else next_at(tx.connection, queue)

    def undo(result: _Tried[Rows]) -> None:
        rows = result[0]
        if rows is not None:
            _hand_back(file, lambda tx: hand_back(tx, values(rows)))

    if wait_ms <= 0:
        rows, _ = await file.write(tried, is_synced=False, undo=undo)
        return [] if rows is None else values(rows)
    give_up_at = file.clock.monotonic_ms() + wait_ms
    waiter = Waiter(queue)
    watch = file.live.watch
    watch.add(waiter)
    try:
        while True:
            waiter.rearm()
            rows, found_at = await file.write(tried, is_synced=False, undo=undo)
            if rows is not None:
                return values(rows)
            left_ms = give_up_at - file.clock.monotonic_ms()
            if left_ms <= 0:
                return []
            await waiter.wait(file.clock, limit_ms=left_ms, next_at=found_at)
    finally:
        watch.remove(waiter)


def _hand_back(file: SqliteFile, operation: Callable[[Tx], None]) -> None:
    # On the event loop of a receiver that is gone: nobody waits for this. Should it fail, the leases end by themselves.
    try:
        file.live.writer.send(operation)
    except RedriveError:
        return
