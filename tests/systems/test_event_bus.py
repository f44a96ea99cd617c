"""System B, letter by letter from its page: names, statuses, the limit of ten retries, dead letters, manual retry."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from redrive.core.letters.letter import ReviewState
from redrive.core.topology.recipes import fanout_bus
from redrive.web.server import HttpServer
from tests.push.endpoint import Decide, Endpoint, Reply, endpoint, replies
from tests.systems.conftest import Place
from tests.systems.loading import Running, example, running

CINCOUT, LABELS = "wms.queue.wms-cincout", "wms.queue.wms-labels"
EXCHANGE = "wms.main-exchange"
CHECK_IN = {"sku": "A-1", "kind": "check-in", "quantity": 5}
CHECK_OUT = {"sku": "A-1", "kind": "check-out", "quantity": 2}
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@asynccontextmanager
async def bus(
    place: Place, decide: Decide | None = None, **environment: str
) -> AsyncIterator[tuple[ModuleType, Running, Endpoint]]:
    """The example with both consumers running, and an endpoint in place of the label service."""
    async with endpoint(decide) as service:
        variables = {"BUS_RETRY_DELAY_MS": "100", "LABELS_URL": service.url, **place.environment, **environment}
        with example("event_bus", **variables) as system:
            async with running(system.app) as run:
                yield system, run, service


async def send(system: ModuleType, payload: Any, **arguments: Any) -> None:
    await system.app.publish("", payload, exchange=EXCHANGE, **arguments)


# ------------------------------------------------------------------------------------------------ names


def test_every_name_and_argument_is_the_systems_own() -> None:
    with example("event_bus") as system:
        topology = system.app.topology

    types = {
        "wms.main-exchange": "fanout",
        "wms.retry-exchange.wms-cincout": "direct",
        "wms.retry-exchange.wms-labels": "direct",
    }
    assert types == {each.name: each.type for each in topology.exchanges}
    expected = {}
    for service in ("wms-cincout", "wms-labels"):
        expected[f"wms.queue.{service}"] = {
            "x-queue-type": "classic",
            "x-dead-letter-exchange": f"wms.retry-exchange.{service}",
            "x-dead-letter-routing-key": "retry",
        }
        expected[f"wms.retry-queue.{service}"] = {
            "x-queue-type": "classic",
            "x-message-ttl": 5_000,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": f"wms.queue.{service}",
        }
        expected[f"wms.dlq.{service}"] = {"x-queue-type": "classic"}
    assert expected == {each.name: dict(each.arguments) for each in topology.queues}
    assert {each.durable for each in (*topology.queues, *topology.exchanges)} == {True}
    assert {
        ("wms.main-exchange", "wms.queue.wms-cincout", ""),
        ("wms.main-exchange", "wms.queue.wms-labels", ""),
        ("wms.retry-exchange.wms-cincout", "wms.retry-queue.wms-cincout", "retry"),
        ("wms.retry-exchange.wms-labels", "wms.retry-queue.wms-labels", "retry"),
    } == {(each.source, each.destination, each.routing_key) for each in topology.bindings}


@pytest.mark.parametrize(
    ("service", "prefix"), [("wms-cincout", "wms"), ("xyz-service", "xyz"), ("a-b-c", "a"), ("plain", "default")]
)
def test_the_prefix_is_what_stands_before_the_first_hyphen(service: str, prefix: str) -> None:
    names = {each.name for each in fanout_bus(service).queues}

    assert {f"{prefix}.queue.{service}", f"{prefix}.retry-queue.{service}", f"{prefix}.dlq.{service}"} == names


def test_the_handler_runs_at_most_eleven_times() -> None:
    with example("event_bus") as system:
        assert [11, 11] == [consumer.max_attempts for consumer in system.app.consumers.values()]
        assert ["wms.dlq.wms-cincout", "wms.dlq.wms-labels"] == [
            consumer.dead_letter_queue for consumer in system.app.consumers.values()
        ]


# ------------------------------------------------------------------------------------------------ the two services


async def test_one_event_reaches_both_services_once(place: Place) -> None:
    async with bus(place) as (system, run, service):
        await send(system, CHECK_IN, message_id="m-1")
        await send(system, CHECK_OUT, message_id="m-2")
        await run.until(lambda: run.processed(CINCOUT) == 2 and run.processed(LABELS) == 2)

    assert {"m-1", "m-2"} == {request.headers["webhook-id"] for request in service.requests}
    assert [CHECK_IN, CHECK_OUT] == sorted((json.loads(request.body) for request in service.requests), key=str)


async def test_what_fails_in_one_service_comes_back_to_that_one_only(place: Place) -> None:
    async with bus(place, replies(500, 429, 409, 200)) as (system, run, service):
        await send(system, CHECK_IN)
        await run.until(lambda: run.processed(LABELS) == 1 and run.processed(CINCOUT) == 1)

        assert ["1", "2", "3", "4"] == [request.headers["redrive-attempt"] for request in service.requests]
        assert [] == run.named("delivery.retry_scheduled", queue=CINCOUT)
        assert 1 == run.processed(CINCOUT)


async def test_after_ten_retries_the_event_lies_in_the_dead_letter_queue(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    async with bus(place, replies(Reply(status=503, body=b"down"))) as (system, run, service):
        await send(system, CHECK_IN, message_id="m-1")
        await run.until(lambda: run.named("delivery.dead_lettered") and run.processed(CINCOUT))
        (letter,) = await run.letters()

        assert 11 == len(service.requests)
        assert [str(n) for n in range(1, 12)] == [request.headers["redrive-attempt"] for request in service.requests]
        assert ("HTTP_503_EXHAUSTED", 11, "wms.dlq.wms-labels") == (
            letter.reason.code,
            letter.attempt_count,
            letter.dead_letter_queue,
        )
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    (alert,) = [line for line in lines if line.get("code") == "RABBITMQ_MESSAGE_MAX_RETRIES_EXCEEDED"]
    assert ("m-1", LABELS, 10) == (alert["messageId"], alert["queue"], alert["retryCount"])


async def test_a_python_handler_follows_the_same_table(place: Place) -> None:
    """409 until the goods are there, then booked once."""
    async with bus(place) as (system, run, _service):
        await send(system, CHECK_OUT, message_id="out")
        await run.until(lambda: run.named("delivery.retry_scheduled", queue=CINCOUT))
        await send(system, CHECK_IN, message_id="in")
        await run.until(lambda: run.processed(CINCOUT) == 2)

        assert {"HTTP_409"} == {each["error_code"] for each in run.named("delivery.retry_scheduled")}
        assert () == tuple(await run.letters())


async def test_425_costs_no_retry(place: Place) -> None:
    """Fifteen times too early is no failure: it never counts towards the ten retries."""
    waits = Reply(status=425, headers=((b"retry-after", b"0"),))
    async with bus(place, replies(*[waits] * 15, 200)) as (system, run, service):
        await send(system, CHECK_IN)
        await run.until(lambda: run.processed(LABELS) == 1)

        assert {"1"} == {request.headers["redrive-attempt"] for request in service.requests}
        assert 16 == len(service.requests)


async def test_a_delayed_event_waits_and_others_do_not(place: Place) -> None:
    async with bus(place) as (system, run, service):
        await send(system, {**CHECK_IN, "processAfterDelayMs": 2_500}, message_id="late")
        published_at = system.app.clock.now()
        await send(system, CHECK_OUT | {"kind": "check-in"}, message_id="now")
        await run.until(lambda: run.processed(LABELS) == 1 and run.processed(CINCOUT) == 1)
        first = [request.headers["webhook-id"] for request in service.requests]
        await run.until(lambda: run.processed(LABELS) == 2 and run.processed(CINCOUT) == 2)
        took_ms = system.app.clock.now() - published_at

    assert ["now"] == first
    assert took_ms >= 2_400  # the publish time of a broker without milliseconds is cut to whole seconds elsewhere
    assert 2 == len(service.requests)


async def test_manual_retry_is_one_redrive_with_a_full_budget(place: Place) -> None:
    down = threading.Event()
    down.set()

    def decide(_request: Any) -> Reply:
        return Reply(status=500 if down.is_set() else 200)

    async with bus(place, decide) as (system, run, service):
        await send(system, CHECK_IN, message_id="m-1")
        await run.until(lambda: run.named("delivery.dead_lettered"))
        assert 1 == await run.redrive(LABELS)
        await run.until(lambda: len(run.named("delivery.dead_lettered")) == 2)
        down.clear()
        assert 1 == await run.redrive(LABELS)
        await run.until(lambda: run.processed(LABELS) == 1)

        assert 11 + 11 + 1 == len(service.requests)
        assert 1 == run.processed(CINCOUT)
        assert {ReviewState.CLOSED} == {
            letter.state for letter in await run.letters(states=frozenset({ReviewState.CLOSED}))
        }


async def test_with_keep_attempts_a_redriven_event_has_the_budget_it_had(place: Place) -> None:
    async with bus(place, replies(500)) as (system, run, service):
        await send(system, CHECK_IN, message_id="m-1")
        await run.until(lambda: run.named("delivery.dead_lettered"))
        assert 11 == len(service.requests)

        await run.redrive(LABELS, keep_attempts=True)
        await run.until(lambda: len(run.named("delivery.dead_lettered")) == 2)

        assert len(service.requests) <= 12


# ------------------------------------------------------------------------------------------------ the other service


async def test_the_label_service_prints_once_and_checks_the_signature(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABELS_SECRETS", SECRET)
    monkeypatch.setenv("LABELS_FOLDER", str(tmp_path / "labels"))
    from examples.event_bus.label_service import service

    async with HttpServer(service) as server:
        variables = {
            "LABELS_URL": f"{server.url}/labels",
            "LABELS_SECRETS": SECRET,
            "LABELS_FOLDER": str(tmp_path / "labels"),
            "BUS_RETRY_DELAY_MS": "50",
        }
        with example("event_bus", **variables, **place.environment) as system:
            async with running(system.app) as run:
                await send(system, CHECK_IN, message_id="in")
                await send(system, CHECK_OUT, message_id="out")
                await send(system, b"no movement", message_id="junk")
                await run.until(
                    lambda: run.processed(LABELS) == 2 and run.named("delivery.dead_lettered", queue=LABELS)
                )
                letters = await run.letters(queue=LABELS)

    assert ["out.svg"] == [path.name for path in (tmp_path / "labels").iterdir()]
    assert ["HTTP_422_EXHAUSTED"] == [letter.reason.code for letter in letters]
