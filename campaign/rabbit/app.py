"""The app of the RabbitMQ campaigns: one handler on every queue of the shape that `CAMPAIGN_SHAPE` names.

`CAMPAIGN_SAFE` set: the safe form of it. `CAMPAIGN_DEFAULTS` set: consumers without any option, as a newcomer writes
them. A message that is `broken` is dead-lettered until the file `fixed` lies in the campaign's folder.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Final

from campaign.app import EFFECTS_TABLE, folder, journal
from campaign.journal import EFFECT, START
from campaign.rabbit.shapes import SHAPES
from redrive import DeadLetter, Delivery, Redrive

SHAPE: Final = SHAPES[os.environ.get("CAMPAIGN_SHAPE", "orders")]
IS_SAFE: Final = bool(os.environ.get("CAMPAIGN_SAFE"))
HAS_DEFAULTS: Final = bool(os.environ.get("CAMPAIGN_DEFAULTS"))

app = Redrive("campaign", topology=SHAPE.topology(IS_SAFE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A message: its name, how often it fails before it works, whether it is broken, and how long the work takes."""

    name: str
    failures: int = 0
    is_broken: bool = False
    work_ms: float = 1.0


async def handle(order: Order, delivery: Delivery) -> None:
    """Fail as ordered; else have an effect in one transaction with the message's end, and one outside of it."""
    journal().write(START, delivery.queue, order.name, attempt=delivery.attempt)
    if order.is_broken and not (folder() / "fixed").exists():
        raise DeadLetter("the warehouse does not know this article", code="UNKNOWN_ARTICLE")
    if delivery.attempt <= order.failures:
        raise ConnectionResetError("the warehouse hung up")
    await asyncio.sleep(order.work_ms / 1_000)
    journal().write(EFFECT, delivery.queue, order.name, attempt=delivery.attempt)
    async with delivery.transaction() as transaction:
        name = f"{delivery.queue} {order.name}"
        transaction.execute(f"insert into {EFFECTS_TABLE} (name, pid) values (?, ?)", (name, os.getpid()))


for _queue in SHAPE.queues:
    if HAS_DEFAULTS:
        app.consumer(_queue)(handle)
    else:
        app.consumer(_queue, retry=SHAPE.retry, breaker=None, concurrency=20)(handle)
