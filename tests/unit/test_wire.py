"""Headers, messages, letters, selections and options as JSON and back: every kind exact."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.letters.letter import Attempt, AttemptOutcome, Letter, ReviewState
from redrive.core.letters.selection import Selection
from redrive.core.message import NO_HEADERS, NO_PROPERTIES, Message, Properties
from redrive.core.redrive import JobOptions
from redrive.core.settlement import Reason
from redrive.core.wire import (
    MAX_HEADER_DEPTH,
    attempt_document,
    attempt_from_document,
    check_headers,
    headers_from_json,
    headers_json,
    history_from_json,
    history_json,
    letter_document,
    letter_from_document,
    message_document,
    message_from_document,
    options_document,
    options_from_document,
    properties_from_json,
    properties_json,
    selection_document,
    selection_from_document,
    tagged,
    untagged,
)
from redrive.errors import InvalidMessageError, SchemaTooNewError

EVERY_KIND: dict[str, Any] = {
    "n": None,
    "b": True,
    "small": -5,
    "big": 9_007_199_254_740_993,
    "f": 1.5,
    "whole": 1.0,
    "dec": Decimal("12.340"),
    "t": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
    "arr": [1, "a", [2, {"k": b"\x00\xff"}]],
    "raw": b"\x00\x01\xff",
    "tbl": {"x": {"y": []}},
    "$time": "a key that looks like a tag",
    "nested": {"$bytes": "no tag either", "$$": 1},
}

TEXT = st.text(st.characters(), max_size=20)  # surrogates and NUL too
OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.binary(max_size=20)
    | st.decimals() | st.datetimes(timezones=OFFSETS)
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(TEXT | st.sampled_from(["$bytes", "$$"]), inner, max_size=2)
    ),
    max_leaves=4,
)
HEADERS = st.dictionaries(TEXT | st.sampled_from(["$time", "$bytes"]), VALUES, max_size=3)


def same(one: Any, other: Any) -> bool:
    """Equal in value and in kind, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return repr(one) == repr(other)
    if isinstance(one, Decimal):
        return str(one) == str(other)
    if isinstance(one, datetime):
        return bool(one == other and one.utcoffset() == other.utcoffset())
    return bool(one == other)


def strict_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_every_kind_of_a_header_table_survives_as_valid_json() -> None:
    text = headers_json(EVERY_KIND)

    assert text is not None
    assert same(EVERY_KIND, headers_from_json(text))
    shown = strict_json(text)
    assert {"$bytes": "AAH/"} == shown["raw"]
    assert {"$time": "2023-11-14T22:13:20Z"} == shown["t"]
    assert {"$decimal": "12.340"} == shown["dec"]
    assert {"$int": "9007199254740993"} == shown["big"]


@given(HEADERS)
def test_any_headers_come_back_equal_in_value_and_kind(headers: dict[str, Any]) -> None:
    text = headers_json(headers)

    assert same(headers, dict(headers_from_json(text)))
    if text is not None:
        assert text.isascii()
        strict_json(text)


def test_no_headers_cost_nothing() -> None:
    assert (None, None) == (headers_json({}), headers_json(None))
    assert NO_HEADERS is headers_from_json(None)
    assert (None, NO_PROPERTIES) == (properties_json(Properties()), properties_from_json(None))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -0.0, 5e-324])
def test_a_float_that_json_lacks_keeps_its_kind(number: float) -> None:
    assert same(number, untagged(json.loads(json.dumps(tagged(number), allow_nan=False))))


@pytest.mark.parametrize(
    "number",
    [2**53, 2**53 + 1, -(2**63), 2**64, 10**5_000, -(10**5_000)],
    ids=lambda number: f"{number.bit_length()} bits",
)
def test_an_integer_is_exact_whatever_its_size(number: int) -> None:
    assert number == untagged(json.loads(json.dumps(tagged(number))))


@pytest.mark.parametrize("kind", [object(), {1, 2}, 1j, {1: "key is no text"}, range(3)])
def test_a_kind_no_broker_carries_is_refused(kind: Any) -> None:
    with pytest.raises(InvalidMessageError):
        headers_json({"h": kind})
    with pytest.raises(InvalidMessageError, match="'h'"):
        check_headers({"h": kind})


@pytest.mark.parametrize(
    "document",
    [
        {"$nothing": 1},
        {"$bytes": "%"},
        {"$bytes": 1},
        {"$time": "noon"},
        {"$decimal": "x"},
        {"$float": []},
        {"$int": "1.5"},
    ],
)
def test_a_tag_that_says_nothing_is_refused(document: Any) -> None:
    with pytest.raises(InvalidMessageError):
        untagged(document)


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def tables(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"t": value}
    return value


def test_headers_nested_too_deep_are_refused_not_recursed_into() -> None:
    with pytest.raises(InvalidMessageError, match="nested deeper"):
        check_headers({"h": nested(5_000)})
    with pytest.raises(InvalidMessageError, match="nested deeper"):
        headers_json({"h": nested(5_000)})
    assert check_headers({"h": nested(MAX_HEADER_DEPTH - 1)})
    assert check_headers({"h": tables(MAX_HEADER_DEPTH - 1)})
    with pytest.raises(InvalidMessageError, match="nested deeper"):
        check_headers({"h": tables(MAX_HEADER_DEPTH)})


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({"": 1}, "Header name ''"), ({5: 1}, "Header name 5"), ({"n": 2**63}, "'n' is an integer over 64 bits"),
        ({"t": datetime(2023, 1, 1)}, "'t' is a time without an offset"), ({"a": [{"b": {3: 4}}]}, "'a'"),
    ],
)  # fmt: skip
def test_a_header_no_broker_carries_is_named(headers: dict[Any, Any], named: str) -> None:
    with pytest.raises(InvalidMessageError, match=named):
        check_headers(headers)


def test_good_headers_pass_the_check_as_they_are() -> None:
    assert EVERY_KIND is check_headers(EVERY_KIND)
    assert NO_HEADERS is check_headers(None)


# ------------------------------------------------------------------------------------------------ documents

PROPERTIES = Properties(
    type="order.created.v2", correlation_id="c-1", reply_to="rpc.r", app_id="shop", content_encoding="gzip",
    delivery_mode=2, timestamp=1_700_000_000, expiration="60000", trace_id="t", routing_key="r", exchange="x",
)  # fmt: skip
MESSAGES = st.builds(
    Message,
    id=TEXT,
    body=st.binary() | TEXT.map(lambda text: text.encode("utf-8", "replace")),
    content_type=st.none() | TEXT,
    key=st.none() | TEXT,
    tenant=st.none() | TEXT,
    priority=st.none() | st.integers(0, 9),
    published_at=st.integers(0, 2**45),
    expires_at=st.none() | st.integers(0, 2**45),
    headers=HEADERS,
    properties=st.sampled_from([PROPERTIES, NO_PROPERTIES]),
    original=st.none() | st.binary(),
)
ATTEMPTS = st.builds(
    Attempt,
    attempt=st.integers(1, 9),
    outcome=st.sampled_from(AttemptOutcome),
    at=st.integers(0, 2**45),
    duration_ms=st.none() | st.integers(0, 10**6),
    error_code=st.none() | TEXT,
    error_text=st.none() | TEXT,
    worker=st.none() | TEXT,
)
LETTERS = st.builds(
    Letter,
    id=TEXT,
    system=TEXT,
    queue=TEXT,
    dead_letter_queue=TEXT,
    message=MESSAGES,
    reason=st.just(Reason(code="X", text="y")),
    error_type=st.none() | TEXT,
    attempt_count=st.integers(0, 9),
    history=st.lists(ATTEMPTS, max_size=3).map(tuple),
    state=st.sampled_from(ReviewState),
    first_failed_at=st.integers(0, 2**45),
    dead_lettered_at=st.integers(0, 2**45),
    redrive_count=st.integers(0, 9),
    previous=st.none() | TEXT,
)


def through_text(document: Any) -> Any:
    return strict_json(json.dumps(document, allow_nan=False))


@given(MESSAGES)
def test_a_message_comes_back_exactly_from_its_document(message: Message) -> None:
    back = message_from_document(through_text(message_document(message)))

    assert replace(message, headers={}) == replace(back, headers={})
    assert same(dict(message.headers), dict(back.headers))


@given(LETTERS)
def test_a_letter_comes_back_exactly_from_its_document(letter: Letter) -> None:
    back = letter_from_document(through_text(letter_document(letter)))

    bare = Message(id="m", body=b"")
    assert replace(letter, message=bare) == replace(back, message=bare)
    assert same(dict(letter.message.headers), dict(back.message.headers))
    assert (letter.message.body, letter.message.original) == (back.message.body, back.message.original)


@given(st.lists(ATTEMPTS, max_size=3).map(tuple))
def test_a_history_comes_back_exactly_from_its_text(history: tuple[Attempt, ...]) -> None:
    assert history == history_from_json(history_json(history))
    assert list(history) == [attempt_from_document(through_text(attempt_document(entry))) for entry in history]


SELECTIONS = st.builds(
    Selection,
    ids=st.lists(TEXT, max_size=3).map(tuple),
    queue=st.none() | st.text(min_size=1),
    states=st.frozensets(st.sampled_from(ReviewState)),
    since=st.none() | st.integers(0, 2**45),
    until=st.none() | st.integers(0, 2**45),
    text=st.none() | st.text(min_size=1),
)


@given(SELECTIONS)
def test_a_selection_comes_back_exactly_from_its_document(selection: Selection) -> None:
    assert selection == selection_from_document(through_text(selection_document(selection)))


@given(st.none() | st.integers(1, 10**6), st.none() | st.floats(0.1, 1e6), st.booleans(), st.none() | TEXT)
def test_options_come_back_exactly_from_their_document(
    limit: int | None, rate: float | None, is_on: bool, target: str | None
) -> None:
    options = JobOptions(
        limit=limit, rate_per_s=rate, keep_attempts=is_on, keep_ttl=not is_on, target_queue=target, force=is_on
    )

    assert options == options_from_document(through_text(options_document(options)))


def test_a_field_of_a_newer_neighbour_is_passed_over() -> None:
    document = {**message_document(Message(id="m", body=b"x")), "colour": "red"}

    assert Message(id="m", body=b"x") == message_from_document(document)


def test_a_document_of_a_newer_schema_is_refused_and_says_what_helps() -> None:
    with pytest.raises(SchemaTooNewError, match="pip install --upgrade redrive"):
        message_from_document({**message_document(Message(id="m", body=b"x")), "schema": 2})


@pytest.mark.parametrize(
    "document", [{}, {"id": "x"}, {"id": "x", "body": 5}, {"id": "x", "body": {"$time": "2023-01-01"}}]
)
def test_what_is_no_message_is_refused_and_called_so(document: Any) -> None:
    with pytest.raises(InvalidMessageError):
        message_from_document(document)


def test_what_is_no_letter_is_refused_and_called_so() -> None:
    with pytest.raises(InvalidMessageError, match="not a letter"):
        letter_from_document({"id": "x"})
