"""Generated webhooks of the worst kind, most of them correctly signed: every one is answered, none stops the gateway.

The Hypothesis profile says how many (`campaign`: 10 000 examples of several requests each).
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from redrive.ingest import Gateway, parse_secrets
from redrive.testing import FakeClock
from tests.ingest.client import PROBLEM_MEMBERS, send, signed
from tests.systems.courier import MAIN_QUEUE, SECRETS, courier, webhook

ANSWERS = {202, 400, 401, 404, 405, 408, 409, 413, 415, 422, 429}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """One request."""

    chunks: list[bytes]
    headers: list[tuple[bytes, bytes]]
    path: str
    method: str
    root_path: str


json_value = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=30), st.just(10**400)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=10,
)
names = st.sampled_from(
    ["eventId", "eventType", "payload", "idempotencyKey", "occurredAt", "traceId", "attempt", "source", "signatureMeta"]
)
member_texts = st.sampled_from(
    ["evt-1", "\x00", "\ud800", "x" * 600, "a:b", "\u202e", "2023-11-14T22:13:20Z", "1969-12-31T23:59:60Z", "0" * 400]
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from(["bytes", "json", "members", "members", "cut", "deep"]))
    if kind == "bytes":
        return draw(st.binary(max_size=200))
    if kind == "json":
        return json.dumps(draw(json_value)).encode("utf-8", "replace")
    if kind == "deep":
        depth = draw(st.sampled_from([900, 5_000]))
        return b'{"eventId":"e","eventType":"t","payload":{"a":' + b"[" * depth + b"]" * depth + b"}}"
    members: dict[str, Any] = draw(st.dictionaries(names, st.one_of(json_value, member_texts), max_size=5))
    body = webhook(**members)
    return body[: draw(st.integers(0, len(body)))] if kind == "cut" else body


@st.composite
def hostile(draw: st.DrawFn) -> Hostile:
    body = draw(bodies())
    headers = signed(body) if draw(st.integers(0, 9)) else []
    headers += (
        []
        if draw(st.integers(0, 2))
        else draw(
            st.lists(
                st.tuples(
                    st.sampled_from(
                        [
                            b"x-signature",
                            b"X-Signature-Timestamp",
                            b"x-request-id",
                            b"content-type",
                            b"content-length",
                            b"content-encoding",
                            b"transfer-encoding",
                            b"\xff\x00",
                        ]
                    ),
                    st.one_of(
                        st.binary(max_size=40), st.sampled_from([b"identity", b"gzip", b"9" * 30, b"req_1", b"-1"])
                    ),
                ),
                max_size=2,
            )
        )
    )
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=3)))
    chunks = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    return Hostile(
        chunks=chunks,
        headers=headers,
        path=draw(st.sampled_from(["/courier-x"] * 30 + ["/nobody", "//", "/\x00", "/courier-x/../x", ""])),
        method=draw(st.sampled_from(["POST"] * 30 + ["GET", "HEAD", "\x00"])),
        root_path=draw(st.sampled_from(["", "", "/webhooks"])),
    )


def test_every_hostile_webhook_is_accepted_or_refused_with_a_document_and_the_gateway_goes_on() -> None:
    with asyncio.Runner() as runner, courier(REDRIVE_BROKER="memory://", COURIER_SECRETS=SECRETS) as system:
        system.app.clock = FakeClock()
        gateway = Gateway(
            system.app,
            MAIN_QUEUE,
            sources=parse_secrets(SECRETS, origin="test"),
            build=system.build_message,
            rate=10**6,
        )
        runner.run(system.app.open())
        accepted: set[str] = set()

        @given(st.lists(hostile(), min_size=1, max_size=10))
        def storm(requests: list[Hostile]) -> None:
            for request in requests:
                runner.run(_check(gateway, request, accepted))

        storm()
        body = webhook(eventId="the good one")
        good = runner.run(send(gateway, body, signed(body)))
        queued = runner.run(system.app.backend.broker.peek(MAIN_QUEUE, limit=1_000_000))
        runner.run(system.app.close())

    assert 202 == good.status
    assert {"courier-x:the good one", *accepted} == {message.key for message in queued}
    assert all("eventId" in json.loads(message.body) for message in queued)


async def _check(gateway: Gateway, request: Hostile, accepted: set[str]) -> None:
    answer = await send(
        gateway,
        request.chunks,
        request.headers,
        path=request.path,
        method=request.method,
        root_path=request.root_path,
    )
    assert answer.status in ANSWERS
    assert "x-request-id" in answer.headers
    if answer.status == 202:
        accepted.add(answer.document["idempotencyKey"])
    elif request.method != "HEAD":
        assert answer.document.keys() >= PROBLEM_MEMBERS
