"""The sender: publishes every message until Redis has it, and writes that down.

It can be killed and started again at any moment: what is not in the journal is sent again under the same id and key.
`python -m campaign.redis.send COUNT SECONDS`, spread over the seconds. `--again`: those that the file `again.txt`
names, once more.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import asdict
from typing import Final

from campaign.app import folder, journal
from campaign.journal import CONFIRMED
from campaign.redis.app import QUEUE, Order, app
from redrive import RedriveError

AGAIN: Final = "again.txt"
BATCH: Final = 50
FLAKY_EVERY: Final = 10
SLOW_EVERY: Final = 20
SLOW_MS: Final = 3_000
"""Long enough for a kill to hit some of them."""


def orders(count: int) -> list[Order]:
    """Every 10th fails once, every 20th is slow."""
    return [
        Order(
            name=f"order-{n:06d}",
            failures=int(n % FLAKY_EVERY == 3),
            slow_ms=SLOW_MS if n % SLOW_EVERY == 0 else 0,
        )
        for n in range(count)
    ]


async def send_again(count: int) -> None:
    """Publish what `AGAIN` names, though it was confirmed."""
    names = set((folder() / AGAIN).read_text("utf-8").splitlines())
    async with app:
        await _until_durable([order for order in orders(count) if order.name in names])


async def send(count: int, *, seconds: float) -> None:
    """Publish what is not confirmed yet."""
    confirmed = journal().of(CONFIRMED, QUEUE)
    left = [order for order in orders(count) if order.name not in confirmed]
    pace_s = seconds * BATCH / max(1, count)
    async with app:
        for start in range(0, len(left), BATCH):
            began = time.monotonic()
            batch = left[start : start + BATCH]
            await _until_durable(batch)
            journal().write_all(CONFIRMED, QUEUE, [order.name for order in batch])
            await asyncio.sleep(max(0.0, began + pace_s - time.monotonic()))


async def _until_durable(batch: list[Order]) -> None:
    messages = [(asdict(order), {"message_id": order.name, "idempotency_key": order.name}) for order in batch]
    while True:
        try:
            await app.publish_many(QUEUE, messages)
        except RedriveError:
            await asyncio.sleep(0.1)
        else:
            return


def main() -> None:
    """`COUNT SECONDS`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args()
    asyncio.run(send_again(given.count) if given.again else send(given.count, seconds=given.seconds))


if __name__ == "__main__":
    main()
