"""Workers that collect what fails in BullMQ's queues, for as long as they run: kills and outages."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from redrive import ConfigurationError, Redrive
from redrive.core.letters.selection import Selection
from redrive.core.ports import FailedJob, Taking
from redrive.service import Service
from redrive.testing.servers.proxy import FaultProxy
from tests.bullmq.test_collect_failed_set import AT, put
from tests.redis import Redis
from tests.runtime.stage import PATIENCE_S, Told, working

ROOT = Path(__file__).resolve().parents[2]

WORKER = """
import sys
from redrive import Redrive

app = Redrive("shop", broker=sys.argv[1], settings={"store": sys.argv[2]}, collect=["orders"])

@app.consumer("invoices")
async def handle(order: dict) -> None: ...

app.events.subscribe(lambda event: print(event.name, flush=True))
app.worker().main()
"""


def make(url: str, folder: Path, **changed: Any) -> tuple[Redrive, Told]:
    settings = {"store": f"sqlite:///{folder / 'store.db'}", "pause_initial": "50ms", "pause_max": "200ms"}
    app = Redrive("shop", broker=url, settings=settings, **{"collect": ["orders"], **changed})

    @app.consumer("invoices")
    async def handle(_order: dict[str, Any]) -> None: ...

    return app, Told(app)


@pytest.fixture(autouse=True)
def queue(redis: Redis) -> None:
    """As its producer has left it."""
    redis.ask("HSET", "bull:orders:meta", "version", "bullmq:5.0.0")


async def until(told: Told, app: Redrive, count: int) -> None:
    async def are_there() -> bool:
        return (await Service(app).stats(Selection(queue="orders"))).total == count

    await told.until_holds(are_there, what=f"{count} letters")


async def test_an_outage_pauses_it_and_it_goes_on(redis: Redis, redis_proxy: FaultProxy, tmp_path: Path) -> None:
    app, told = make(redis.url_by(redis_proxy), tmp_path)

    async with working(app):
        await told.until("collector.started")
        redis_proxy.refuse()
        redis_proxy.drop()
        await told.until("collector.paused")
        put(redis, "z")
        redis_proxy.heal()
        await told.until("collector.resumed")
        await until(told, app, 1)


async def test_an_answer_that_is_lost_is_no_second_letter(
    redis: Redis, redis_proxy: FaultProxy, tmp_path: Path
) -> None:
    """The jobs are taken out, and nobody hears of it."""
    app, told = make(redis.url_by(redis_proxy), tmp_path)

    async with working(app):
        await told.until("collector.started")
        failed = app.backend.failed
        assert failed is not None
        take = failed.take
        cut: list[str] = []

        async def cut_off(name: str, batch: Sequence[FailedJob]) -> list[Taking]:
            if not cut:
                cut.append(name)
                redis_proxy.drop()
            return await take(name, batch)

        failed.take = cut_off  # type: ignore[method-assign]
        put(redis, "z-1")
        await until(told, app, 1)
        put(redis, "z-2")
        await until(told, app, 2)

        async def is_empty() -> bool:
            return redis.ask("ZCARD", "bull:orders:failed") == 0

        await told.until_holds(is_empty, what="nothing has failed")
        states = (await Service(app).stats(Selection())).by_state
    assert {"pending": 2} == states


async def test_of_what_is_left_a_person_hears_once_and_of_redrives_own_never(redis: Redis, tmp_path: Path) -> None:
    put(redis, "own", rdl=AT)
    put(redis, "child", parentKey="bull:parents:1")
    app, told = make(redis.url, tmp_path)

    async with working(app):
        await told.until("collector.left")
        put(redis, "z-1")
        await until(told, app, 1)
        put(redis, "z-2")
        await until(told, app, 2)
    assert ["part of a flow: it has a parent"] == [fields["reason"] for fields in told.named("collector.left")]


async def test_killed_its_turn_passes_on(redis: Redis, tmp_path: Path) -> None:
    put(redis, "z-1")
    command = [sys.executable, "-c", WORKER, redis.url, f"sqlite:///{tmp_path / 'store.db'}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        await asyncio.to_thread(lambda: next(line for line in lines if line.strip() == "letters.collected"))
        process.send_signal(signal.SIGKILL)

    app, told = make(redis.url, tmp_path)
    put(redis, "z-2")
    async with working(app):
        await told.until("worker.started")
        assert not told.count("collector.started")
        await until(told, app, 2)


async def test_where_it_came_from_is_not_asked(redis: Redis, tmp_path: Path) -> None:
    app, _ = make(redis.url, tmp_path, collect={"orders": "elsewhere"})

    with pytest.raises(ConfigurationError, match="its own queue"):
        await asyncio.wait_for(app.worker().run(), PATIENCE_S)
