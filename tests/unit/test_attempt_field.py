"""The attempt number inside a JSON body, rewritten without touching another byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.attempt_field import MAX_BODY_BYTES, with_attempt


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"attempt": 1}', b'{"attempt": 2}'),
        (
            b'{ "a" : 1.0e5,\n"attempt":1 , "b":[ 9007199254740993 ] }',
            b'{ "a" : 1.0e5,\n"attempt":2 , "b":[ 9007199254740993 ] }',
        ),
        (b'{"x":{"attempt":7},"attempt":"1"}', b'{"x":{"attempt":7},"attempt":2}'),
        (b"{}", b'{"attempt":2}'),
        (b"{ }", b'{ "attempt":2}'),
        (b'{"a":1}', b'{"a":1,"attempt":2}'),
        (b'{"a":1 }\n', b'{"a":1,"attempt":2 }\n'),
        (b'{"attempt":1,"attempt":1}', b'{"attempt":1,"attempt":2}'),
        (b'{"\\u0061ttempt":null}', b'{"\\u0061ttempt":2}'),
        ('{"s":"é\\u0000😀","attempt":{"n":[1]}}'.encode(), '{"s":"é\\u0000😀","attempt":2}'.encode()),
        (b'{"attempt":1,"n":' + b"9" * 5_000 + b"}", b'{"attempt":2,"n":' + b"9" * 5_000 + b"}"),
    ],
)
def test_only_the_value_changes_and_a_missing_member_is_added(body: bytes, expected: bytes) -> None:
    assert expected == with_attempt(body, "attempt", 2)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"1", b"null", b'"x"', b"{", b'{"a"', b'{"a":}', b'{"a":1,}', b"{1:2}", b'{"a":1}{}', b"{'a':1}",
     b"\xff{}", b'{"a":1} x', b"[" * 100_000, b'{"a":' + b"[" * 100_000, b'{"a" 1}', b"{}}"],
)  # fmt: skip
def test_a_body_that_is_no_json_object_is_left_alone(body: bytes) -> None:
    assert with_attempt(body, "attempt", 2) is None


def test_a_body_over_the_limit_is_left_alone() -> None:
    assert with_attempt(b'{"a":"' + b"x" * MAX_BODY_BYTES + b'"}', "attempt", 2) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text() | st.just("n"), JSON, max_size=5), st.integers(1, 10**6), st.sampled_from([None, 1, "\t"])
)
def test_readers_see_the_new_number_and_everything_else_as_before(
    document: dict[str, Any], attempt: int, indent: int | str | None
) -> None:
    body = json.dumps(document, indent=indent, ensure_ascii=False).encode("utf-8", "surrogatepass")

    spliced = with_attempt(body, "n", attempt)

    assert spliced is not None
    assert {**document, "n": attempt} == json.loads(spliced)


@given(st.binary())
def test_no_bytes_whatever_raise(body: bytes) -> None:
    with_attempt(body, "attempt", 1)
    with_attempt(b'{"attempt":' + body, "attempt", 1)
