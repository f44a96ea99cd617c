"""System A, gateway: answers and the message, letter by letter."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from redrive.core.message import Message
from redrive.testing import FakeClock
from tests import redis as redis_servers
from tests.systems.courier import MAIN_QUEUE, SECRETS, courier, signed, webhook

NOW_S = 1_700_000_000
RECEIVED_AT = "2023-11-14T22:13:20.000Z"


@pytest.fixture
async def system() -> AsyncIterator[ModuleType]:
    with courier(REDRIVE_BROKER="memory://", COURIER_SECRETS=SECRETS) as system:
        system.app.clock = FakeClock()
        async with system.app:
            yield system


async def post(system: ModuleType, body: bytes, **headers: str) -> httpx.Response:
    """One signed webhook to the mounted gateway."""
    [(path, gateway)] = system.app.mounts.items()
    transport = httpx.ASGITransport(app=gateway, root_path=path)
    async with httpx.AsyncClient(transport=transport, base_url="http://courier") as client:
        return await client.post(f"{path}/courier-x", content=body, headers=signed(body, timestamp=NOW_S) | headers)


async def queued(system: ModuleType) -> list[Message]:
    found: list[Message] = await system.app.backend.broker.peek(MAIN_QUEUE, limit=100)
    return found


async def test_the_answer_and_the_message_are_those_of_the_system(system: ModuleType) -> None:
    body = webhook(occurredAt="2023-11-14T22:13:19Z")

    answer = await post(system, body, **{"x-request-id": "req_a1b2c3"})

    assert 202 == answer.status_code
    assert answer.json() == {
        "eventId": "evt-1",
        "idempotencyKey": "courier-x:evt-1",
        "traceId": "req_a1b2c3",
        "duplicate": False,
    }
    [message] = await queued(system)
    assert json.loads(message.body) == {
        "eventId": "evt-1",
        "eventType": "shipment.status.updated",
        "idempotencyKey": "courier-x:evt-1",
        "traceId": "req_a1b2c3",
        "payload": {"shipmentId": "SHP-1", "orderId": "ORD-1", "status": "in_transit"},
        "occurredAt": "2023-11-14T22:13:19Z",
        "receivedAt": RECEIVED_AT,
        "source": "courier-x",
        "signatureMeta": {
            "algorithm": "hmac-sha256",
            "timestamp": NOW_S,
            "signature": signed(body, timestamp=NOW_S)["x-signature"].removeprefix("sha256="),
        },
        "attempt": 1,
    }
    assert ("courier-x:evt-1", "shipment.status.updated") == (message.key, message.properties.type)
    assert ":" not in message.id


@pytest.mark.parametrize("version", [redis_servers.OLD, redis_servers.NEW])
async def test_in_redis_an_accepted_webhook_is_one_job_however_often_it_comes(version: str, tmp_path: Path) -> None:
    server = redis_servers.empty_server(version)
    here = {"REDRIVE_BROKER": server.url, "REDRIVE_STORE": f"sqlite:///{tmp_path / 'courier.db'}"}
    body = webhook()
    with courier(**here, COURIER_SECRETS=SECRETS) as system:
        async with system.app:
            headers = signed(body, timestamp=int(time.time()))
            answers = [await post(system, body, **headers) for _ in range(2)]

    (job_id,) = server.ask("LRANGE", "bull:courier-events-main:wait", 0, -1)
    job = server.ask("HGETALL", b"bull:courier-events-main:" + job_id)
    data = json.loads(dict(zip(job[::2], job[1::2], strict=True))[b"data"])
    assert [(202, False), (202, True)] == [(answer.status_code, answer.json()["duplicate"]) for answer in answers]
    assert b":" not in job_id
    assert ("courier-x:evt-1", 1) == (data["idempotencyKey"], data["attempt"])


async def test_a_trace_id_is_made_where_none_came(system: ModuleType) -> None:
    answer = await post(system, webhook())

    [message] = await queued(system)
    assert answer.json()["traceId"].startswith("req_")
    assert answer.json()["traceId"] == json.loads(message.body)["traceId"] == message.properties.trace_id


async def test_the_payload_keeps_the_bytes_the_courier_wrote(system: ModuleType) -> None:
    payload = b'{"id":9007199254740993, "weight":1.10,"name":"caf\\u00e9 \xf0\x9f\x98\x8a"}'
    body = b'{"payload":' + payload + b',"eventType":"t","eventId":"e1"}'

    answer = await post(system, body)

    [message] = await queued(system)
    assert 202 == answer.status_code
    assert payload in message.body


async def test_the_sender_may_choose_the_key_but_not_what_the_gateway_says(system: ModuleType) -> None:
    forged = {"attempt": 99, "source": "other", "traceId": "mine", "receivedAt": "never", "signatureMeta": {"x": 1}}

    answer = await post(system, webhook(idempotencyKey="own-key", extra={"kept": [1]}, **forged))

    [message] = await queued(system)
    sent = json.loads(message.body)
    assert "own-key" == answer.json()["idempotencyKey"] == sent["idempotencyKey"] == message.key
    assert (1, "courier-x", RECEIVED_AT) == (sent["attempt"], sent["source"], sent["receivedAt"])
    assert "mine" != sent["traceId"]
    assert "hmac-sha256" == sent["signatureMeta"]["algorithm"]
    assert {"kept": [1]} == sent["extra"]


async def test_a_second_post_of_a_key_is_a_duplicate_and_another_body_a_conflict(system: ModuleType) -> None:
    first = await post(system, webhook())
    repeat = await post(system, webhook())
    other = await post(system, webhook(payload={"shipmentId": "SHP-2"}))

    assert [202, 202, 409] == [first.status_code, repeat.status_code, other.status_code]
    assert [False, True] == [first.json()["duplicate"], repeat.json()["duplicate"]]
    assert "application/problem+json" == other.headers["content-type"]
    assert 1 == len(await queued(system))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"text"',
        b"null",
        b"{",
        b'{"eventId":"e"} x',
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b'{"eventId":"\xff","eventType":"t","payload":{}}',
        b'{"eventId":"\\ud800","eventType":"t","payload":{}}',
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":NaN}',
    ],
)
async def test_what_is_not_a_json_object_is_400(system: ModuleType, body: bytes) -> None:
    answer = await post(system, body)

    assert (400, "urn:redrive:error:invalid_body") == (answer.status_code, answer.json()["type"])
    assert [] == await queued(system)


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"eventId": None}, "eventId"),
        ({"eventId": ""}, "eventId"),
        ({"eventId": "  "}, "eventId"),
        ({"eventId": 7}, "eventId"),
        ({"eventId": "x" * 513}, "eventId"),
        ({"eventId": "a\x00b"}, "eventId"),
        ({"eventType": None}, "eventType"),
        ({"eventType": ["t"]}, "eventType"),
        ({"payload": None}, "payload"),
        ({"payload": []}, "payload"),
        ({"payload": "{}"}, "payload"),
        ({"occurredAt": "yesterday"}, "occurredAt"),
        ({"occurredAt": 1_700_000_000}, "occurredAt"),
        ({"occurredAt": "2023-11-14T22:13:19"}, "occurredAt"),
        ({"occurredAt": "2023-11-14T22:13:19+01:00"}, "occurredAt"),
        ({"occurredAt": "2023-02-30T00:00:00Z"}, "occurredAt"),
        ({"idempotencyKey": ""}, "idempotencyKey"),
        ({"idempotencyKey": {}}, "idempotencyKey"),
    ],
)
async def test_a_wrong_field_is_422_and_named(system: ModuleType, members: dict[str, Any], field: str) -> None:
    answer = await post(system, webhook(**members))

    assert (422, field) == (answer.status_code, answer.json()["field"])
    assert [] == await queued(system)


async def test_both_secrets_of_a_rotation_hold_and_a_wrong_one_does_not(system: ModuleType) -> None:
    body = webhook()

    statuses = [
        (await post(system, body, **signed(body, timestamp=NOW_S, secret=secret))).status_code
        for secret in ("next-secret", "courier-secret", "old-secret")
    ]

    assert [202, 202, 401] == statuses


@pytest.mark.parametrize(("sent_s", "status"), [(-300, 202), (300, 202), (-301, 401), (301, 401)])
async def test_the_tolerance_is_300_s_on_both_sides(system: ModuleType, sent_s: int, status: int) -> None:
    body = webhook()

    answer = await post(system, body, **signed(body, timestamp=NOW_S + sent_s))

    assert status == answer.status_code
