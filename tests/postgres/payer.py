"""A process that pays in a transaction and hangs before its end: `python -m tests.postgres.payer URL`.

Claims key k-1, writes an effect and a message beside the claim, says so, and waits to be killed.
"""

from __future__ import annotations

import asyncio
import sys

from redrive.core.idempotency import Acquired, ClaimState
from redrive.core.ports import ClaimEnd
from redrive.postgres import Database
from redrive.stores.postgres import PostgresClaimStore
from redrive.testing.samples import outgoing


async def main(url: str) -> None:
    claims = PostgresClaimStore(Database(url))
    await claims.open()
    (verdict,) = await claims.claim([("orders", "k-1")], lease_ms=1_000, owner="payer")
    assert isinstance(verdict, Acquired)
    async with claims.transaction(ClaimEnd(ref=verdict.ref, state=ClaimState.PROCESSED)) as transaction:
        transaction.execute("INSERT INTO effects VALUES ('paid')")
        transaction.publish(outgoing("receipt"))
        sys.stdout.write("written\n")
        sys.stdout.flush()
        await asyncio.sleep(600)  # sleep: until it is killed


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
