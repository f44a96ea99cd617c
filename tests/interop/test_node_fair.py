"""Node's workers, which know nothing of tenants, take turns in what redrive has placed (case FA-01)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redrive import Redrive, Settings
from tests.interop.node import Node
from tests.interop.stage import QUEUE
from tests.redis import Redis


async def test_nodes_workers_take_turns_too(redis: Redis, node: Node, tmp_path: Path) -> None:
    app = Redrive("shop", settings=Settings(broker=redis.url, store=f"sqlite:///{tmp_path / 'letters.db'}"))

    @app.consumer(QUEUE, fair_by="tenant")
    async def handle(payload: Any) -> None:
        """Not called: Node works here."""

    async with app:
        await app.publish_many(QUEUE, [("noisy", {"tenant": "noisy"})] * 60)
        await app.publish_many(QUEUE, [("quiet", {"tenant": "quiet"})] * 10)
    await node.call("work", queue=QUEUE, opts={"concurrency": 1})

    order = [(await node.wait("run", queue=QUEUE))["data"] for _ in range(20)]

    assert 10 == order.count("quiet")
