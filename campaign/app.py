"""The app the campaigns run: one consumer for each thing that must hold. Configured by the environment alone.

`REDRIVE_BROKER` names the file under test and `CAMPAIGN_FOLDER` where the journal lies. While the file `fixed` is not
in that folder, a message marked `broken` is dead-lettered, as with a fault that somebody has yet to repair.
"""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from campaign.journal import EFFECT, START, Journal
from redrive import DeadLetter, Delivery, Fixed, Redrive, Retry
from redrive.ingest import Gateway, GitHub

SECRET: Final = "campaign-secret"  # noqa: S105 - signs made-up webhooks on the loopback interface
EFFECTS_TABLE: Final = "campaign_effects"
LEASE: Final = "2s"
"""Short, so that what a killed worker had in hand is back soon."""

PATIENT: Final = Retry(max_attempts=50, backoff=Fixed("50ms"))
"""Random kills may hit one message several times; here none shall run out of attempts."""

app = Redrive("campaign")
app.mount("/hooks", Gateway(app, "hooks", sources={"campaign": [SECRET]}, scheme=GitHub(), rate=100_000))


@cache
def journal() -> Journal:
    """The journal of this run."""
    return Journal(folder() / "journal.tsv")


def folder() -> Path:
    """Where this run keeps its files."""
    return Path(os.environ["CAMPAIGN_FOLDER"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What every campaign message says: its name, how long to work, and how it fails."""

    name: str
    work_ms: float = 5.0
    is_flaky: bool = False
    is_broken: bool = False
    is_bomb: bool = False


async def work(order: Order, delivery: Delivery) -> None:
    """Say that it started, fail as ordered, else work as long as ordered."""
    journal().write(START, delivery.queue, order.name, attempt=delivery.attempt)
    if order.is_bomb:
        os.kill(os.getpid(), signal.SIGKILL)
    if order.is_broken and not (folder() / "fixed").exists():
        raise DeadLetter("the warehouse does not know this article", code="UNKNOWN_ARTICLE")
    if order.is_flaky and delivery.attempt == 1:
        raise ConnectionResetError("the warehouse hung up")
    await asyncio.sleep(order.work_ms / 1_000)


async def plain(order: Order, delivery: Delivery) -> None:
    """An effect outside redrive's file: it may be repeated for messages in hand at a kill."""
    await effect_last(order, delivery)
    # The moment between an effect and its settlement is where a kill repeats it: make it longer than it is by nature.
    await asyncio.sleep(order.work_ms / 1_000)


async def effect_last(order: Order, delivery: Delivery) -> None:
    """The effect is the last thing it does, so a handler that is stopped for a deploy has not had it."""
    await work(order, delivery)
    journal().write(EFFECT, delivery.queue, order.name, attempt=delivery.attempt)


for _queue in ("plain", "hooks"):
    app.consumer(_queue, retry=PATIENT, concurrency=20, lease=LEASE, breaker=None)(plain)
app.consumer("deploys", retry=PATIENT, concurrency=20, lease=LEASE, breaker=None)(effect_last)
app.consumer("bombs", retry=Retry(max_attempts=3, backoff=Fixed("50ms")), concurrency=10, lease=LEASE, breaker=None)(
    plain
)


@app.consumer("exact", retry=PATIENT, concurrency=20, lease=LEASE, breaker=None)
async def exact(order: Order, delivery: Delivery) -> None:
    """An effect in redrive's own file, in one transaction with the message's end: exactly once."""
    await work(order, delivery)
    async with delivery.transaction() as transaction:
        transaction.execute(f"insert into {EFFECTS_TABLE} (name, pid) values (?, ?)", (order.name, os.getpid()))


@app.consumer("slow", retry=PATIENT, concurrency=20, lease=LEASE, breaker=None)
async def slow(order: dict[str, Any], delivery: Delivery) -> None:
    """One key, many deliveries: only one handler may run."""
    journal().write(START, delivery.queue, order["name"], attempt=delivery.attempt)
    await asyncio.sleep(order["work_ms"] / 1_000)
    journal().write(EFFECT, delivery.queue, order["name"], attempt=delivery.attempt)
