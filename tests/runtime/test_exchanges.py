"""An app with a topology on a broker without exchanges: the bindings decide, and all copies are one message."""

from __future__ import annotations

from pathlib import Path

import pytest

from redrive import Delivery, Redrive, Retry
from redrive.core.ports import Published
from redrive.core.topology.model import Binding, Exchange, Queue, Topology
from redrive.core.topology.recipes import fanout_bus
from redrive.errors import ConfigurationError, QueueNotFoundError
from redrive.testing import in_memory

TOPOLOGY = Topology(
    exchanges=(Exchange(name="events", type="topic"), Exchange(name="all", type="fanout")),
    queues=(Queue(name="mail"), Queue(name="audit")),
    bindings=(
        Binding(source="events", destination="mail", routing_key="user.*"),
        Binding(source="events", destination="audit", routing_key="#"),
        Binding(source="all", destination="mail"),
    ),
)


def app_with(seen: list[tuple[str, str, str]], broker: str = "memory://") -> Redrive:
    app = Redrive("shop", broker=broker, topology=TOPOLOGY)

    async def note(payload: dict[str, int], delivery: Delivery) -> None:
        seen.append((delivery.queue, delivery.exchange, delivery.routing_key))

    app.consumer("mail")(note)
    app.consumer("audit")(note)
    return app


async def test_a_message_goes_to_every_queue_that_is_bound() -> None:
    seen: list[tuple[str, str, str]] = []
    async with in_memory(app_with(seen)) as run:
        await run.publish("user.created", {"n": 1}, exchange="events")
        await run.publish("order.created", {"n": 2}, exchange="events")
        await run.publish("", {"n": 3}, exchange="all")
        await run.until_idle()

    assert [
        ("audit", "events", "order.created"),
        ("audit", "events", "user.created"),
        ("mail", "all", ""),
        ("mail", "events", "user.created"),
    ] == sorted(seen)


async def test_a_key_that_no_queue_is_bound_for_is_an_error_and_sends_nothing() -> None:
    async with Redrive("shop", broker="memory://", topology=TOPOLOGY) as app:
        with pytest.raises(QueueNotFoundError, match="Nothing was published"):
            await app.publish("x", {}, exchange="nowhere")

        assert [] == [depth for depth in await app.backend.broker.depths() if depth.ready]


async def test_a_duplicate_is_one_in_every_queue() -> None:
    async with in_memory(app_with([])) as run:
        first = await run.publish("user.created", {}, exchange="events", idempotency_key="k", once=True)
        again = await run.publish("user.created", {}, exchange="events", idempotency_key="k", once=True)
        other = await run.publish("", {}, exchange="all", idempotency_key="k", once=True)

    assert [Published(), Published(duplicate=True), Published(duplicate=True)] == [first, again, other]


@pytest.mark.parametrize(("fails", "expected"), [(True, 0), (False, 1)])
async def test_inside_a_transaction_all_copies_or_none_are_sent(tmp_path: Path, fails: bool, expected: int) -> None:
    app = app_with([], f"sqlite:///{tmp_path}/shop.db")

    @app.consumer("orders", retry=Retry(max_attempts=1))
    async def order(payload: dict[str, bool], delivery: Delivery) -> None:
        async with delivery.transaction() as tx:
            tx.publish("user.created", {"n": 1}, exchange="events")
            if payload["fails"]:
                raise ValueError("after the publish")

    async with app:
        await app.publish("orders", {"fails": fails})
        worker = app.worker(["orders"])
        ends = {"deliveries.processed", "delivery.dead_lettered"}
        app.events.subscribe(lambda event: worker.stop() if event.name in ends else None)
        await worker.run()
        depths = {depth.queue: depth.ready for depth in await app.backend.broker.depths()}

    assert [expected, expected] == [depths.get("mail", 0), depths.get("audit", 0)]


def test_a_dead_letter_queue_is_where_the_topology_says() -> None:
    def handle(payload: bytes) -> None: ...

    queue = "wms.queue.wms-cincout"
    app, other = (Redrive("bus", broker="memory://", topology=fanout_bus("wms-cincout")) for _ in range(2))
    app.consumer(queue)(handle)

    assert "wms.dlq.wms-cincout" == app.consumers[queue].dead_letter_queue
    with pytest.raises(ConfigurationError, match="the topology says"):
        other.consumer(queue, dead_letter_queue="x")(handle)
