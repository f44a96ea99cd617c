"""The sender: publishes every message until the broker has confirmed it, and writes that down.

It can be killed and started again at any moment: what is not in the journal is sent again under the same message id.
`python -m campaign.rabbit.send COUNT SECONDS`, spread over the seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from dataclasses import asdict
from typing import Final

from campaign.app import journal
from campaign.journal import CONFIRMED
from campaign.rabbit.app import SHAPE, Order, app
from redrive import RedriveError

BATCH: Final = 50
SENT: Final = "sent"
"""The queue name under which the journal keeps what was confirmed: a message may go to several queues."""

FLAKY_EVERY: Final = 10
TWICE_EVERY: Final = 40
BROKEN_EVERY: Final = 50


def orders(count: int) -> list[Order]:
    """Every 10th fails once, every 40th twice, every 50th until its cause is repaired; with `CAMPAIGN_ORDERS` set to
    `broken` or `sound`, all of them are that.
    """
    kind = os.environ.get("CAMPAIGN_ORDERS")
    if kind is not None:
        return [Order(name=f"order-{number:06d}", is_broken=kind == "broken") for number in range(count)]
    return [
        Order(name=f"order-{number:06d}", failures=_failures(number), is_broken=number % BROKEN_EVERY == 7)
        for number in range(count)
    ]


def _failures(number: int) -> int:
    if number % TWICE_EVERY == 13:
        return 2
    return 1 if number % FLAKY_EVERY == 3 else 0


async def send(count: int, *, seconds: float) -> None:
    """Publish what is not confirmed yet."""
    confirmed = journal().of(CONFIRMED, SENT)
    left = [(number, order) for number, order in enumerate(orders(count)) if order.name not in confirmed]
    pace_s = seconds * BATCH / max(1, count)
    async with app:
        for start in range(0, len(left), BATCH):
            began = time.monotonic()
            batch = left[start : start + BATCH]
            await _until_durable(batch)
            journal().write_all(CONFIRMED, SENT, [order.name for _, order in batch])
            await asyncio.sleep(max(0.0, began + pace_s - time.monotonic()))


async def _until_durable(batch: list[tuple[int, Order]]) -> None:
    """One `publish_many` for each route that messages of the batch take."""
    by_route: dict[tuple[str, str], list[Order]] = {}
    for number, order in batch:
        route = SHAPE.route(number)
        by_route.setdefault((route.exchange, route.key), []).append(order)
    for (exchange, key), part in by_route.items():
        messages = [(asdict(order), {"message_id": order.name}) for order in part]
        while True:
            try:
                await app.publish_many(key, messages, exchange=exchange)
            except RedriveError:
                await asyncio.sleep(0.1)
            else:
                break


def main() -> None:
    """`COUNT SECONDS`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("seconds", type=float)
    given = parser.parse_args()
    asyncio.run(send(given.count, seconds=given.seconds))


if __name__ == "__main__":
    main()
