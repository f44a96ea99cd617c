"""The app of the Redis campaigns: one handler, whose effect is written under the message's idempotency key.

The effect lies in a file of its own, as it would in a service's database: a second one under the same key is refused
there. So the books can tell how often a handler got that far, and how often the effect happened.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from campaign.app import folder, journal
from campaign.journal import EFFECT, START
from redrive import Delivery, Fixed, Redrive, Retry

QUEUE: Final = "orders"
BOMBS: Final = "bombs"
CONCURRENCY: Final = 20
FAILED: Final = "failed"
"""The journal's word for an attempt that failed, as ordered."""

app = Redrive("campaign")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A message: its name, how often it fails before it works, how long the work takes. What is slow is so in its first
    attempt: half of that before its effect, half after.
    """

    name: str
    failures: int = 0
    work_ms: float = 1.0
    slow_ms: float = 0.0


def effects_file(where: Path) -> Path:
    """Where the effects lie."""
    return where / "effects.db"


@cache
def effects() -> sqlite3.Connection:
    """This process's connection to the effects."""
    connection = sqlite3.connect(effects_file(folder()), timeout=30, isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = off")
    connection.execute("create table if not exists effects (key text primary key, pid integer not null)")
    return connection


@app.consumer(QUEUE, retry=Retry(max_attempts=50, backoff=Fixed("50ms")), concurrency=CONCURRENCY, breaker=None)
async def handle(order: Order, delivery: Delivery) -> None:
    """Fail as ordered; else have the effect, under the key."""
    journal().write(START, QUEUE, order.name, attempt=delivery.attempt)
    half_s = max(order.work_ms, order.slow_ms if delivery.attempt == 1 else 0) / 2_000
    await asyncio.sleep(half_s)
    if delivery.attempt <= order.failures:
        journal().write(FAILED, QUEUE, order.name, attempt=delivery.attempt)
        raise ConnectionResetError("the warehouse hung up")
    effects().execute("insert or ignore into effects values (?, ?)", (delivery.key, os.getpid()))
    journal().write(EFFECT, QUEUE, order.name, attempt=delivery.attempt)
    await asyncio.sleep(half_s)
