"""redis-py with hiredis, bare: a list, LMOVE into another one while it is handled, LREM when it is done. No job, no
lock, no retry: what the client and the server cost without a framework.

As it comes: 100 coroutines, each BLMOVE and LREM, one message after the other. Option "pipelined": 100 LMOVE in one
round trip, then 100 LREM. Publishing: LPUSH, a hundred in a pipeline.
"""

from __future__ import annotations

import asyncio

import redis
import redis.asyncio

from bench.side import PREFETCH, QUEUE, Marks

HELD = f"{QUEUE}:held"
IDLE_S = 5
PAUSE_S = 0.05


def publish(url: str, texts: list[str], _option: str) -> None:
    """Send all."""
    client = redis.Redis.from_url(url)
    for start in range(0, len(texts), PREFETCH):
        pipeline = client.pipeline(transaction=False)
        for text in texts[start : start + PREFETCH]:
            pipeline.lpush(QUEUE, text)
        pipeline.execute()
    client.close()


def consume(url: str, marks: Marks, option: str) -> None:
    """Consume until ended."""
    asyncio.run(_consume_pipelined(url, marks) if option == "pipelined" else _consume(url, marks))


async def _consume(url: str, marks: Marks) -> None:
    client = redis.asyncio.Redis.from_url(url, max_connections=PREFETCH)

    async def work() -> None:
        while True:
            text = await client.blmove(QUEUE, HELD, IDLE_S, "RIGHT", "LEFT")
            if text is not None:
                marks.handle_text(text)
                await client.lrem(HELD, 1, text)

    await asyncio.gather(*(work() for _ in range(PREFETCH)))


async def _consume_pipelined(url: str, marks: Marks) -> None:
    client = redis.asyncio.Redis.from_url(url)
    while True:
        taking = client.pipeline(transaction=False)
        for _ in range(PREFETCH):
            taking.lmove(QUEUE, HELD, "RIGHT", "LEFT")
        texts = [text for text in await taking.execute() if text is not None]
        ending = client.pipeline(transaction=False)
        for text in texts:
            marks.handle_text(text)
            ending.lrem(HELD, -1, text)
        if texts:
            await ending.execute()
        else:
            await asyncio.sleep(PAUSE_S)
