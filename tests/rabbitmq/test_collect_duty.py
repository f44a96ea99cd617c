"""Workers that collect for as long as they run, from a real RabbitMQ: one at a time, through kills and outages."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from redrive import BrokerUnavailableError, ConfigurationError, Redrive
from redrive.core.letters.letter import Letter
from redrive.core.letters.selection import Selection
from redrive.core.ports import Settle
from redrive.errors import TransitionError
from redrive.runtime import collecting
from redrive.service import Service
from redrive.testing.servers.proxy import FaultProxy
from tests.rabbit import Rabbit
from tests.rabbitmq.by_hand import Hands
from tests.runtime.stage import PATIENCE_S, Told, working

ROOT = Path(__file__).resolve().parents[2]
DEAD = "labels.dlq"
pytestmark = pytest.mark.asyncio

WORKER = """
import sys
from redrive import Redrive

app = Redrive("shop", broker=sys.argv[1], settings={"store": sys.argv[2]}, collect={"labels.dlq": "labels"})

@app.consumer("orders")
async def handle(order: dict) -> None: ...

app.events.subscribe(lambda event: print(event.name, flush=True))
app.worker().main()
"""


def make(url: str, folder: Path, **changed: Any) -> tuple[Redrive, Told]:
    settings = {"store": f"sqlite:///{folder / 'store.db'}", "pause_initial": "50ms", "pause_max": "200ms"}
    app = Redrive("shop", broker=url, settings=settings, **{"collect": {DEAD: "labels"}, **changed})

    @app.consumer("orders")
    async def handle(_order: dict[str, Any]) -> None: ...

    return app, Told(app)


async def total(app: Redrive) -> int:
    return (await Service(app).stats(Selection(queue="labels"))).total


async def _total_of(app: Redrive) -> int:
    async with app:
        return await total(app)


async def until(told: Told, app: Redrive, count: int) -> None:
    async def are_there() -> bool:
        return await total(app) == count

    await told.until_holds(are_there, what=f"{count} letters")


async def test_what_dies_while_a_worker_runs_is_a_letter(rabbit: Rabbit, hands: Hands, tmp_path: Path) -> None:
    hands.queue(DEAD)
    hands.publish(DEAD, b"before")
    app, told = make(rabbit.url, tmp_path)

    async with working(app):
        await until(told, app, 1)
        hands.publish(DEAD, b"while")
        await until(told, app, 2)
        letters = (await Service(app).letters(Selection())).letters
    assert {"labels"} == {each.queue for each in letters}
    assert 0 == hands.ready(DEAD)
    assert 1 == told.count("collector.started") == told.count("collector.stopped")
    assert 2 == sum(fields["new"] for fields in told.named("letters.collected"))


async def test_of_several_workers_one_collects_and_another_goes_on(
    rabbit: Rabbit, hands: Hands, tmp_path: Path
) -> None:
    """Messages that are alike in everything are the ones that two collectors would take for one."""
    hands.queue(DEAD)
    async with AsyncExitStack() as stack:
        pairs = [make(rabbit.url, tmp_path) for _ in range(3)]
        workers = [await stack.enter_async_context(working(app)) for app, _ in pairs]
        for _ in range(50):
            hands.publish(DEAD, b"same")
        first_app, first_told = pairs[0]
        await until(first_told, first_app, 50)
        has = [bool(told.count("collector.started")) for _, told in pairs]
        assert 1 == sum(has)

        workers[has.index(True)].stop()
        await pairs[has.index(True)][1].until("collector.stopped")
        for _ in range(50):
            hands.publish(DEAD, b"same")
        rest = has.index(False)
        await until(pairs[rest][1], pairs[rest][0], 100)
    assert 2 == sum(told.count("collector.started") for _, told in pairs)


async def test_by_hand_nobody_collects_beside_a_worker(
    rabbit: Rabbit, hands: Hands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands.queue(DEAD)
    monkeypatch.setattr(collecting, "LEASE_MS", 1_000)
    app, told = make(rabbit.url, tmp_path)

    async with working(app):
        await told.until("collector.started")
        with pytest.raises(TransitionError, match="Another collector"):
            await Service(app).collect(DEAD)


async def test_killed_its_turn_passes_on(rabbit: Rabbit, hands: Hands, tmp_path: Path) -> None:
    hands.queue(DEAD)
    hands.publish(DEAD, b"1")
    store = f"sqlite:///{tmp_path / 'store.db'}"
    command = [sys.executable, "-c", WORKER, rabbit.url, store]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        await asyncio.to_thread(lambda: next(line for line in lines if line.strip() == "letters.collected"))
        process.send_signal(signal.SIGKILL)

    app, told = make(rabbit.url, tmp_path)
    hands.publish(DEAD, b"2")
    async with working(app):
        await told.until("worker.started")
        assert not told.count("collector.started")
        await until(told, app, 2)


async def test_an_outage_pauses_it_and_it_goes_on(
    rabbit: Rabbit, rabbit_proxy: FaultProxy, hands: Hands, tmp_path: Path
) -> None:
    hands.queue(DEAD)
    app, told = make(rabbit.vhost.url_by("127.0.0.1", rabbit_proxy.port), tmp_path)

    async with working(app):
        await told.until("collector.started")
        rabbit_proxy.refuse()
        rabbit_proxy.drop()
        await told.until("collector.paused")
        hands.publish(DEAD, b"meanwhile")
        rabbit_proxy.heal()
        await told.until("collector.resumed")
        await until(told, app, 1)


async def test_a_connection_lost_before_the_acknowledgement_doubles_nothing(
    rabbit: Rabbit, rabbit_proxy: FaultProxy, hands: Hands, tmp_path: Path
) -> None:
    """Case RC-04: none of these has an id; what was acknowledged into a broken connection is known all the same."""
    hands.queue(DEAD)
    app, told = make(rabbit.vhost.url_by("127.0.0.1", rabbit_proxy.port), tmp_path)
    settled: list[int] = []

    async with working(app):
        await told.until("collector.started")
        settle = app.backend.broker.settle

        async def cut_off(batch: Sequence[Settle]) -> list[bool]:
            settled.append(len(batch))
            if len(settled) == 1:
                rabbit_proxy.drop()
            return await settle(batch)

        app.backend.broker.settle = cut_off  # type: ignore[method-assign]
        for number in range(5):
            hands.publish(DEAD, b"%d" % number)

        async def is_over() -> bool:
            return sum(settled) >= settled[0] + 5 and hands.ready(DEAD) == 0 if settled else False

        await told.until_holds(is_over, what="all acknowledged")
    assert 5 == await _total_of(app)
    assert 0 == hands.ready(DEAD)


async def test_a_store_that_refuses_pauses_it_and_nothing_is_lost(rabbit: Rabbit, hands: Hands, tmp_path: Path) -> None:
    hands.queue(DEAD)
    app, told = make(rabbit.url, tmp_path)

    async with working(app):
        await told.until("collector.started")
        put = app.backend.letters.put
        is_away = [True]

        async def refused(batch: Sequence[Letter]) -> None:
            if is_away[0]:
                raise BrokerUnavailableError("the store is away")
            await put(batch)

        app.backend.letters.put = refused  # type: ignore[method-assign]
        hands.publish(DEAD, b"1")
        await told.until("collector.paused")
        assert 0 == await total(app)
        is_away[0] = False
        await told.until("collector.resumed")
        await until(told, app, 1)
    assert 0 == hands.ready(DEAD)


async def test_a_queue_that_is_not_there_yet_is_waited_for(rabbit: Rabbit, hands: Hands, tmp_path: Path) -> None:
    app, told = make(rabbit.url, tmp_path)

    async with working(app):
        (paused, *_) = await told.until("collector.paused")
        hands.queue(DEAD)
        hands.publish(DEAD, b"1")
        await until(told, app, 1)
    assert ("not_found", DEAD) == (paused["error_code"], paused["queue"])


async def test_a_queue_of_living_messages_is_refused(rabbit: Rabbit, tmp_path: Path) -> None:
    app, _ = make(rabbit.url, tmp_path, collect=["orders"])

    with pytest.raises(ConfigurationError, match="its messages live"):
        await asyncio.wait_for(app.worker().run(), PATIENCE_S)
