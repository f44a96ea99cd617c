"""A process that races others for keys: `python -m tests.mongodb.racer URL NAME KEYS TRIES`. Prints what it won.

Each round all racers claim the same keys with a lease that is over at once, so that every claim is a take-over of a
lease lost by somebody, and no two may be given the same token.
"""

from __future__ import annotations

import asyncio
import json
import sys

from redrive.core.idempotency import Acquired
from redrive.runtime.clock import SystemClock
from redrive.stores.mongodb.claims import MongoClaimStore
from redrive.stores.mongodb.link import Link


async def main(url: str, name: str, keys: int, tries: int) -> None:
    claims = MongoClaimStore(Link(url), clock=SystemClock())
    await claims.open()
    wins = []
    print("ready", flush=True)  # noqa: T201 - read by the test
    await asyncio.to_thread(sys.stdin.readline)
    for _ in range(tries):
        verdicts = await claims.claim([("q", f"k{number}") for number in range(keys)], lease_ms=0, owner=name)
        wins += [(each.ref.key, each.ref.token) for each in verdicts if isinstance(each, Acquired)]
    print(json.dumps(wins), flush=True)  # noqa: T201
    await claims.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
