"""Windows: starts counted for all processes on one file. Every function runs inside the caller's transaction."""

from __future__ import annotations

import json
from typing import Final

from redrive.core.policy import flow
from redrive.core.policy.flow import Rate, Window
from redrive.sqlite.values import numbers, text_in
from redrive.sqlite.writer import Tx

WHOLE_QUEUE: Final = ""
"""The name under which the queue's own rate is counted; no group has an empty name."""

_SELECT: Final = "SELECT counts FROM redrive_window WHERE queue_id = ? AND name = ?"
_UPSERT: Final = (
    "INSERT INTO redrive_window (queue_id, name, counts, free_at, forgotten_at) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (queue_id, name) DO UPDATE SET counts = excluded.counts, free_at = excluded.free_at, "
    "forgotten_at = excluded.forgotten_at"
)
_FORGET: Final = "DELETE FROM redrive_window WHERE queue_id = ? AND forgotten_at <= ? AND name <> ''"
FREE_AT: Final = "SELECT free_at FROM redrive_window WHERE queue_id = ? AND name = ''"
"""(queue_id): when the whole queue's rate allows a start."""


def read(tx: Tx, queue_id: int, rate: Rate, *, name: str = WHOLE_QUEUE) -> Window:
    """What was started lately."""
    row = tx.execute(_SELECT, (queue_id, text_in(name))).fetchone()
    return flow.window_of(rate, json.loads(row[0]) if row else ())


def write(tx: Tx, queue_id: int, window: Window, *, name: str = WHOLE_QUEUE, count: int = 0) -> None:
    """Keep the window after `count` more starts now."""
    after = flow.started(window, count, tx.now)
    values = (numbers(flow.window_numbers(after)), flow.free_at(after, tx.now), flow.forgotten_at(after))
    tx.execute(_UPSERT, (queue_id, text_in(name), *values))


def forget(tx: Tx, queue_id: int) -> None:
    """Let go of groups' windows that say nothing any more."""
    tx.execute(_FORGET, (queue_id, tx.now))
