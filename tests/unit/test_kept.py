"""What a handler keeps with its message."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.attempt_field import member_of
from redrive.core.kept import MAX_KEPT_BYTES, carried, kept_in, with_kept

BODY = b'{"b": 1.50,  "a": [1, 2]}'


def test_what_is_kept_is_added_and_nothing_else_changes() -> None:
    kept = with_kept(BODY, {"done": ["x"]})

    assert kept is not None
    assert BODY[:-1] + b',"_redrive":{"done":["x"]}}' == kept
    assert {"done": ["x"]} == kept_in(kept)


def test_what_is_kept_takes_the_place_of_what_was() -> None:
    first = with_kept(BODY, {"done": ["x"]})
    assert first is not None

    second = with_kept(first, {"left": 1})

    assert second is not None
    assert {"left": 1} == kept_in(second)
    assert 1 == second.count(b"_redrive")


@pytest.mark.parametrize("body", [b"", b"[]", b"text", b"\xff", b"{", b'{"a":1}{}'])
def test_a_body_that_is_no_object_keeps_nothing(body: bytes) -> None:
    assert None is with_kept(body, {"a": 1})
    assert {} == kept_in(body)


@pytest.mark.parametrize("body", [BODY, b'{"_redrive": 5}', b'{"_redrive": [1]}', b'{"x": "_redrive"}'])
def test_where_nothing_was_kept_there_is_nothing(body: bytes) -> None:
    assert {} == kept_in(body)


def test_what_json_cannot_hold_or_is_too_much_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        with_kept(BODY, {"a": float("nan")})
    with pytest.raises(TypeError):
        with_kept(BODY, {"a": object()})
    with pytest.raises(ValueError, match="too many"):
        with_kept(BODY, {"a": "x" * MAX_KEPT_BYTES})


def test_a_redrive_sends_the_original_with_what_was_kept() -> None:
    later = with_kept(b'{"b": 1.50,  "a": [1, 2], "attempt": 4}', {"done": ["x"]})
    assert later is not None

    assert BODY == carried(BODY, BODY)
    assert BODY == carried(b'{"attempt": 4}', BODY)
    assert with_kept(BODY, {"done": ["x"]}) == carried(later, BODY)
    assert b"no object" == carried(later, b"no object")


def test_a_member_is_found_by_its_name_at_the_top_alone() -> None:
    body = b'{"in": {"_redrive": 1}, "a": {"x": [1,  2]}}'

    assert ('{"x": [1,  2]}', None) == (member_of(body, "a"), member_of(body, "_redrive"))


@given(st.dictionaries(st.text(), st.integers() | st.text(), max_size=5), st.binary() | st.text().map(str.encode))
def test_no_body_raises_and_what_goes_in_comes_out(kept: dict[str, int | str], body: bytes) -> None:
    kept_in(body)
    found = with_kept(json.dumps({"body": body.decode("latin-1")}).encode(), kept)

    assert found is not None
    assert kept == kept_in(found)
