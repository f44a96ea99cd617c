"""A delivery as HTTP headers: complete, bounded, and never a way to write another header."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from redrive.core.message import Message, Properties
from redrive.ingest.schemes import StandardWebhooks
from redrive.ingest.signatures import Verified
from redrive.push import headers as h

NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", re.ASCII)
VALUE = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?", re.ASCII)
NOW = 1_764_300_000_123
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def made(message: Message, **changes: Any) -> dict[str, str]:
    return h.request_headers(message, **{"queue": "orders", "attempt": 2, "max_attempts": 11, "now": NOW, **changes})


def test_a_delivery_is_described() -> None:
    message = Message(
        id="m-1",
        body=b"{}",
        content_type="application/json",
        key="order-7",
        tenant="t1",
        published_at=5,
        headers={"Region": "eu"},
        properties=Properties(type="order.created", correlation_id="c 1", routing_key="a.b", exchange="shop"),
    )

    headers = made(message)

    assert {
        "content-type": "application/json",
        "webhook-id": "m-1",
        "webhook-timestamp": "1764300000",
        "redrive-queue": "orders",
        "redrive-attempt": "2",
        "redrive-max-attempts": "11",
        "redrive-key": "order-7",
        "redrive-tenant": "t1",
        "redrive-published-at": "5",
        "redrive-type": "order.created",
        "redrive-correlation-id": "c 1",
        "redrive-routing-key": "a.b",
        "redrive-exchange": "shop",
        "redrive-header-region": "eu",
    } == headers


def test_every_kind_of_header_has_a_text() -> None:
    values: dict[str, Any] = {
        "flag": True,
        "n": 7,
        "d": Decimal("1.50"),
        "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "raw": b"\x00\xff",
        "none": None,
        "list": [1, {"a": b"\x01"}],
        "ü": "100 % größer\r\nx: y ",
    }

    headers = made(Message(id="m", body=b"", headers=values))

    shown = {name.removeprefix("redrive-header-"): text for name, text in headers.items() if "-header-" in name}
    assert {
        "flag": "true",
        "n": "7",
        "d": "1.50",
        "at": "2026-01-02T03:04:05+00:00",
        "raw": ":AP8=:",
        "none": "",
        "list": '[1, {"a": ":AQ==:"}]',
        "%C3%BC": "100 %25 gr%C3%B6%C3%9Fer%0D%0Ax: y%20",
    } == shown


def test_headers_of_brokers_and_of_redrive_stay_inside() -> None:
    headers = {"x-death": [{"count": 1}], "x-redrive-letter": "dl_1", "x-first-death-queue": "q", "x-own": "1"}

    shown = made(Message(id="m", body=b"", headers=headers))

    assert ["redrive-header-x-own"] == [name for name in shown if "header" in name]


def test_a_publisher_writes_no_header_of_the_request() -> None:
    hostile = {"authorization": "Bearer x", "Host": "evil", "Content-Length": "0", "Transfer-Encoding": "chunked"}

    shown = made(Message(id="m", body=b"", headers=hostile))

    assert set() == {name.lower() for name in hostile} & set(shown)


def test_trace_context_goes_under_its_own_name_where_it_is_well_formed() -> None:
    good = f"00-{'a' * 32}-{'b' * 16}-01"

    shown = made(Message(id="m", body=b"", headers={"traceparent": good, "tracestate": "bad\r\nstate"}))

    assert good == shown["traceparent"]
    assert "tracestate" not in shown
    assert "bad%0D%0Astate" == shown["redrive-header-tracestate"]


def test_too_many_and_too_large_headers_are_left_out_and_counted() -> None:
    many = {f"h{n}": "v" for n in range(100)}

    by_number = made(Message(id="m", body=b"", headers=many))
    by_size = made(Message(id="m", body=b"", headers={"a": "x" * 5_000, "b": "y" * 4_000, "c": "z" * 4_000, "d": "1"}))

    assert str(100 - h.MAX_HEADERS) == by_number["redrive-headers-omitted"]
    assert {"redrive-header-b", "redrive-header-c", "redrive-header-d", "redrive-headers-omitted"} == {
        name for name in by_size if "header" in name
    }
    assert "1" == by_size["redrive-headers-omitted"]


def test_an_id_no_header_can_hold_is_hashed_and_stays_the_same() -> None:
    first, again = made(Message(id="x" * 300, body=b"")), made(Message(id="x" * 300, body=b""))

    assert 64 == len(first["webhook-id"])
    assert first["webhook-id"] == again["webhook-id"]
    assert "order%207%C3%BC" == made(Message(id="order 7ü", body=b""))["webhook-id"]


def test_the_signature_is_one_that_ingest_lets_in() -> None:
    scheme = StandardWebhooks()
    keys = [scheme.key("whsec_b2xkZXItc2VjcmV0"), scheme.key(SECRET)]
    body = b'{"a": 1, "b" :2}\x00'

    headers = made(Message(id="msg 1", body=body), keys=keys)
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]

    seen = scheme.verify(raw, body, keys=[keys[1]], now=NOW, tolerance_ms=300_000)
    assert isinstance(seen, Verified)
    assert "msg%201" == seen.event_id
    assert 2 == len(headers["webhook-signature"].split(" "))


def test_the_signature_is_that_of_the_standard() -> None:
    """The worked example of the Standard Webhooks specification."""
    scheme = StandardWebhooks()
    keys = [scheme.key(SECRET)]

    signed = scheme.sign(
        b'{"test": 2432232314}', event_id="msg_p5jXN8AQM9LWM0D4loKWxJek", timestamp=1_614_265_330, keys=keys
    )

    assert "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" == signed


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.dictionaries(st.text(min_size=1, max_size=20), _VALUES, max_size=8),
    st.text(max_size=300).filter(bool),
    st.text(max_size=40),
)
def test_whatever_was_published_the_request_is_well_formed(given: dict[str, Any], identity: str, text: str) -> None:
    properties = Properties(type=text, correlation_id=text, reply_to=text, content_encoding=text or None)
    message = Message(id=identity, body=b"", content_type=text, key=text, headers=given, properties=properties)

    headers = made(message, queue=text)

    assert [] == [name for name in headers if not NAME.fullmatch(name)]
    assert [] == [value for value in headers.values() if not VALUE.fullmatch(value)]


@given(st.text(max_size=100).filter(lambda text: "\ud800" > max(text, default="") or min(text) > "\udfff"))
def test_a_text_is_found_again_by_decoding(text: str) -> None:
    headers = made(Message(id="m", body=b"", headers={"t": text}))

    assert text == unquote(headers["redrive-header-t"])
