"""The forms of a handler, and everything it may raise."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import os
import threading
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from redrive import ConfigurationError, DeadLetter, Delivery, Fixed, Redrive, Requeue, Retry, RetryLater
from tests.runtime import crew
from tests.runtime.stage import Told, letters, working

AT_ONCE = Fixed("1ms")


@dataclasses.dataclass
class Order:
    id: int
    lines: list[str] = dataclasses.field(default_factory=list)


class OrderStruct(msgspec.Struct):
    id: int
    lines: list[str] = []


class OrderModel(pydantic.BaseModel):
    id: int
    lines: list[str] = []


class OrderDict(TypedDict):
    id: int
    lines: list[str]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (dict, {"id": 1, "lines": ["a"]}),
        (dict[str, Any], {"id": 1, "lines": ["a"]}),
        (OrderDict, {"id": 1, "lines": ["a"]}),
        (Any, {"id": 1, "lines": ["a"]}),
        (bytes, b'{"id":1,"lines":["a"]}'),
        (str, '{"id":1,"lines":["a"]}'),
        (Order, Order(1, ["a"])),
        (OrderStruct, OrderStruct(1, ["a"])),
        (OrderModel, OrderModel(id=1, lines=["a"])),
        (Order | None, Order(1, ["a"])),
        (dict[str, int | list[str]], {"id": 1, "lines": ["a"]}),
    ],
)
async def test_a_payload_arrives_as_it_is_annotated(kind: Any, expected: Any) -> None:
    app, got = Redrive("shop", broker="memory://"), []

    async def handle(order) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - annotated below
        got.append(order)

    handle.__annotations__["order"] = kind
    app.consumer("orders")(handle)
    told = Told(app)
    async with working(app):
        await app.publish("orders", b'{"id":1,"lines":["a"]}')
        await told.until_true(lambda: told.count("deliveries.processed") + told.count("delivery.dead_lettered") == 1)

    assert [expected] == got


@pytest.mark.parametrize("kind", [Order, OrderStruct, OrderModel, int, list[Order], list[OrderModel]])
async def test_a_payload_that_does_not_fit_is_a_dead_letter_that_says_where(kind: Any) -> None:
    app, got = Redrive("shop", broker="memory://"), []

    async def handle(order) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - annotated below
        got.append(order)

    handle.__annotations__["order"] = kind
    app.consumer("orders")(handle)
    told = Told(app)
    async with working(app):
        await app.publish("orders", b'{"id":"one"}')
        (dead,) = await told.until("delivery.dead_lettered")

    assert [] == got
    assert dead["reason_code"] == "VALIDATION_FAILED"


class Unknown:
    pass


def test_a_payload_type_nothing_can_become_is_refused_when_it_is_registered() -> None:
    app = Redrive("shop", broker="memory://")

    with pytest.raises(ConfigurationError, match="Unknown"):

        @app.consumer("orders")
        async def handle(order: Unknown) -> None: ...


@pytest.mark.parametrize("kind", ["async", "thread", "process"])
async def test_every_kind_of_handler_is_told_its_delivery_and_may_publish(kind: str, tmp_path: Any) -> None:
    app = Redrive("shop", broker=f"sqlite:////{tmp_path}/app.db")
    echoed = []

    if kind == "async":

        @app.consumer("orders")
        async def handle(order: dict[str, Any], delivery: Delivery) -> None:
            assert delivery.extend_lease("1m")
            await delivery.publish("echo", {"n": order["n"], "attempt": delivery.attempt, "pid": os.getpid()})
    elif kind == "thread":

        @app.consumer("orders")
        def handle_in_a_thread(order: dict[str, Any], delivery: Delivery) -> None:
            assert threading.current_thread() is not threading.main_thread()
            assert delivery.extend_lease("1m")
            delivery.publish_sync("echo", {"n": order["n"], "attempt": delivery.attempt, "pid": os.getpid()})
    else:
        app.consumer("orders", process=True, concurrency=2)(crew.echo)

    @app.consumer("echo")
    async def hear(message: dict[str, Any], delivery: Delivery) -> None:
        echoed.append((message, delivery.tenant, delivery.trace_id))

    told = Told(app)
    async with working(app):
        await app.publish("orders", {"n": 1}, tenant="t1", trace_id="req_1")
        await told.until_true(lambda: len(echoed) == 1, what="the echo")

    ((message, tenant, trace_id),) = echoed
    assert (1, 1, "t1", "req_1") == (message["n"], message["attempt"], tenant, trace_id)
    assert (message["pid"] != os.getpid()) == (kind == "process")


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError(), BaseException("base")])
async def test_whatever_a_handler_raises_is_a_failed_attempt_and_the_worker_goes_on(
    kind: str, error: BaseException
) -> None:
    app = Redrive("shop", broker="memory://")

    def act(order: dict[str, Any]) -> None:
        if order["n"] == 1:
            raise error

    async def act_on_the_loop(order: dict[str, Any]) -> None:
        act(order)

    app.consumer("orders", retry=Retry(max_attempts=2, backoff=AT_ONCE))(act if kind == "thread" else act_on_the_loop)
    told = Told(app)
    async with working(app):
        await app.publish("orders", {"n": 1})
        await told.until("delivery.dead_lettered")
        await app.publish("orders", {"n": 2})
        await told.until("deliveries.processed")

        (letter,) = await letters(app)
        assert letter.attempt_count == 2


@pytest.mark.parametrize("kind", ["async", "grouped", "thread", "process"])
async def test_a_control_signal_says_the_outcome_from_every_kind_of_handler(kind: str, tmp_path: Any) -> None:
    app = Redrive("shop", broker=f"sqlite:////{tmp_path}/app.db")
    if kind == "process":
        app.consumer("orders", process=True, concurrency=1)(crew.signal_as_told)
    elif kind == "thread":
        app.consumer("orders")(crew.signal_as_told)
    elif kind == "async":

        @app.consumer("orders")
        async def handle(order: dict[str, Any]) -> None:
            crew.signal_as_told(order)
    else:

        @app.consumer("orders")
        async def handle_in_a_group(order: dict[str, Any]) -> None:
            async def child() -> None:
                crew.signal_as_told(order)

            async with asyncio.TaskGroup() as group:
                group.create_task(child())
                group.create_task(asyncio.Event().wait())

    told = Told(app)
    async with working(app):
        await app.publish("orders", {"raise": "DeadLetter"}, message_id="dead")
        await app.publish("orders", {"raise": "RetryLater"}, message_id="later")
        await app.publish("orders", {"raise": "Requeue"}, message_id="again")
        (dead,) = await told.until("delivery.dead_lettered")
        (retried,) = await told.until("delivery.retry_scheduled")
        (requeued,) = await told.until("delivery.requeued")

    assert ("dead", "TOLD_SO") == (dead["message_id"], dead["reason_code"])
    assert ("later", 3_600_000) == (retried["message_id"], retried["delay_ms"])
    assert "again" == requeued["message_id"]


async def test_a_signal_survives_pickling() -> None:
    import pickle

    for signal in (DeadLetter("r", code="C"), RetryLater("30s"), Requeue("1s")):
        copy = pickle.loads(pickle.dumps(signal))

        assert vars(signal) == vars(copy)


async def test_a_process_that_dies_fails_its_attempt_and_ends_as_worker_lost_while_others_go_on(tmp_path: Any) -> None:
    app = Redrive("shop", broker=f"sqlite:////{tmp_path}/app.db")
    app.consumer("orders", process=True, concurrency=2, retry=Retry(max_attempts=2, backoff=AT_ONCE))(crew.die_as_told)

    told = Told(app)
    async with working(app):
        await app.publish("orders", {"die": True}, message_id="bomb")
        await app.publish("orders", {"die": False}, message_id="good")
        await told.until("delivery.dead_lettered")
        await told.until("deliveries.processed")

        (letter,) = await letters(app)
        assert ("bomb", "WORKER_LOST", 2) == (letter.message.id, letter.reason.code, letter.attempt_count)


@pytest.mark.parametrize("kind", ["async", "process"])
async def test_a_handler_over_its_time_is_stopped_and_fails_with_timeout(kind: str, tmp_path: Any) -> None:
    app = Redrive("shop", broker=f"sqlite:////{tmp_path}/app.db")
    policy: dict[str, Any] = {"retry": Retry(max_attempts=1), "timeout": "500ms"}
    if kind == "process":
        app.consumer("orders", process=True, concurrency=1, **policy)(crew.sleep_long)
    else:

        @app.consumer("orders", **policy)
        async def handle(order: dict[str, Any]) -> None:
            await asyncio.Event().wait()

    told = Told(app)
    async with working(app):
        await app.publish("orders", {"n": 1})
        await told.until("delivery.timed_out")
        (dead,) = await told.until("delivery.dead_lettered")

    assert "DOWNSTREAM_TIMEOUT_EXHAUSTED" == dead["reason_code"]


async def test_a_handler_in_a_thread_is_told_that_its_time_is_over() -> None:
    app = Redrive("shop", broker="memory://")

    @app.consumer("orders", retry=Retry(max_attempts=1), timeout="50ms")
    def handle(order: dict[str, Any], delivery: Delivery) -> None:
        assert delivery.cancelled.wait(30)
        assert delivery.is_cancelled
        raise RuntimeError("gave up as told")

    told = Told(app)
    async with working(app):
        await app.publish("orders", {"n": 1})
        (dead,) = await told.until("delivery.dead_lettered")

    assert "DOWNSTREAM_TIMEOUT_EXHAUSTED" == dead["reason_code"]


async def test_context_variables_of_one_message_are_not_seen_by_the_next() -> None:
    app = Redrive("shop", broker="memory://")
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
    seen = []

    @app.consumer("orders", concurrency=1)
    async def handle(order: dict[str, Any]) -> None:
        seen.append(variable.get())
        variable.set(order["n"])

    told = Told(app)
    async with working(app):
        await app.publish_many("orders", [{"n": n} for n in range(1, 6)])
        await told.until("deliveries.processed", 5)

    assert [0] * 5 == seen


@pytest.mark.parametrize(
    ("result", "name", "code"),
    [
        (200, "deliveries.processed", None),
        (None, "deliveries.processed", None),
        (503, "delivery.retry_scheduled", "HTTP_503"),
        (422, "delivery.dead_lettered", "HTTP_422"),
        (425, "delivery.requeued", None),
    ],
)
async def test_a_returned_status_decides_where_the_consumer_asks_for_it(
    result: int | None, name: str, code: str | None
) -> None:
    app = Redrive("shop", broker="memory://")

    @app.consumer("orders", http_status=True)
    async def handle(order: dict[str, Any]) -> int | None:
        return result

    told = Told(app)
    async with working(app):
        await app.publish("orders", {"n": 1})
        first = (await told.until(name))[0]

    assert code == first.get("error_code")


async def test_the_attempt_field_shows_the_true_attempt_and_the_letter_keeps_the_first_body(tmp_path: Any) -> None:
    app = Redrive("shop", broker=f"sqlite:////{tmp_path}/app.db")
    seen = []

    @app.consumer("orders", retry=Retry(max_attempts=3, backoff=AT_ONCE), attempt_field="attempt")
    async def handle(order: dict[str, Any], delivery: Delivery) -> None:
        seen.append((order["attempt"], delivery.attempt))
        raise ConnectionError("always")

    told = Told(app)
    async with working(app):
        await app.publish("orders", b'{"attempt": 1, "n": 5}', message_id="m-1")
        await told.until("delivery.dead_lettered")
        (letter,) = await letters(app)

    assert [(1, 1), (2, 2), (3, 3)] == seen
    assert letter.message.original_body == b'{"attempt": 1, "n": 5}'
