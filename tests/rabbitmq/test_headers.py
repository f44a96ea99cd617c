"""A message on the wire and back: every kind kept, nothing from outside believed, nothing for the broker to count.
Cases PF-02, PF-03, PF-06, PF-08.
"""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redrive.brokers.rabbitmq.headers import (
    FIRST,
    HEADER_HISTORY,
    HEADER_ORIGINAL,
    HEADER_REST,
    MAX_HISTORY_BYTES,
    Extra,
    bounded_history,
    from_wire,
    to_wire,
)
from redrive.brokers.rabbitmq.routes import is_sound
from redrive.brokers.rabbitmq.tables import Content, read_content, read_table, table, write_content
from redrive.core.message import HeaderValue, Message, Properties
from redrive.testing.samples import HARD_BODIES, HARD_HEADERS, HARD_NAMES, attempt, hard_message, kinds, message

HERE = ("", "orders")


def there_and_back(sent: Message, extra: Extra = FIRST) -> Message:
    header = to_wire(sent, exchange=HERE[0], routing_key=HERE[1], extra=extra)
    return from_wire(header, sent.body, exchange=HERE[0], routing_key=HERE[1]).message


def wire_of(sent: Message, extra: Extra = FIRST) -> Content:
    return read_content(to_wire(sent, exchange=HERE[0], routing_key=HERE[1], extra=extra))


texts = st.text(st.characters(codec=None), max_size=300)
moments = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 30)).flatmap(
    lambda at: st.sampled_from([at.replace(tzinfo=UTC), at.replace(tzinfo=timezone(timedelta(hours=2)))])
)
scalars: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.decimals(allow_nan=False, allow_infinity=False)
    | moments
    | texts
    | st.binary(max_size=40)
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=10
)
names = texts.filter(lambda name: name and not name.lower().startswith(("x-redrive", "x-death", "x-")))
properties = st.builds(
    Properties,
    **{name: st.none() | texts for name in ("type", "correlation_id", "reply_to", "app_id", "user_id", "trace_id")},
    content_encoding=st.none() | texts,
    delivery_mode=st.none() | st.integers(0, 300),
    timestamp=st.none() | st.integers(-1, 2**64),
    expiration=st.none() | texts | st.integers(0, 10**14).map(str),
    routing_key=texts,
    exchange=texts,
)
messages = st.builds(
    Message,
    id=texts.filter(lambda text: text.strip()),
    body=st.binary(max_size=200),
    content_type=st.none() | texts,
    key=st.none() | texts,
    tenant=st.none() | texts,
    priority=st.none() | st.integers(-(2**31), 2**31),
    published_at=st.integers(0, 2**53),
    expires_at=st.none() | st.integers(0, 2**53),
    headers=st.dictionaries(names, values, max_size=5),
    properties=properties,
    original=st.none() | st.binary(max_size=300),
)


@given(messages)
@example(hard_message())
def test_every_message_comes_back_as_it_was(sent: Message) -> None:
    back = there_and_back(sent)

    assert sent == back
    assert kinds(sent.headers) == kinds(back.headers)


@given(messages)
def test_a_copy_that_waits_comes_back_as_it_was_too(sent: Message) -> None:
    assert sent == there_and_back(sent, Extra(due_at=5, attempt=None, history=(attempt(1),)))


def test_the_plain_kinds_are_plain_on_the_wire() -> None:
    plain = {name: value for name, value in HARD_HEADERS.items() if name != "surrogate"}

    sent = wire_of(message(headers=plain)).headers

    assert sent is not None
    assert HEADER_REST not in sent
    assert kinds(plain) == kinds({name: sent[name] for name in plain})


def test_a_message_without_extras_is_small() -> None:
    header = to_wire(message("m-1"), exchange="", routing_key="orders", extra=FIRST)

    assert len(header) < 100


@given(st.binary(max_size=200))
@example(b"\xff\xff")
@example(struct.pack(">HI", 1 << 13, 2**32 - 1))
@example(struct.pack(">H", 1 << 13) + b"\x00\x00\x00\x09" + b"\x01aF\x00\x00\x00\x00")
def test_junk_for_a_content_header_is_a_message_without_properties(junk: bytes) -> None:
    arrived = from_wire(junk, b"body", exchange="", routing_key="orders")

    assert b"body" == arrived.message.body
    assert arrived.message.id


def test_a_table_nested_without_end_raises_nothing() -> None:
    nested: bytes = b""
    for _ in range(300):
        nested = b"\x01aF" + struct.pack(">I", len(nested)) + nested
    header = struct.pack(">HI", 1 << 13, len(nested)) + nested

    assert {} == dict(from_wire(header, b"", exchange="", routing_key="orders").message.headers)


def test_a_plain_message_that_is_cut_or_changed_anywhere_is_read_as_what_it_then_is() -> None:
    whole = to_wire(message("m-1"), exchange="", routing_key="orders", extra=FIRST)
    changed = [whole[:place] + bytes((whole[place] ^ 0xFF,)) + whole[place + 1 :] for place in range(len(whole))]

    for data in (*changed, *(whole[:end] for end in range(len(whole))), whole + b"\x00"):
        quick = from_wire(data, b"", exchange="", routing_key="orders").message
        assert quick.id
        assert quick.published_at >= 0
    assert message("m-1", body=b"") == replace(
        from_wire(whole, b"", exchange="", routing_key="orders").message, properties=message().properties
    )


FORGED: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**40,
    1.5,
    "junk",
    "[" * 10_000,
    b"\xff",
    [],
    ["a"],
    {},
    {"a": 1},
    '{"id":7}',
)


@given(st.sampled_from(FORGED) | values, st.sampled_from(FORGED) | values)
def test_forged_headers_of_our_own_never_raise(first: Any, second: Any) -> None:
    own = (
        "published-at", "key", "tenant", "priority", "expires-at", "history", "original", "due-at", "rest", "attempt",
    )  # fmt: skip
    headers = {f"x-redrive-{name}": first if number % 2 else second for number, name in enumerate(own)}
    sent = {name: value for name, value in headers.items() if _is_native(value)}

    arrived = from_wire(write_content(Content(headers=sent)), b"{}", exchange="", routing_key="orders")

    assert b"{}" == arrived.message.body


@pytest.mark.parametrize("rest", [
    {"headers": {"a": {"$bytes": "!"}}}, {"headers": {"x-redrive-due-at": "soon"}}, {"properties": {"type": 7}},
    {"properties": {"routing_key": ["a"]}}, {"headers": 5}, {"id": ""}, [], 7,
])  # fmt: skip
def test_a_forged_rest_is_as_if_it_were_not_there(rest: Any) -> None:
    header = write_content(Content(headers={HEADER_REST: json.dumps(rest)}, message_id="m-1"))

    arrived = from_wire(header, b"", exchange="", routing_key="orders")

    assert arrived.due_at is None
    assert arrived.message.properties == Properties(exchange="", routing_key="orders")


def _is_native(value: HeaderValue) -> bool:
    try:
        return read_table(table({"a": value}))[0] is not None
    except Exception:
        return False


# ------------------------------------------------------------------------------------------------- never sent


def test_what_the_broker_counts_from_is_never_sent() -> None:
    deaths: list[HeaderValue] = [{"count": 3, "queue": "orders", "reason": "rejected"}]
    dead = message(headers={
        "x-death": deaths, "X-Death": deaths, "x-first-death-queue": "orders", "x-last-death-reason": "rejected",
        "x-delivery-count": 2, "x-acquired-count": 2, "x-opt-a": 1, "x-tenant": "t1",
    })  # fmt: skip

    sent = wire_of(dead).headers

    assert sent is not None
    assert {"x-tenant"} == {name for name in sent if not name.startswith("x-redrive")}


def test_copies_are_routed_to_nobody_else_and_keep_what_was_said() -> None:
    copied = message(headers={"CC": ["audit"], "BCC": ["spy"], "cc": ["c"]})

    content = wire_of(copied)

    assert content.headers is not None
    assert {"CC", "BCC", "cc"}.isdisjoint(content.headers)
    assert copied.headers == there_and_back(copied).headers


def test_properties_the_broker_would_refuse_are_not_set() -> None:
    refused = Properties(user_id="other", reply_to="amq.rabbitmq.reply-to", expiration="1.5", timestamp=-1)

    content = wire_of(message(properties=refused))

    assert (None, None, None, None) == (content.user_id, content.reply_to, content.expiration, content.timestamp)
    back = there_and_back(message(properties=refused)).properties
    assert replace(refused, routing_key="orders", exchange="") == back


def test_an_expiration_is_set_where_a_message_goes_straight_to_its_queue_and_never_on_a_copy() -> None:
    brief = message(properties=Properties(expiration="60000"))

    assert "60000" == wire_of(brief, FIRST).expiration
    assert wire_of(brief, Extra()).expiration is None
    assert "60000" == there_and_back(brief, Extra()).properties.expiration


def test_everything_is_sent_persistent_and_keeps_the_mode_it_came_with() -> None:
    transient = message(properties=Properties(delivery_mode=1))

    assert 2 == wire_of(transient).delivery_mode
    assert 1 == there_and_back(transient).properties.delivery_mode


def test_our_priority_is_not_the_brokers_and_another_publishers_stays_one() -> None:
    ours, theirs = message(priority=7), message(priority=7, properties=Properties(delivery_mode=2))

    assert wire_of(ours).priority is None
    assert 7 == wire_of(theirs).priority
    assert 7 == there_and_back(ours).priority == there_and_back(theirs).priority


# ------------------------------------------------------------------------------------------------- from others


def test_the_message_id_is_the_key_and_a_blank_one_is_none() -> None:
    named = from_wire(write_content(Content(message_id="m-7")), b"", exchange="", routing_key="orders").message
    blank = from_wire(write_content(Content(message_id="  ")), b"", exchange="", routing_key="orders").message

    assert ("m-7", "m-7") == (named.id, named.key)
    assert ("  ", None) == (blank.id, blank.key)


def test_a_message_without_an_id_gets_the_same_at_every_delivery_and_no_key() -> None:
    header = write_content(Content(headers={"a": 1}, content_type="text/plain"))
    counted = write_content(Content(headers={"a": 1, "x-delivery-count": 3, "x-death": []}, content_type="text/plain"))

    first = from_wire(header, b"body", exchange="", routing_key="orders").message
    again = from_wire(counted, b"body", exchange="shop", routing_key="new").message
    other = from_wire(header, b"other", exchange="", routing_key="orders").message

    assert first.id == again.id != other.id
    assert first.key is None


def test_a_copy_of_a_message_without_an_id_stays_without_one() -> None:
    header = write_content(Content(headers={"a": 1}))
    came = from_wire(header, b"body", exchange="", routing_key="orders").message

    assert wire_of(came).message_id is None
    assert (came.id, None) == (there_and_back(came).id, there_and_back(came).key)


@pytest.mark.parametrize("timestamp", [1_700_000_000_000_000_000, 2**64 - 1])
def test_a_timestamp_too_large_for_milliseconds_is_none(timestamp: int) -> None:
    header = write_content(Content(message_id="m-1", timestamp=timestamp))

    found = from_wire(header, b"{}", exchange="", routing_key="orders").message

    assert 0 == found.published_at
    assert timestamp == found.properties.timestamp


def test_every_kind_other_clients_write_is_read() -> None:
    fields = {
        b"t\x01": True, b"b\xff": -1, b"B\xff": 255, b"s\xff\xff": -1, b"U\xff\xff": -1, b"u\xff\xff": 65_535,
        b"I\xff\xff\xff\xff": -1, b"i\xff\xff\xff\xff": 2**32 - 1, b"l" + b"\xff" * 8: -1, b"L" + b"\xff" * 8: -1,
        b"f" + struct.pack(">f", 1.5): 1.5, b"d" + struct.pack(">d", 0.1): 0.1, b"V": None,
        b"D\x02\x00\x00\x04\xd2": Decimal("12.34"), b"D\x00\xff\xff\xff\xff": Decimal(-1),
        b"S\x00\x00\x00\x02\xff\xfe": b"\xff\xfe", b"S\x00\x00\x00\x02\xc3\xa9": "é", b"x\x00\x00\x00\x01a": b"a",
        b"T" + struct.pack(">Q", 1_700_000_000): datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        b"T" + struct.pack(">Q", 1_700_000_000_000): 1_700_000_000_000,
    }  # fmt: skip
    for data, expected in fields.items():
        entry = b"\x01a" + data
        found = read_table(struct.pack(">I", len(entry)) + entry)[0]["a"]
        assert kinds([expected]) == kinds([found])


@pytest.mark.parametrize("name", HARD_NAMES)
def test_hard_ids_and_keys_come_back(name: str) -> None:
    sent = message(name, key=f"k{name}", tenant=name)

    back = there_and_back(sent)

    assert (name, f"k{name}", name) == (back.id, back.key, back.tenant)


# ------------------------------------------------------------------------------------------------- bounded


def test_a_history_keeps_to_its_limit_and_to_the_newest_entries() -> None:
    history = tuple(attempt(number, traceback="x" * 4_000, error_text="界" * 1_000) for number in range(1, 200))

    text = bounded_history(history)

    assert text is not None
    assert len(text) <= MAX_HISTORY_BYTES
    kept = json.loads(text)
    assert 199 == kept[-1]["attempt"]
    assert sorted(entry["attempt"] for entry in kept) == [entry["attempt"] for entry in kept]


def test_a_short_history_is_kept_whole() -> None:
    history = (attempt(1), attempt(2))
    header = to_wire(message(), exchange="", routing_key="orders", extra=Extra(history=history))

    assert history == from_wire(header, b"", exchange="", routing_key="orders").history


def test_where_a_frame_is_small_the_history_gives_way() -> None:
    history = tuple(attempt(number, traceback="x" * 2_000) for number in range(1, 4))
    large = message(headers={"a": "b" * 3_000})

    header = to_wire(large, exchange="", routing_key="orders", extra=Extra(history=history), limit=4_000)
    full = to_wire(large, exchange="", routing_key="orders", extra=Extra(history=history), limit=3_200)

    assert len(header) <= 4_000
    assert from_wire(header, b"", exchange="", routing_key="orders").history
    assert HEADER_HISTORY not in (read_content(full).headers or {})


@pytest.mark.parametrize("original", HARD_BODIES.values(), ids=HARD_BODIES.keys())
def test_the_first_body_is_kept_beside_a_rewritten_one(original: bytes) -> None:
    rewritten = message(body=b'{"attempt": 12}', original=original)

    content = wire_of(rewritten).headers

    assert content is not None
    if HEADER_ORIGINAL in content:
        assert original == there_and_back(rewritten).original
    else:
        assert len(original) > 30_000


def test_a_large_body_in_which_one_number_changed_costs_a_few_bytes() -> None:
    original = b'{"n":1,"pad":"' + b"x" * 1_000_000 + b'"}'
    rewritten = original.replace(b'"n":1', b'"n":12')

    header = to_wire(message(body=rewritten, original=original), exchange="", routing_key="orders")

    assert len(header) < 250
    assert original == from_wire(header, rewritten, exchange="", routing_key="orders").message.original


# ------------------------------------------------------------------------------------------------- x-death

REAL = {
    "count": 1, "reason": "rejected", "queue": "q", "exchange": "", "routing-keys": ["q"],
    "time": datetime(2023, 11, 14, tzinfo=UTC), "original-expiration": "5",
}  # fmt: skip


@pytest.mark.parametrize("deaths", [None, [], [REAL], [REAL, REAL], [{}], [{"queue": "q", "reason": "expired"}]])
def test_what_brokers_write_may_be_rejected(deaths: Any) -> None:
    assert is_sound(deaths)


@pytest.mark.parametrize("deaths", [
    "a", 1, {"a": 1}, ["a"], [1], [None], [[REAL]], [{**REAL, "count": "7"}], [{**REAL, "count": True}],
    [{**REAL, "queue": 5}], [{**REAL, "routing-keys": "q"}], [{**REAL, "routing-keys": [1]}], [{**REAL, "time": "now"}],
    [REAL, "a"],
])  # fmt: skip
def test_what_might_crash_a_queue_may_not(deaths: Any) -> None:
    assert not is_sound(deaths)
