"""Stores letters, moves them and claims keys until it is killed: `python -m tests.mongodb.dier URL JOURNAL`.

What it was told is done stands in the journal, written before the next thing begins.
"""

from __future__ import annotations

import asyncio
import json
import sys
from itertools import count
from pathlib import Path
from typing import Any

from redrive.core.idempotency import Acquired, ClaimState
from redrive.core.letters.letter import ReviewState
from redrive.core.ports import ClaimEnd, ReviewChange
from redrive.runtime.clock import SystemClock
from redrive.stores.mongodb.claims import MongoClaimStore
from redrive.stores.mongodb.letters import MongoLetterStore
from redrive.stores.mongodb.link import Link
from redrive.testing.samples import letter, message

LARGE = bytes(9_000_000)


async def main(url: str, journal: Path) -> None:
    link, clock = Link(url), SystemClock()
    claims, letters = MongoClaimStore(link, clock=clock), MongoLetterStore(link, clock=clock)
    await claims.open()
    await letters.open()

    def told(**line: Any) -> None:
        with journal.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")

    for number in count(sum(1 for _ in journal.open(encoding="utf-8")) if journal.exists() else 0):
        name = f"dl_{number}"
        (verdict,) = await claims.claim([("q", name)], lease_ms=600_000, owner="dier")
        assert isinstance(verdict, Acquired)
        await letters.put([letter(name, message=message(body=LARGE if number % 10 == 0 else b"x"))])
        told(stored=name)
        done = ReviewChange(letter_id=name, to=ReviewState.CLOSED, actor="ann", at=1)
        if await letters.review([done]) == [None]:
            told(closed=name)
        if await claims.finish([ClaimEnd(ref=verdict.ref, state=ClaimState.DEAD_LETTERED)]) == [True]:
            told(ended=name)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
