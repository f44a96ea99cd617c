"""The senders: one publishes in batches, one posts signed webhooks. Both repeat until told that it is durable.

Both can be killed at any moment: what was confirmed is in the journal, everything else is sent again under the same
message id, which is what a careful producer does.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import hmac
import time
from dataclasses import asdict
from typing import Any, Final

import httpx
import msgspec

from campaign.app import SECRET, Order, app, journal
from campaign.journal import CONFIRMED
from redrive import RedriveError

BATCH: Final = 25
FLAKY_EVERY: Final = 20
BROKEN_EVERY: Final = 10
POSTS_AT_ONCE: Final = 16


def orders(queue: str, count: int) -> list[Order]:
    """The messages of a queue: every 20th fails once, every 10th fails until its cause is repaired."""
    return [
        Order(
            name=f"{queue}-{number:05d}",
            is_flaky=number % FLAKY_EVERY == 3,
            is_broken=number % BROKEN_EVERY == 7,
        )
        for number in range(count)
    ]


def broken(queue: str, count: int) -> int:
    """How many of them are dead-lettered while the cause stands."""
    return sum(order.is_broken for order in orders(queue, count))


async def publish(queue: str, count: int, *, seconds: float) -> None:
    """Publish what is not confirmed yet, in batches, spread over `seconds`."""
    left = _unconfirmed(queue, count)
    pace_s = seconds * BATCH / max(1, count)
    async with app:
        for start in range(0, len(left), BATCH):
            began = time.monotonic()
            batch = left[start : start + BATCH]
            await _until_durable(queue, batch)
            journal().write_all(CONFIRMED, queue, [order.name for order in batch])
            await asyncio.sleep(max(0.0, began + pace_s - time.monotonic()))


async def _until_durable(queue: str, batch: list[Order]) -> None:
    while True:
        try:
            await app.publish_many(queue, [(asdict(order), {"message_id": order.name}) for order in batch])
        except RedriveError:
            await asyncio.sleep(0.1)
        else:
            return


async def post(url: str, count: int, *, seconds: float) -> None:
    """Post the webhooks not confirmed yet, several at once, each until the gateway answers 202."""
    waiting = iter(_unconfirmed("hooks", count))
    pace_s = seconds * POSTS_AT_ONCE / max(1, count)
    async with httpx.AsyncClient(timeout=5) as client, asyncio.TaskGroup() as senders:
        for _ in range(POSTS_AT_ONCE):
            senders.create_task(_posts(client, url, waiting, pace_s=pace_s))


async def _posts(client: httpx.AsyncClient, url: str, waiting: Any, *, pace_s: float) -> None:
    for order in waiting:
        body = msgspec.json.encode(order)
        signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        headers = {
            "x-hub-signature-256": f"sha256={signature}",
            "x-github-delivery": order.name,
            "content-type": "application/json",
        }
        while not await _accepted(client, url, body, headers=headers):
            await asyncio.sleep(0.05)
        journal().write(CONFIRMED, "hooks", order.name)
        await asyncio.sleep(pace_s)


async def _accepted(client: httpx.AsyncClient, url: str, body: bytes, *, headers: dict[str, str]) -> bool:
    try:
        answer = await client.post(url, content=body, headers=headers)
    except httpx.HTTPError:
        return False
    if answer.status_code not in (202, 503):
        raise RuntimeError(f"the gateway answered {answer.status_code}: {answer.text}")
    return answer.status_code == 202


def _unconfirmed(queue: str, count: int) -> list[Order]:
    confirmed = journal().of(CONFIRMED, queue)
    return [order for order in orders(queue, count) if order.name not in confirmed]


def main() -> None:
    """`publish QUEUE COUNT SECONDS` or `post URL COUNT SECONDS`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("how", choices=("publish", "post"))
    parser.add_argument("where")
    parser.add_argument("count", type=int)
    parser.add_argument("seconds", type=float)
    given = parser.parse_args()
    send = publish if given.how == "publish" else post
    asyncio.run(send(given.where, given.count, seconds=given.seconds))


if __name__ == "__main__":
    main()
