"""A process that claims keys: `python -m tests.postgres.claimer URL OWNER COUNT`. Says that it is ready, waits for a
line, and prints the keys it got, one a line.
"""

from __future__ import annotations

import asyncio
import random
import sys

from redrive.core.idempotency import Acquired
from redrive.postgres import Database
from redrive.stores.postgres import PostgresClaimStore


async def main(url: str, owner: str, count: int) -> None:
    claims = PostgresClaimStore(Database(url))
    await claims.open()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)
    keys = [f"k-{number}" for number in range(count)]
    random.Random(owner).shuffle(keys)
    for first in range(0, count, 50):
        batch = [("orders", key) for key in keys[first : first + 50]]
        for verdict in await claims.claim(batch, lease_ms=60_000, owner=owner):
            if isinstance(verdict, Acquired):
                sys.stdout.write(f"{verdict.ref.key}\n")
    await claims.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
