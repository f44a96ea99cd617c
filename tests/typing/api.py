"""The public API as users write it, checked by mypy --strict and pyright; never executed.

Every line is something a user may rely on: what it accepts, and what it gives back.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

from redrive import (
    AutoRedrive,
    BreakerPolicy,
    BrokerUnavailableError,
    DeadLetter,
    Decorrelated,
    Delivery,
    Event,
    Exponential,
    Fair,
    Fixed,
    Letter,
    Message,
    Published,
    Redrive,
    RedriveError,
    Requeue,
    Retry,
    RetryLater,
    Rule,
    SchemaTooNewError,
    Settings,
    StorageCorruptError,
    Tiers,
    Topology,
    UnsupportedError,
    Worker,
    delay_levels,
    fanout_bus,
    retry_per_queue,
    tiered_retry,
)
from redrive.core.message import Headers
from redrive.core.units import UnixMs
from redrive.mail import Failed, Failure, MailRule, Recipients
from redrive.testing import in_memory


@dataclass
class Order:
    """A payload."""

    id: str
    cents: int


app = Redrive("orders", broker="sqlite:///orders.db")
Redrive("orders", settings={"grace": "20s"})
Redrive("orders", version="1.4.2", auto_redrive=[AutoRedrive(error_code="TIMEOUT", after="30m", canary=20, rate=10)])
Redrive("orders", collect=["labels.dlq"])
Redrive("orders", collect={"labels.dlq": "labels", "orders.XQ": None})
Redrive("orders", settings=Settings(broker="memory://", processes=2))

TOPOLOGY: Topology = (
    fanout_bus("wms-cincout", "wms-labels", delay=timedelta(seconds=5), safe=True)
    + tiered_retry("freeflow", domains=["user", "auth"], tiers={"soon": "30s", "late": 300})
    + tiered_retry("shop", domains=("user",), tiers=("30s", "5m"), events="shop.events")
    + retry_per_queue({"q.audit": {"domain.events": "#"}, "q.upload": {"domain.commands": ["a.#", "b.*"]}}, delay="15s")
    + delay_levels("orders")
)
Redrive("orders", broker="amqp://localhost", topology=TOPOLOGY)

POLICIES = [
    Retry(),
    Retry(max_attempts=5, backoff=Exponential("1s", factor=2, cap="60s", jitter="±25%")),
    Retry(3, Fixed(timedelta(seconds=10))),
    Retry(max_attempts=4, backoff=Tiers("30s", "5m", "30m")),
    Retry(backoff=Decorrelated(0.5, cap="2m")),
]
assert_type(POLICIES, list[Retry])
assert_type(Exponential("1s").delay_ms(1, 0.5), int)


TURNS = Fair(
    by="tenant",
    batch=3,
    weights={"acme": 2, "trial": 0.5},
    cost="measured",
    rate={"trial": "10/min", "*": 5},
    concurrency={"trial": 1},
)
assert_type(TURNS.batch, int)


@app.consumer("mail", fair_by="tenant")
async def send(mail: dict[str, Any]) -> None:
    """Turns in short."""


@app.consumer("orders.created", retry=POLICIES[1], concurrency=10, timeout="30s", rate="100/min", fair_by=TURNS)
async def charge(order: Order, delivery: Delivery) -> None:
    """An async handler with everything."""
    assert_type(delivery.attempt, int)
    assert_type(delivery.max_attempts, int)
    assert_type(delivery.message, Message)
    assert_type(delivery.message.body, bytes)
    assert_type(delivery.headers, Headers)
    assert_type(delivery.key, str | None)
    assert_type(delivery.tenant, str | None)
    assert_type(delivery.deadline, UnixMs | None)
    assert_type(delivery.token, int)
    assert_type(delivery.extend_lease("5m"), bool)
    assert_type(await delivery.publish("parcels", {"order": order.id}), Published)
    async with delivery.transaction() as transaction:
        transaction.execute("insert into charges values (?, ?)", (order.id, order.cents))
        transaction.publish("receipts", {"order": order.id})


@app.consumer("orders.mail", http_status=True, rules=[Rule(KeyError, code="UNKNOWN_ORDER")], breaker=None)
def mail(order: dict[str, Any]) -> int:
    """A plain handler that answers with a status, and uses every signal."""
    if not order:
        raise DeadLetter("an empty order", code="EMPTY_ORDER")
    if "later" in order:
        raise RetryLater(timedelta(minutes=1))
    if "locked" in order:
        raise Requeue("5s")
    return 204


LIMIT = MailRule(name="limit", codes=[554], text="problem", verdict="transient", kind="rate", scope="lane", delay="10m")


@app.consumer("orders.letters", rules=[LIMIT, Rule(KeyError, "transient", scope="lane", delay="10m")])
async def letters(order: dict[str, Any], delivery: Delivery) -> None:
    """A handler that sends to several recipients and keeps what is done."""
    assert_type(delivery.kept, dict[str, Any])
    recipients = Recipients.of(["a@example.org", "b@example.org"], delivery.kept)
    recipients = recipients.after(sent=["a@example.org"], refused={"b@example.org": (451, b"4.2.1 busy")})
    delivery.keep(**recipients.document())
    failure = recipients.failure()
    assert_type(failure, Failure | None)
    if failure is not None:
        raise Failed(failure)


@app.consumer("orders.raw", breaker=BreakerPolicy(failures=5), letter_ttl=timedelta(days=30), process=True)
def raw(body: bytes) -> None:
    """A handler in a process of its own."""


# The decorator gives the function back as it is: it can still be called, with its own types.
assert_type(mail({"id": 1}), int)


async def use() -> None:
    """Publishing and working."""
    async with app as opened:
        assert_type(opened, Redrive)
        assert_type(await app.publish("orders.created", Order("o-1", 100), delay="5m", priority=1), Published)
        assert_type(await app.publish("orders.created", b"{}", idempotency_key="k", tenant="acme"), Published)
        assert_type(await app.publish_many("orders.created", [{"id": 1}, {"id": 2}]), list[Published])
        worker = app.worker(["orders.created"])
        assert_type(worker, Worker)
        await worker.run()
        worker.stop()
    try:
        await app.open()
    except (StorageCorruptError, SchemaTooNewError, UnsupportedError) as error:
        assert_type(error.text, str)
    except BrokerUnavailableError as error:
        assert_type(error.code, str)
        assert_type(error.hint, str)
    except RedriveError:
        await app.close()


def watch() -> None:
    """Events and consumers."""

    def alert(event: Event) -> None:
        assert_type(event.name, str)
        seen.update(event.fields)

    app.events.subscribe(alert)
    seen: dict[str, Any] = {queue: consumer.max_attempts for queue, consumer in app.consumers.items()}


async def check() -> None:
    """A user's own test of an app."""
    async with in_memory(app) as run:
        assert_type(await run.publish("orders.created", {"id": 1}), Published)
        await run.until_idle()
        assert_type(await run.letters(), tuple[Letter, ...])
