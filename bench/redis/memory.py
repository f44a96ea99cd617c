"""What a waiting job and a dead letter cost the server: 10 000 of each, messages of 400 bytes. Run as a process of its
own.

A dead letter lies in redrive's store, and as a document in the queue `orders.dead` of this Redis, where people and
Node look for it; with `keep_failed` the failed job stays in BullMQ's own set as well. The claim of each message is in
the same Redis, and counts.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import hiredis

from bench.contenders.embedded import key
from bench.measure import python, scratch
from bench.redis.runs import server
from bench.side import QUEUE
from bench.work import texts
from redrive import Redrive, Settings
from redrive.testing.servers.redis_install import RedisInstall

BATCH: Final = 1_000
SETTLING_S: Final = 0.5
UNPROCESSABLE: Final = 422
"""A status that is final, and leaves no traceback in the letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of `used_memory` for each of `jobs`: waiting, dead (the job is gone), dead with the job kept."""

    jobs: int
    waiting_bytes: float
    dead_bytes: float
    dead_kept_bytes: float


def measure(install: RedisInstall, folder: Path, *, jobs: int) -> Memory:
    """Run it on servers of its own."""
    told = {}
    for name, options in (("dead", ""), ("kept", "?keep_failed=true")):
        with server(install) as node, scratch(folder, "memory") as place:
            told[name] = python("bench.redis.memory", f"{node.url}{options}", str(place / "redrive.db"), str(jobs))
    return Memory(
        jobs=jobs,
        waiting_bytes=told["dead"]["waiting"],
        dead_bytes=told["dead"]["dead"],
        dead_kept_bytes=told["kept"]["dead"],
    )


async def run(url: str, store: str, count: int) -> dict[str, Any]:
    """Publish all, then let all die at once."""
    app = Redrive("bench", settings=Settings(broker=url, store=f"sqlite:///{store}"))
    died, done = 0, asyncio.Event()

    @app.consumer(QUEUE, concurrency=100, http_status=True)
    async def handle(_order: dict[str, Any]) -> int:
        return UNPROCESSABLE

    def note(event: Any) -> None:
        nonlocal died
        died += event.name == "delivery.dead_lettered"
        if died == count:
            done.set()

    app.events.subscribe(note)
    async with app:
        # What there is once: scripts, connections, the queue's own keys.
        empty = await _used(url)
        await _publish(app, count)
        waiting = await _used(url)
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        await done.wait()
        worker.stop()
        await running
        await asyncio.sleep(SETTLING_S)
        dead = await _used(url)
    return {"waiting": (waiting - empty) / count, "dead": (dead - empty) / count}


async def _publish(app: Redrive, count: int) -> None:
    numbered = list(enumerate(texts(count)))
    for start in range(0, count, BATCH):
        batch = [(text.encode(), {"idempotency_key": key(number)}) for number, text in numbered[start : start + BATCH]]
        await app.publish_many(QUEUE, batch, content_type="application/json")


async def _used(url: str) -> int:
    """`used_memory` of the server."""
    host, _, port = url.removeprefix("redis://").partition("/")[0].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(hiredis.pack_command(("INFO", "memory")))
    parser = hiredis.Reader()
    while (answer := parser.gets()) is False:
        parser.feed(await reader.read(65_536))
    writer.close()
    lines = answer.decode().splitlines()
    return int(next(line for line in lines if line.startswith("used_memory:")).partition(":")[2])


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
