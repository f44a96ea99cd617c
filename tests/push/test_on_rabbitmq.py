"""Push consumers on a real RabbitMQ, 3.x and 4.x: in redrive's own safe shape, and in the topology of system B."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from redrive import Fixed, Redrive, Retry, fanout_bus
from redrive.core.topology.model import EMPTY, Topology
from redrive.push import push_to
from tests.push.endpoint import Decide, Endpoint, Reply, Request, endpoint, replies
from tests.rabbit import Rabbit
from tests.surfaces.conftest import COMMAND, clean_environment
from tests.systems.broker_view import BrokerView
from tests.systems.loading import Running, running, until

QUEUE = "wms.queue.wms-labels"


@asynccontextmanager
async def pushing(
    rabbit: Rabbit, folder: Path, decide: Decide | None = None, *, topology: Topology = EMPTY, **options: Any
) -> AsyncIterator[tuple[Running, Endpoint]]:
    async with endpoint(decide) as service:
        app = Redrive("bus", broker=rabbit.url, topology=topology, settings={"store": f"sqlite:///{folder}/store.db"})
        given = {"retry": Retry(max_attempts=3, backoff=Fixed("100ms")), "breaker": None, **options}
        push_to(app, QUEUE, service.url, allow_private=True, **given)
        async with running(app) as run:
            yield run, service


async def is_there(broker: BrokerView) -> bool:
    return QUEUE in await broker.queues()


async def test_a_message_of_any_publisher_arrives_with_its_bytes_and_properties(rabbit: Rabbit, tmp_path: Path) -> None:
    async with pushing(rabbit, tmp_path, replies(500, 200)) as (run, service):
        body = b'{"a":  1}\x00\xff'
        headers = {"region": "eu", "n": 7, "flag": True, "raw": b"\x00", "nested": {"list": [1, "two"]}, "nil": None}
        broker = BrokerView(rabbit)
        await until(lambda: is_there(broker))
        await broker.publish(
            "", QUEUE, body, headers=headers, message_id="m-1", correlation_id="c-1", type="label", app_id="shop"
        )
        await run.until(lambda: run.processed(QUEUE) == 1)

    assert [body, body] == [request.body for request in service.requests]
    for number, request in enumerate(service.requests, 1):
        shown = {name: request.headers.get(name) for name in request.headers if name.startswith("redrive-")}
        assert {
            "redrive-attempt": str(number),
            "redrive-correlation-id": "c-1",
            "redrive-type": "label",
            "redrive-app-id": "shop",
            "redrive-routing-key": QUEUE,
            "redrive-header-region": "eu",
            "redrive-header-n": "7",
            "redrive-header-flag": "true",
            "redrive-header-raw": ":AA==:",
            "redrive-header-nested": '{"list": [1, "two"]}',
            "redrive-header-nil": "",
        }.items() <= shown.items()
        assert [] == [name for name in shown if "x-death" in name or "x-redrive" in name]


async def test_exhausted_attempts_end_in_the_dead_letter_queue(rabbit: Rabbit, tmp_path: Path) -> None:
    async with pushing(rabbit, tmp_path, replies(Reply(status=503, body=b"down"))) as (run, service):
        await run.app.publish(QUEUE, b"x", message_id="m-1")
        await run.until(lambda: run.named("delivery.dead_lettered"))
        (letter,) = await run.letters()

        assert 1 == await BrokerView(rabbit).depth(f"{QUEUE}.dead")
    assert 3 == len(service.requests)
    assert ["HTTP 503 Service Unavailable: down"] * 3 == [attempt.error_text for attempt in letter.history]


async def test_retry_after_is_honoured_by_the_delay_ladder(rabbit: Rabbit, tmp_path: Path) -> None:
    at: list[float] = []

    def decide(_request: Request) -> Reply:
        at.append(time.monotonic())
        return Reply(status=429, headers=((b"retry-after", b"2"),)) if len(at) == 1 else Reply()

    async with pushing(rabbit, tmp_path, decide) as (run, _service):
        await run.app.publish(QUEUE, b"x")
        await run.until(lambda: run.processed(QUEUE) == 1)

    assert at[1] - at[0] >= 2.0


async def test_messages_that_came_too_early_hold_up_nobody_and_cost_nothing(rabbit: Rabbit, tmp_path: Path) -> None:
    """Far more of them than may be held in hand, without a delay ladder."""
    topology = fanout_bus("wms-labels", delay="1s")
    async with pushing(rabbit, tmp_path, topology=topology, concurrency=8) as (run, service):
        published_at = run.app.clock.now()
        for number in range(40):
            late = {"processAfterDelayMs": 6_000}
            await run.app.publish(QUEUE, b"late", message_id=f"late-{number}", headers=late)
        for number in range(40):
            await run.app.publish(QUEUE, b"now", message_id=f"now-{number}")
        await run.until(lambda: run.processed(QUEUE) == 40)
        first = [request.body for request in service.requests]
        took_ms = run.app.clock.now() - published_at
        await run.until(lambda: run.processed(QUEUE) == 80)

        assert () == tuple(await run.letters())
    if took_ms < 6_000:  # else this machine was too busy to say anything about the order
        assert [b"now"] * 40 == first
    assert 80 == len(service.requests)
    assert {"1"} == {request.headers["redrive-attempt"] for request in service.requests}
    assert {f"late-{n}" for n in range(40)} <= {request.headers["webhook-id"] for request in service.requests}


async def test_425_is_asked_again_within_seconds_and_costs_nothing(rabbit: Rabbit, tmp_path: Path) -> None:
    topology = fanout_bus("wms-labels", delay="50ms")
    async with pushing(rabbit, tmp_path, replies(425, 425, 500, 200), topology=topology) as (run, service):
        began = time.monotonic()
        await run.app.publish(QUEUE, b"x")
        await run.until(lambda: run.processed(QUEUE) == 1)
        took_s = time.monotonic() - began

        assert 2 == len(run.named("delivery.requeued"))
    assert ["1", "1", "1", "2"] == [request.headers["redrive-attempt"] for request in service.requests]
    assert took_s >= 2.0


async def test_the_command_takes_the_topology_of_an_app(rabbit: Rabbit, tmp_path: Path) -> None:
    import asyncio
    import signal
    import subprocess

    root = Path(__file__).resolve().parents[2]
    variables = {
        "REDRIVE_BROKER": rabbit.url,
        "REDRIVE_STORE": f"sqlite:///{tmp_path}/store.db",
        "BUS_RETRY_DELAY_MS": "50",
        "REDRIVE_LOG_FORMAT": "json",
    }
    broker = BrokerView(rabbit)
    async with endpoint(replies(503)) as service:
        command = [*COMMAND, "push", QUEUE, service.url, "--app", "examples.event_bus:app", "--allow-private"]
        command += ["--max-attempts", "3", "--backoff", "50ms", "--max-backoff", "50ms", "--no-breaker"]
        with (tmp_path / "push.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=tmp_path,
                env=clean_environment(PYTHONPATH=str(root), **variables),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            text = tmp_path / "push.log"

            async def has(word: str) -> bool:
                assert process.poll() is None, text.read_text()
                return word in text.read_text()

            await until(lambda: has("worker.started"))
            await broker.publish("wms.main-exchange", "", b"{}", message_id="m-1")
            await until(lambda: has("delivery.dead_lettered"))
            process.send_signal(signal.SIGTERM)
            assert 0 == await asyncio.to_thread(process.wait, 60)
        finally:
            process.kill()
            process.wait()
        _, properties = await broker.take("wms.dlq.wms-labels")

    assert 3 == len(service.requests)
    assert (503, 2) == (properties.headers["x-final-status-code"], properties.headers["x-final-retry-count"])
    assert 1 == await broker.depth("wms.queue.wms-cincout")
