"""A message sent over HTTP is the one that is handled: exact bytes, every kind of header, once for each key."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from redrive.core.access import Role
from redrive.runtime.app import Redrive
from redrive.testing.samples import QUEUE
from redrive.web.admin.keys import request_key
from tests.web.conftest import Api, code

PATH = f"/api/v1/queues/{QUEUE}/messages"


async def taken(app: Redrive) -> list[Any]:
    found = await app.backend.broker.receive(QUEUE, limit=10, lease_ms=60_000, worker="w1", wait_ms=0)
    return [each.message for each in found]


async def test_everything_asked_for_is_in_the_message(api: Api, app: Redrive) -> None:
    asked = {
        "payload": {"id": 1},
        "key": "order-1",
        "message_id": "m-1",
        "tenant": "acme",
        "priority": 3,
        "type": "order.created",
        "headers": {"region": "eu", "at": {"$time": "2026-01-31T12:00:00Z"}, "raw": {"$bytes": "/w=="}},
        "ttl_ms": 60_000,
    }

    answer = await api.post(PATH, asked)
    [message] = await taken(app)

    assert {"queue": QUEUE, "published": 1, "duplicates": 0, "conflicts": 0, "message_id": "m-1"} == answer.json()
    assert (b'{"id":1}', "application/json") == (message.body, message.content_type)
    assert ("m-1", "order-1", "acme", 3) == (message.id, message.key, message.tenant, message.priority)
    assert ("order.created", 60_000) == (message.properties.type, message.expires_at - message.published_at)
    assert ("eu", b"\xff", 2026) == (
        message.headers["region"],
        message.headers["raw"],
        message.headers["at"].year,
    )


@pytest.mark.parametrize(
    ("given", "content", "content_type"),
    [
        ({"payload": None}, b"null", "application/json"),
        ({"payload": ""}, b'""', "application/json"),
        ({"body": ' {"a" : 1} ', "content_type": "application/json"}, b' {"a" : 1} ', "application/json"),
        ({"body": ""}, b"", "text/plain; charset=utf-8"),
        ({"body": {"$bytes": base64.b64encode(bytes(range(256))).decode()}}, bytes(range(256)), None),
    ],
)
async def test_a_body_is_sent_byte_for_byte(
    api: Api, app: Redrive, given: dict[str, Any], content: bytes, content_type: str | None
) -> None:
    assert 200 == (await api.post(PATH, given)).status_code

    [message] = await taken(app)
    assert (content, content_type) == (message.body, message.content_type)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"payload": 1, "body": "1"},
        {"payload": 1, "once": True},
        {"payload": 1, "priority": -1},
        {"payload": 1, "headers": {"a": {"$time": "soon"}}},
        {"body": {"$bytes": "no base64"}},
        {"body": {"bytes": ""}},
        {"payload": 1, "delay": "5s"},
    ],
)
async def test_what_cannot_be_sent_is_refused_and_nothing_goes_out(api: Api, app: Redrive, given: Any) -> None:
    assert 422 == code(await api.post(PATH, given))[0]
    assert [] == await taken(app)


@pytest.mark.parametrize("field", ["payload", "headers"])
async def test_what_is_nested_too_deep_is_refused(api: Api, app: Redrive, field: str) -> None:
    """At every depth: about where the reader of JSON gives up it is a matter of one level more or less."""
    seen = set()
    for depth in (201, *range(850, 1_000), 5_000, 100_000):
        given = b'{"%s": %s1%s}' % (field.encode(), b'{"a":' * depth, b"}" * depth)
        seen.add(code(await api.ask("POST", PATH, content=given, headers={"content-type": "application/json"})))

    assert {(400, "malformed"), (422, "invalid")} == seen
    assert [] == await taken(app)


@pytest.mark.parametrize(
    ("text", "is_nul"),
    [(rb"\\u0000", False), (rb"\\\\u0000", False), (rb"\u0000", True), (rb"\\\u0000", True), (rb"\\", False)],
)
@pytest.mark.parametrize("payload", [b'"%s"', b'[{"a":"%s"}]', b'{"%s":1}'])
async def test_a_nul_is_refused_and_what_only_looks_like_one_is_sent(
    api: Api, app: Redrive, payload: bytes, text: bytes, is_nul: bool
) -> None:
    given = payload % text

    answer = await api.ask(
        "POST", PATH, content=b'{"payload":%s}' % given, headers={"content-type": "application/json"}
    )

    assert (422 if is_nul else 200) == answer.status_code
    assert ([] if is_nul else [given]) == [each.body for each in await taken(app)]


async def test_what_is_nested_deep_is_sent(api: Api, app: Redrive) -> None:
    payload = b"[" * 150 + b"]" * 150

    await api.ask("POST", PATH, content=b'{"payload":%s}' % payload, headers={"content-type": "application/json"})
    [message] = await taken(app)

    assert payload == message.body


async def test_what_nobody_foresaw_is_a_problem_document_also_before_the_operation(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*given: Any, **named: Any) -> Any:
        raise KeyError("card 4111")

    monkeypatch.setattr(api.api._guard, "identify", broken)
    answer = await api.post(PATH, {"payload": 1})

    assert (500, "internal") == code(answer)
    assert [{"operation": "POST", "error_type": "KeyError"}] == api.named("api.failed")


async def test_a_queue_nobody_knows_gets_no_message(api: Api, app: Redrive) -> None:
    answer = await api.post("/api/v1/queues/ordres/messages", {"payload": 1})

    assert 404 == code(answer)[0]
    assert "ordres" not in {depth.queue for depth in await app.backend.broker.depths(["ordres"])}


async def test_a_message_that_waits_is_not_handed_out(api: Api, app: Redrive) -> None:
    await api.post(PATH, {"payload": 1, "delay_ms": 5_000})

    assert [] == await taken(app)


async def test_once_sends_only_what_the_queue_does_not_know(api: Api, app: Redrive) -> None:
    asked = {"payload": 1, "key": "order-1", "once": True}

    first, second = (await api.post(PATH, asked)).json(), (await api.post(PATH, asked)).json()

    assert [(1, 0), (0, 1)] == [(each["published"], each["duplicates"]) for each in (first, second)]
    assert 1 == len(await taken(app))


async def test_the_same_idempotency_key_sends_once(api: Api, app: Redrive) -> None:
    headers = {"idempotency-key": '"k-1"'}

    answers = [await api.post(PATH, {"payload": 1}, headers=headers) for _ in range(2)]
    other = await api.post(PATH, {"payload": 2}, headers=headers)
    [message] = await taken(app)

    assert answers[0].json() == answers[1].json()
    assert (422, "key_reused") == code(other)
    # Also a repeat that was not told of the first is the same message to its consumer.
    assert message.id == message.key == answers[0].json()["message_id"] == request_key("operator-ann", "k-1")


async def test_a_viewer_sends_nothing(api: Api, app: Redrive) -> None:
    assert (403, "forbidden") == code(await api.post(PATH, {"payload": 1}, role=Role.VIEWER))
    assert [] == await taken(app)
