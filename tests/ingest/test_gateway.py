"""The gateway: answers in their order, limits, and what is enqueued."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from redrive.core.message import Message
from redrive.core.ports import Published
from redrive.errors import BrokerUnavailableError, ConfigurationError
from redrive.ingest import (
    Envelope,
    Gateway,
    GitHub,
    InvalidBody,
    InvalidField,
    Source,
    StandardWebhooks,
    Webhook,
    raw_message,
)
from redrive.runtime.app import Redrive
from redrive.runtime.events import EVENTS, Event
from redrive.testing import FakeClock
from tests.ingest.client import NOW_S, SECRET, Answer, send, signed
from tests.ingest.test_schemes import BODY_44, HUB_EMPTY, SECRET_1

Make = Callable[..., Gateway]
Queued = Callable[[], Awaitable[list[Message]]]
BODY = b'{"eventId":"e1"}'


# ------------------------------------------------------------------------------------------------ accepted


async def test_a_signed_webhook_is_durable_when_it_is_answered(gateway: Gateway, queued: Queued) -> None:
    answer = await send(gateway, BODY, signed(BODY, request_id="req_a1b2c3"))

    [message] = await queued()
    assert 202 == answer.status
    assert "req_a1b2c3" == answer.document["traceId"] == answer.headers["x-request-id"]
    assert answer.document["duplicate"] is False
    assert (BODY, answer.document["idempotencyKey"]) == (message.body, message.key)
    assert "req_a1b2c3" == message.properties.trace_id


async def test_wh01_the_bytes_are_queued_as_received_even_when_chunked(make: Make, queued: Queued) -> None:
    gateway = make(sources={"courier-x": [SECRET_1]}, scheme=StandardWebhooks())
    headers = [
        (b"webhook-id", b"msg_case_0001"),
        (b"webhook-timestamp", b"1700000000"),
        (b"webhook-signature", b"v1,ywGSpq74skIWO3MU2qsPbOf0jl7VQwkHDaabzy5bvKI="),
    ]

    whole = await send(gateway, BODY_44, headers)
    chunked = await send(gateway, [BODY_44[:5], b"", BODY_44[5:]], headers)

    assert [202, 202] == [whole.status, chunked.status]
    assert [False, True] == [whole.document["duplicate"], chunked.document["duplicate"]]
    assert [BODY_44] == [message.body for message in await queued()]


async def test_wh01_a_gzip_body_is_refused_before_its_signature_is_looked_at(gateway: Gateway, queued: Queued) -> None:
    packed = gzip.compress(BODY)

    answer = await send(gateway, packed, [*signed(packed), (b"content-encoding", b"gzip")])

    assert (415, "unsupported_encoding") == (answer.status, answer.code)
    assert "identity" == answer.headers["accept-encoding"]
    assert [] == await queued()


async def test_wh04_a_signed_empty_body_is_an_empty_message(make: Make, queued: Queued) -> None:
    gateway = make(sources={"hub": ["case-hub-secret"]}, scheme=GitHub())

    answer = await send(gateway, b"", [(b"x-hub-signature-256", HUB_EMPTY.encode())], path="/hub")

    assert 202 == answer.status
    assert [b""] == [message.body for message in await queued()]


async def test_the_log_names_the_secrets_index_and_never_the_secret(make: Make, happened: list[Event]) -> None:
    gateway = make(sources={"courier-x": ["the-new-secret", SECRET]})

    await send(gateway, BODY, signed(BODY))

    [accepted] = [event for event in happened if event.name == "ingest.accepted"]
    assert 1 == accepted.fields["secret_index"]
    assert len(BODY) == accepted.fields["body_bytes"]
    assert SECRET not in repr(happened)
    assert SECRET not in repr(gateway._lanes)


async def test_every_event_has_exactly_the_fields_of_its_row(gateway: Gateway, happened: list[Event]) -> None:
    await send(gateway, BODY, signed(BODY))
    await send(gateway, BODY, [])

    told = [event for event in happened if event.name.startswith("ingest.")]
    assert ["ingest.accepted", "ingest.refused"] == [event.name for event in told]
    assert all(event.fields.keys() == EVENTS[event.name].fields.keys() for event in told)


# ------------------------------------------------------------------------------------------------ duplicates (WH-08)


async def test_wh08_the_same_webhook_twice_is_enqueued_once(gateway: Gateway, queued: Queued) -> None:
    answers = await asyncio.gather(*(send(gateway, BODY, signed(BODY)) for _ in range(20)))

    assert {202} == {answer.status for answer in answers}
    assert [False] + [True] * 19 == sorted(answer.document["duplicate"] for answer in answers)
    assert 1 == len(await queued())


async def test_wh08_another_body_under_the_key_is_409_and_an_alert(
    make: Make, clock: FakeClock, happened: list[Event], queued: Queued
) -> None:
    gateway = make(build=raw_message(id_field="id"))
    first, other = b'{"id":"m1","n":1}', b'{"id":"m1","n":2}'
    await send(gateway, first, signed(first))
    await clock.advance(3_600_000)

    answer = await send(gateway, other, signed(other, timestamp=str(NOW_S + 3_600)))

    assert (409, "key_conflict") == (answer.status, answer.code)
    assert "courier-x:m1" == answer.document["idempotencyKey"]
    assert "ingest.conflict" in [event.name for event in happened]
    assert [first] == [message.body for message in await queued()]


# ------------------------------------------------------------------------------------------------ the order of checks


def refusing(answer: Exception) -> Callable[[Webhook], Envelope]:
    def build(_: Webhook) -> Envelope:
        raise answer

    return build


async def test_the_checks_come_in_the_order_of_the_system(make: Make, app: Redrive) -> None:
    """Each request has every fault from its own on; the answer names the first."""
    big = b"x" * 101
    bad_json, bad_field = refusing(InvalidBody("no object")), refusing(InvalidField("eventId", "eventId is required."))
    limited = make(max_body_bytes=100, rate=1, build=bad_json)
    await send(limited, BODY, [])

    assert 413 == (await send(limited, big, [], path="/nobody")).status
    assert 413 == (await send(limited, [big], [], path="/nobody")).status
    assert 404 == (await send(limited, BODY, [], path="/nobody")).status
    assert 429 == (await send(limited, BODY, [])).status
    assert 401 == (await send(make(build=bad_json), BODY, [])).status
    assert 400 == (await send(make(build=bad_json), BODY, signed(BODY))).status
    await app.close()
    assert 422 == (await send(make(build=bad_field), BODY, signed(BODY))).status
    assert 503 == (await send(make(), BODY, signed(BODY))).status
    await app.open()


async def test_a_wrong_field_is_named(make: Make) -> None:
    gateway = make(build=refusing(InvalidField("eventId", "eventId is required.")))

    answer = await send(gateway, BODY, signed(BODY))

    assert (422, "eventId", "eventId is required.") == (
        answer.status,
        answer.document["field"],
        answer.document["detail"],
    )


async def test_the_rate_holds_per_source_and_says_when_to_come_back(make: Make, clock: FakeClock) -> None:
    gateway = make(sources={"a": Source(secrets=[SECRET], rate=2), "b": [SECRET]})

    statuses = [(await send(gateway, BODY, [], path="/a")).status for _ in range(3)]
    limited = await send(gateway, BODY, [], path="/a")
    other = await send(gateway, BODY, [], path="/b")
    await clock.advance(1_000)
    later = await send(gateway, BODY, [], path="/a")

    assert [401, 401, 429] == statuses
    assert (429, "1") == (limited.status, limited.headers["retry-after"])
    assert [401, 401] == [other.status, later.status]


# ------------------------------------------------------------------------------------------------ the broker is away


class Broken:
    """A publish that raises, or hangs until it is told to go on."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.go = asyncio.Event()

    async def __call__(self, *_: Any, **__: Any) -> Published:
        if self.error is not None:
            raise self.error
        await self.go.wait()
        return Published()


async def test_a_broker_that_is_away_is_503_with_retry_after(
    gateway: Gateway, app: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "publish", Broken(BrokerUnavailableError("The file is locked.")))

    answer = await send(gateway, BODY, signed(BODY))

    assert (503, "broker_unavailable", "5") == (answer.status, answer.code, answer.headers["retry-after"])


async def test_an_app_nobody_opened_is_503_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    gateway = Gateway(Redrive("shop", broker="memory://", clock=clock), "orders", sources={"courier-x": [SECRET]})

    answers = [await send(gateway, BODY, signed(BODY)) for _ in range(2)]

    assert [(503, "broker_unavailable")] * 2 == [(answer.status, answer.code) for answer in answers]
    [record] = caplog.records
    assert 'The app "shop" is not open.' in record.getMessage()


async def test_a_publish_that_hangs_is_503_and_keeps_its_place_until_it_ends(
    make: Make, app: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = Broken()
    monkeypatch.setattr(app, "publish", hanging)
    gateway = make(enqueue_timeout="500ms", max_in_flight=1)

    late = await send(gateway, BODY, signed(BODY))
    shed = await send(gateway, BODY, signed(BODY))
    hanging.go.set()
    async with asyncio.timeout(60):
        while gateway._in_flight:
            await asyncio.sleep(0)
    after = await send(gateway, BODY, signed(BODY))

    assert [503, 503, 202] == [late.status, shed.status, after.status]
    assert ["broker_unavailable", "overloaded"] == [late.code, shed.code]


async def test_a_bug_is_a_500_document_without_a_trace_and_raises_for_the_servers_log(make: Make) -> None:
    gateway = make(build=refusing(ZeroDivisionError("secret inner state")))
    seen: list[Answer] = []

    with pytest.raises(ZeroDivisionError):
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=gateway), base_url="http://gateway"
        ) as client:  # the transport raises what the app raised
            await client.post("/courier-x", content=BODY, headers=signed(BODY))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=gateway, raise_app_exceptions=False), base_url="http://gateway"
    ) as client:
        response = await client.post("/courier-x", content=BODY, headers=signed(BODY))
        seen.append(Answer(status=response.status_code, headers=response.headers, body=response.content))

    assert (500, "internal_error") == (seen[0].status, seen[0].code)
    assert "secret inner state" not in seen[0].body.decode()


# ------------------------------------------------------------------------------------------------ bodies and methods


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_only_post_is_taken(gateway: Gateway, method: str) -> None:
    answer = await send(gateway, b"", method=method)

    assert (405, "POST") == (answer.status, answer.headers["allow"])
    assert (b"" == answer.body) is (method == "HEAD")


@pytest.mark.parametrize("path", ["/", "", "/a/b", "/courier-x/"])
async def test_other_paths_are_404(gateway: Gateway, path: str) -> None:
    assert (404, "not_found") == ((answer := await send(gateway, b"", path=path)).status, answer.code)


@pytest.mark.parametrize("declared", [b"101", b"9" * 5_000, b"1" + b"0" * 18])
async def test_a_declared_length_over_the_limit_is_refused_unread(make: Make, declared: bytes) -> None:
    gateway = make(max_body_bytes=100)

    answer = await send(gateway, [], [(b"content-length", declared)])

    assert (413, 100) == (answer.status, answer.document["limitBytes"])


@pytest.mark.parametrize("declared", [b"", b"-1", b"1e3", b"\xb2"])
async def test_a_length_that_is_no_number_is_400(gateway: Gateway, declared: bytes) -> None:
    assert 400 == (await send(gateway, b"", [(b"content-length", declared)], declared=False)).status


async def test_a_body_of_exactly_the_limit_is_taken(make: Make) -> None:
    gateway = make(max_body_bytes=len(BODY))

    assert 202 == (await send(gateway, BODY, signed(BODY))).status
    assert 413 == (await send(gateway, [BODY, b"x"], signed(BODY))).status


async def test_a_client_that_leaves_is_not_answered_and_nothing_is_queued(gateway: Gateway, queued: Queued) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def collect(event: Any) -> None:
        sent.append(event)

    scope = {"type": "http", "method": "POST", "path": "/courier-x", "headers": signed(b"")}
    await gateway(scope, receive, collect)

    assert [] == sent
    assert [] == await queued()
    assert 0 == gateway._in_flight


async def test_a_slow_body_is_cut_off(make: Make) -> None:
    gateway = make(body_timeout="20ms")
    never = asyncio.Event()
    sent: list[Any] = []

    async def receive() -> Any:
        await never.wait()

    async def collect(event: Any) -> None:
        sent.append(event)

    await gateway({"type": "http", "method": "POST", "path": "/courier-x", "headers": []}, receive, collect)

    assert 408 == sent[0]["status"]


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "é", "a\nb", "<script>"])
async def test_an_odd_request_id_is_replaced(gateway: Gateway, given: str) -> None:
    answer = await send(gateway, BODY, [*signed(BODY), (b"x-request-id", given.encode())])

    assert 202 == answer.status
    assert answer.headers["x-request-id"].startswith("req_")
    assert given != answer.document["traceId"]


async def test_a_websocket_is_turned_away(gateway: Gateway) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def collect(event: Any) -> None:
        sent.append(event)

    await gateway({"type": "websocket"}, receive, collect)

    assert "websocket.close" == sent[0]["type"]


# ------------------------------------------------------------------------------------------------ mounting


async def test_it_can_be_mounted_below_any_path(gateway: Gateway) -> None:
    outer = Starlette(routes=[Mount("/v1", app=Starlette(routes=[Mount("/webhooks", app=gateway)]))])

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=outer), base_url="http://outer") as client:
        accepted = await client.post("/v1/webhooks/courier-x", content=BODY, headers=signed(BODY))
        unknown = await client.post("/v1/webhooks/nobody", content=BODY)

    assert [202, 404] == [accepted.status_code, unknown.status_code]
    assert "urn:redrive:error:unknown_source" == unknown.json()["type"]


async def test_served_by_itself_it_opens_and_closes_its_app() -> None:
    app = Redrive("alone", broker="memory://")
    gateway = Gateway(app, "q", sources={})
    incoming = iter(["lifespan.startup", "lifespan.shutdown"])
    sent: list[str] = []
    was_open: list[bool] = []

    async def receive() -> Any:
        was_open.append(app.is_open)
        return {"type": next(incoming)}

    async def collect(event: Any) -> None:
        sent.append(event["type"])

    await gateway({"type": "lifespan"}, receive, collect)

    assert ["lifespan.startup.complete", "lifespan.shutdown.complete"] == sent
    assert [[False, True], False] == [was_open, app.is_open]


# ------------------------------------------------------------------------------------------------ configuration


@pytest.mark.parametrize(
    "options",
    [
        {"sources": {"a/b": ["s"]}},
        {"sources": {"": ["s"]}},
        {"sources": {"a": []}},
        {"sources": {"a": "secret"}},
        {"sources": {"a": [""]}},
        {"sources": {"a": ["s"] * 11}},
        {"sources": {"a": Source(secrets=["s"], rate=0)}},
        {"sources": {"a": ["not base64!"]}, "scheme": StandardWebhooks()},
        {"tolerance": "soon"},
        {"max_body_bytes": 0},
        {"max_in_flight": 0},
        {"rate": 0},
    ],
)
def test_wrong_settings_are_named_at_once(make: Make, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        make(**options)


async def test_a_rotation_takes_effect_with_the_next_request(gateway: Gateway) -> None:
    body = json.dumps({"n": 1}).encode()
    headers = signed(body, secret="next-secret")

    before = await send(gateway, body, headers)
    gateway.replace_sources({"courier-x": ["next-secret", SECRET]})
    after = await send(gateway, body, headers)

    assert [401, 202] == [before.status, after.status]


async def test_a_rotation_gives_a_sender_no_fresh_burst(make: Make) -> None:
    gateway = make(rate=1)
    first = await send(gateway, BODY, [])

    gateway.replace_sources({"courier-x": ["next-secret", SECRET]})
    second = await send(gateway, BODY, [])

    assert [401, 429] == [first.status, second.status]
