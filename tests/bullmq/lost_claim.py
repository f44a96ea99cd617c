"""A worker process that hears nothing of its first claim, takes it back, and dies before it claims again:
python -m tests.bullmq.lost_claim URL STORE JOURNAL.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from redrive.errors import BrokerUnavailableError
from redrive.stores.redis.claims import RedisClaimStore
from tests.bullmq.crew import make


def lose_first_claim(store: RedisClaimStore) -> None:
    """The first claim is carried out, and its answer lost. The second comes once the first was taken back: `kill -9`
    of this process instead.
    """
    carry_out = store._run
    claims = 0

    async def run(name: str, queue: str, *args: Any) -> Any:
        nonlocal claims
        if name != "claim":
            return await carry_out(name, queue, *args)
        claims += 1
        if claims == 1:
            await carry_out(name, queue, *args)
            raise BrokerUnavailableError("The answer was lost.")
        await asyncio.gather(*store._forgetting)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    store._run = run  # type: ignore[method-assign]


async def main(url: str, store: str, journal: str) -> None:
    """Work until killed."""
    app = make(url, store, Path(journal))
    async with app:
        claims = app.backend.claims
        assert isinstance(claims, RedisClaimStore), claims
        lose_first_claim(claims)
        await app.worker().run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
