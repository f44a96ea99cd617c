"""Workers over a broker with the manners of RabbitMQ, its claims and letters in a file beside it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from redrive import Delivery, Fixed, Redrive, Requeue, Retry, RetryLater
from redrive.core.idempotency import ClaimState
from redrive.core.letters.letter import ReviewState
from redrive.core.message import Message, Properties
from redrive.core.ports import Features, Outgoing, Settle
from redrive.core.topology.entry import dead_letter_outgoing
from redrive.core.topology.model import Queue, Topology
from redrive.core.topology.wiring import DeadLetterRoute, RejectRetry, Tier, TierRetry, Wiring
from redrive.runtime import adapters
from redrive.runtime.backend import Backend
from redrive.runtime.ledger import OrderedLedger
from redrive.runtime.starts import GONE_AFTER_MS
from redrive.sqlite import SqliteFile
from redrive.stores.sqlite import SqliteClaimStore, SqliteGroupStore, SqliteJobStore, SqliteLetterStore
from tests.runtime.connected import ConnectedBroker
from tests.runtime.stage import PATIENCE_S, Told, letters, quiet, redrive_all, working

AT_ONCE = Retry(max_attempts=3, backoff=Fixed("1ms"))
MakeShop = Callable[..., Redrive]


class WithExchanges(ConnectedBroker):
    """Also says that it has exchanges: then a topology's wirings hold."""

    @property
    def features(self) -> Features:
        return replace(super().features, exchanges=True)


class CountingForEver(ConnectedBroker):
    """Stamps the same death on whatever is retried, as a RabbitMQ does that no longer counts."""

    async def settle(self, batch: Sequence[Settle]) -> list[bool]:
        answers = await super().settle(batch)
        for queue in self._inner._queues.values():
            for copy in queue.copies.values():
                death: dict[str, Any] = {"queue": queue.name, "reason": "rejected", "count": 1}
                copy.message = replace(copy.message, headers={"x-death": [death]})
        return answers


@pytest.fixture
def make_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeShop:
    def make(kind: type[ConnectedBroker] = ConnectedBroker, *, topology: Topology | None = None) -> Redrive:
        def backend(wanted: Any) -> Backend:
            file = SqliteFile(tmp_path / "store.db", clock=wanted.clock, durability="normal")
            broker, claims = kind(wanted.clock), SqliteClaimStore(file)
            found, jobs = SqliteLetterStore(file), SqliteJobStore(file)
            ledger = OrderedLedger(
                broker=broker,
                claims=claims,
                letters=found,
                jobs=jobs,
                clock=wanted.clock,
                entry_of=lambda letter: dead_letter_outgoing(letter, wanted.topology.wiring(letter.queue)),
            )
            return Backend(
                url="connected://",
                ledger=ledger,
                broker=broker,
                claims=claims,
                letters=found,
                groups=SqliteGroupStore(file),
                jobs=jobs,
                send_leftovers=lambda limit: ledger.send_leftovers(limit=limit),
                local_store=str(file.path),
            )

        monkeypatch.setitem(adapters._BACKENDS, "connected", backend)
        settings = {"durability": "normal", "pause_initial": "20ms", "pause_max": "50ms"}
        return Redrive("shop", broker="connected://", topology=topology, settings=settings)

    return make


def broker_of(app: Redrive) -> ConnectedBroker:
    assert isinstance(app.backend.broker, ConnectedBroker)
    return app.backend.broker


async def claim_state(app: Redrive, key: str) -> ClaimState | None:
    record = await app.backend.claims.get("orders", key)
    return None if record is None else record.state


# ------------------------------------------------------------------------------------------------- ends


async def test_messages_are_processed_and_leave_queue_and_claims(make_shop: MakeShop) -> None:
    shop, seen = make_shop(), []

    @shop.consumer("orders")
    async def handle(order: dict[str, Any]) -> None:
        seen.append(order["n"])

    told = Told(shop)
    async with working(shop):
        await shop.publish_many("orders", [{"n": number} for number in range(300)])
        await told.until("deliveries.processed", 300)
        await quiet(shop, told, "orders")

    assert list(range(300)) == sorted(seen)
    assert 0 == sum(fields["without_key"] for fields in told.named("deliveries.taken"))


async def test_a_worker_says_that_its_store_does_not_span_hosts(make_shop: MakeShop, tmp_path: Path) -> None:
    shop = make_shop()

    @shop.consumer("orders")
    async def handle(order: dict[str, Any]) -> None: ...

    told = Told(shop)
    async with working(shop):
        (said,) = await told.until("store.is_local")

    assert {"store": str(tmp_path / "store.db"), "broker": "connected://"} == said


async def test_a_poison_message_lies_in_the_store_and_in_its_queue_and_goes_back_through_the_store(
    make_shop: MakeShop,
) -> None:
    shop, heals = make_shop(), asyncio.Event()

    @shop.consumer("orders", retry=AT_ONCE)
    async def handle(order: dict[str, Any]) -> None:
        if not heals.is_set():
            raise ConnectionRefusedError("the bank is away")

    told = Told(shop)
    async with working(shop):
        await shop.publish("orders", {"n": 1}, message_id="m-1", headers={"mine": "kept"})
        (dead,) = await told.until("delivery.dead_lettered")
        await quiet(shop, told, "orders")
        (entry,) = await shop.backend.broker.peek("orders.dead", limit=10)
        (letter,) = await letters(shop)
        heals.set()
        await redrive_all(shop)
        await told.until("deliveries.processed")
        await quiet(shop, told, "orders.dead")
        (closed,) = await letters(shop)

    assert (3, "ECONNREFUSED_EXHAUSTED") == (letter.attempt_count, dead["reason_code"])
    assert b'{"n":1}' == entry.body
    assert "kept" == entry.headers["mine"]
    assert letter.id == entry.headers["x-redrive-letter"]
    assert ("ECONNREFUSED_EXHAUSTED", 3) == (
        entry.headers["x-redrive-reason-code"],
        entry.headers["x-redrive-attempts"],
    )
    assert "x-redrive-attempt" not in entry.headers
    assert ReviewState.CLOSED is closed.state


async def test_a_copy_moved_back_by_hand_closes_its_letter(make_shop: MakeShop) -> None:
    """Case RD-04, in place: another tool moves the entry as it lies; the budget is fresh, the letter closes."""
    shop, heals = make_shop(), asyncio.Event()

    @shop.consumer("orders", retry=AT_ONCE)
    async def handle(order: dict[str, Any]) -> None:
        if not heals.is_set():
            raise ConnectionRefusedError("the bank is away")

    told = Told(shop)
    async with working(shop):
        await shop.publish("orders", {"n": 1}, message_id="m-1")
        await told.until("delivery.dead_lettered")
        (entry,) = await shop.backend.broker.peek("orders.dead", limit=10)
        heals.set()
        await shop.backend.broker.publish([Outgoing(queue="orders", message=entry)])
        (processed,) = await told.until("deliveries.processed")
        await quiet(shop, told, "orders")
        (letter,) = await letters(shop)

    assert [1] == processed["attempts"]
    assert ReviewState.CLOSED is letter.state


async def test_a_forged_letter_closes_nothing(make_shop: MakeShop) -> None:
    shop = make_shop()

    @shop.consumer("orders", retry=Retry(max_attempts=1))
    async def handle(order: dict[str, Any]) -> None:
        if order["n"] == 1:
            raise ValueError("no")

    told = Told(shop)
    async with working(shop):
        await shop.publish("orders", {"n": 1}, message_id="m-1")
        (dead,) = await told.until("delivery.dead_lettered")
        forged = Message(id="m-2", key="m-2", body=b'{"n":2}', headers={"x-redrive-letter": dead["letter_id"]})
        await shop.backend.broker.publish([Outgoing(queue="orders", message=forged)])
        await told.until("deliveries.processed")
        (letter,) = await letters(shop)

    assert ReviewState.PENDING is letter.state


@pytest.mark.parametrize(("limit", "arguments", "is_told"), [
    ("29m", {}, False), ("30m", {}, True), ("2h", {"x-consumer-timeout": 10_000_000}, False), (None, {}, False),
])  # fmt: skip
async def test_a_handler_that_may_outlast_the_brokers_patience_is_told_at_the_start(
    make_shop: MakeShop, limit: str | None, arguments: dict[str, Any], is_told: bool
) -> None:
    """Case DS-05."""
    shop = make_shop(WithExchanges, topology=Topology(queues=(Queue(name="orders", arguments=arguments),)))

    @shop.consumer("orders", timeout=limit)
    async def handle(order: dict[str, Any]) -> None: ...

    told = Told(shop)
    async with working(shop):
        await told.until("worker.started")

    assert is_told == bool(told.named("consumer.outlasts_broker"))


# ------------------------------------------------------------------------------------------------- counting


async def test_a_broker_that_counts_one_for_ever_makes_no_message_immortal(make_shop: MakeShop) -> None:
    """Case RC-02."""
    shop, runs = make_shop(CountingForEver), []

    @shop.consumer("orders", retry=AT_ONCE)
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        runs.append(delivery.attempt)
        raise ConnectionRefusedError("never")

    told = Told(shop)
    async with working(shop):
        await shop.publish("orders", {"n": 1})
        await told.until("delivery.dead_lettered")
        await quiet(shop, told, "orders")
        (letter,) = await letters(shop)

    assert [1, 2, 3] == runs
    assert (3, 3) == (letter.attempt_count, len(letter.history))


async def test_stopping_at_once_costs_no_attempt(make_shop: MakeShop) -> None:
    shop, attempts, goes_on = make_shop(), [], asyncio.Event()

    @shop.consumer("orders", retry=Retry(max_attempts=1))
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if not goes_on.is_set():
            await asyncio.Event().wait()

    told = Told(shop)
    async with shop:
        await shop.publish("orders", {"n": 1})
        for number in range(3):
            async with working(shop) as worker:
                await told.until_true(lambda so_far=number: len(attempts) > so_far)  # type: ignore[misc]
                worker.stop(at_once=True)
        goes_on.set()
        async with working(shop):
            await told.until("deliveries.processed")

    assert [1, 1, 1, 1] == attempts


async def test_a_requeue_costs_no_attempt_and_keeps_the_claim_free(make_shop: MakeShop) -> None:
    shop, attempts = make_shop(), []

    @shop.consumer("orders", retry=Retry(max_attempts=1))
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if len(attempts) < 4:
            raise Requeue("1ms")

    told = Told(shop)
    async with working(shop):
        await shop.publish("orders", {"n": 1})
        await told.until("deliveries.processed")

    assert [1, 1, 1, 1] == attempts


# ------------------------------------------------------------------------------------------------- connections


async def test_a_handler_outlives_its_connection_and_runs_once(make_shop: MakeShop) -> None:
    """Case DS-05: the broker takes the connection and hands the message out again, while its handler goes on."""
    shop, runs = make_shop(), []
    started, may_end = asyncio.Event(), asyncio.Event()

    @shop.consumer("orders", lease="300ms")
    async def handle(order: dict[str, Any]) -> None:
        runs.append(order["n"])
        started.set()
        await may_end.wait()

    told = Told(shop)
    async with working(shop, name="w1"):
        await shop.publish("orders", {"n": 1})
        await asyncio.wait_for(started.wait(), PATIENCE_S)
        await broker_of(shop).lose("w1", stays_away=False)
        # The copy comes by and is told "in progress", more than once, over more than a lease.
        await told.until("delivery.requeued", 5)
        may_end.set()
        await told.until("deliveries.processed")
        await quiet(shop, told, "orders")

    assert [1] == runs
    assert "delivery.lease_lost" not in {event.name for event in told.events}


async def test_what_a_dead_worker_had_is_told_as_interrupted_and_counts(make_shop: MakeShop) -> None:
    shop, attempts = make_shop(), []

    @shop.consumer("orders", retry=AT_ONCE)
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        attempts.append(delivery.attempt)

    told = Told(shop)
    async with shop:
        await shop.publish("orders", {"n": 1})
        (taken,) = await shop.backend.ledger.take(
            "orders", limit=1, lease_ms=60_000, worker="dead", wait_ms=1_000, claims=True
        )
        await broker_of(shop).lose("dead", stays_away=True)
        before_ms = shop.clock.monotonic_ms()
        async with working(shop, name="heir"):
            (interrupted,) = await told.until("delivery.interrupted")
            await told.until("deliveries.processed")
            waited_ms = shop.clock.monotonic_ms() - before_ms

    assert taken.received.message.id == interrupted["message_id"]
    assert ("dead", 1) == (interrupted["worker"], interrupted["attempt"])
    assert [2] == attempts
    assert waited_ms >= GONE_AFTER_MS


# ------------------------------------------------------------------------------------------------- transactions


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_effects_and_the_processed_key_are_one_commit(make_shop: MakeShop, tmp_path: Path, kind: str) -> None:
    shop, receipts = make_shop(), []

    async def in_the_loop(order: dict[str, Any], delivery: Delivery) -> None:
        async with delivery.transaction() as tx:
            tx.execute("INSERT INTO effects VALUES (?)", (order["n"],))
            tx.publish("receipts", {"n": order["n"]})

    def in_a_thread(order: dict[str, Any], delivery: Delivery) -> None:
        with delivery.transaction() as tx:
            tx.execute("INSERT INTO effects VALUES (?)", (order["n"],))
            tx.publish("receipts", {"n": order["n"]})

    shop.consumer("orders")(in_the_loop if kind == "async" else in_a_thread)

    @shop.consumer("receipts")
    async def file_away(receipt: dict[str, Any]) -> None:
        receipts.append(receipt["n"])

    told = Told(shop)
    async with shop:
        make_effects(tmp_path / "store.db")
        async with working(shop):
            for number in range(20):
                await shop.publish("orders", {"n": number}, message_id=f"m-{number}")
            await told.until("deliveries.processed", 40)
            await quiet(shop, told, "orders")
            await quiet(shop, told, "receipts")
        states = {await claim_state(shop, f"m-{number}") for number in range(20)}

    assert list(range(20)) == effects(tmp_path / "store.db")
    assert list(range(20)) == sorted(receipts)
    assert {ClaimState.PROCESSED} == states


async def test_a_connection_lost_after_the_commit_repeats_nothing(make_shop: MakeShop, tmp_path: Path) -> None:
    shop = make_shop()
    committed, may_end = asyncio.Event(), asyncio.Event()

    @shop.consumer("orders")
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        async with delivery.transaction() as tx:
            tx.execute("INSERT INTO effects VALUES (?)", (order["n"],))
        committed.set()
        await may_end.wait()

    told = Told(shop)
    async with shop:
        make_effects(tmp_path / "store.db")
        async with working(shop, name="w1"):
            await shop.publish("orders", {"n": 1})
            await asyncio.wait_for(committed.wait(), PATIENCE_S)
            await broker_of(shop).lose("w1", stays_away=False)
            await told.until("delivery.duplicate")
            may_end.set()
            await told.until("deliveries.processed")
            await quiet(shop, told, "orders")

    assert [1] == effects(tmp_path / "store.db")


async def test_an_exception_after_the_commit_changes_nothing(make_shop: MakeShop, tmp_path: Path) -> None:
    shop = make_shop()

    @shop.consumer("orders")
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        async with delivery.transaction() as tx:
            tx.execute("INSERT INTO effects VALUES (?)", (order["n"],))
        raise RuntimeError("too late")

    told = Told(shop)
    async with shop:
        make_effects(tmp_path / "store.db")
        async with working(shop):
            await shop.publish("orders", {"n": 1})
            await told.until("deliveries.processed")
            await quiet(shop, told, "orders")

    assert [1] == effects(tmp_path / "store.db")
    assert 1 == told.count("delivery.failed_after_commit")
    assert 0 == told.count("delivery.retry_scheduled")


def make_effects(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE effects (n INTEGER)")
        connection.commit()


def effects(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [n for (n,) in connection.execute("SELECT n FROM effects ORDER BY n")]


# ------------------------------------------------------------------------------------------------- wirings


def wired(retry: RejectRetry | TierRetry) -> Topology:
    route = DeadLetterRoute(exchange="", routing_key="orders.dlq", headers={"retry_count": "x-final-retry-count"})
    return Topology(wirings=(Wiring(queue="orders", retry=retry, dead_letter=route, dead_letter_queue="orders.dlq"),))


TIERS = TierRetry(
    exchange="retry",
    tiers=(Tier(delay_ms=20, routing_key="a"), Tier(delay_ms=60, routing_key="b")),
)


@pytest.mark.parametrize(
    ("retry", "asked", "taken_ms"),
    [
        (TIERS, "50ms", 60),
        (TIERS, "5m", 60),
        (RejectRetry(delay_ms=30), "1ms", 30),
        (RejectRetry(delay_ms=30), "5m", 30),
    ],
)
async def test_a_delay_the_wiring_has_not_is_changed_and_told(
    make_shop: MakeShop, retry: RejectRetry | TierRetry, asked: str, taken_ms: int
) -> None:
    shop = make_shop(WithExchanges, topology=wired(retry))

    @shop.consumer("orders")
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        if delivery.attempt == 1:
            raise RetryLater(asked)

    told = Told(shop)
    async with working(shop):
        await shop.publish("orders", {"n": 1})
        (scheduled,) = await told.until("delivery.retry_scheduled")
        (changed,) = await told.until("delivery.delay_changed")
        await told.until("deliveries.processed")

    assert taken_ms == scheduled["delay_ms"] == changed["delay_ms"]
    assert changed["asked_ms"] != taken_ms


async def test_a_delay_the_wiring_has_is_not_told(make_shop: MakeShop) -> None:
    shop = make_shop(WithExchanges, topology=wired(TIERS))

    @shop.consumer("orders", retry=Retry(backoff=Fixed("7ms")))
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        if delivery.attempt == 1:
            raise RetryLater("20ms")
        if delivery.attempt == 2:
            raise ConnectionRefusedError("by the policy, which nobody asked for by name")

    told = Told(shop)
    async with working(shop):
        await shop.publish("orders", {"n": 1})
        await told.until("deliveries.processed")

    assert [20, 20] == [fields["delay_ms"] for fields in told.named("delivery.retry_scheduled")]
    assert 0 == told.count("delivery.delay_changed")


async def test_a_dead_letter_goes_where_the_wiring_says_with_the_headers_it_names(make_shop: MakeShop) -> None:
    shop = make_shop(WithExchanges, topology=wired(TIERS))

    @shop.consumer("orders", retry=Retry(max_attempts=2, backoff=Fixed("1ms")), dead_letter_queue="orders.dlq")
    async def handle(order: dict[str, Any]) -> None:
        raise ConnectionRefusedError("never")

    told = Told(shop)
    async with working(shop):
        await shop.publish("orders", {"n": 1})
        await told.until("delivery.dead_lettered")
        (entry,) = await shop.backend.broker.peek("orders.dlq", limit=10)

    assert 1 == entry.headers["x-final-retry-count"]


async def test_a_handler_sees_where_the_message_was_first_published(make_shop: MakeShop) -> None:
    shop, seen = make_shop(), []

    @shop.consumer("orders")
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        seen.append((delivery.exchange, delivery.routing_key))

    death: dict[str, Any] = {
        "queue": "orders",
        "reason": "rejected",
        "exchange": "events",
        "routing-keys": ["order.created"],
    }
    back = Message(
        id="m-1",
        body=b"{}",
        headers={"x-death": [death]},
        properties=Properties(exchange="", routing_key="orders"),
    )
    told = Told(shop)
    async with working(shop):
        await shop.backend.broker.publish([Outgoing(queue="orders", message=back)])
        await told.until("deliveries.processed")
        await shop.publish("orders", {})
        await told.until("deliveries.processed", 2)

    assert [("events", "order.created"), ("", "orders")] == seen
