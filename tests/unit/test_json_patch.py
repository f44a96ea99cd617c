"""JSON Patch as RFC 6902 has it: the cases of its appendix A, and what else a patch may meet."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.json_patch import PatchRefused, apply, body_diff, edited_body, parse_patch
from redrive.errors import ConfigurationError

APPENDIX: dict[str, tuple[Any, list[dict[str, Any]], Any]] = {
    "A.1 adding an object member": ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}],
                                    {"baz": "qux", "foo": "bar"}),
    "A.2 adding an array element": ({"foo": ["bar", "baz"]}, [{"op": "add", "path": "/foo/1", "value": "qux"}],
                                    {"foo": ["bar", "qux", "baz"]}),
    "A.3 removing an object member": ({"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
    "A.4 removing an array element": ({"foo": ["bar", "qux", "baz"]}, [{"op": "remove", "path": "/foo/1"}],
                                      {"foo": ["bar", "baz"]}),
    "A.5 replacing a value": ({"baz": "qux", "foo": "bar"}, [{"op": "replace", "path": "/baz", "value": "boo"}],
                              {"baz": "boo", "foo": "bar"}),
    "A.6 moving a value": ({"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
                           [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
                           {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}}),
    "A.7 moving an array element": ({"foo": ["all", "grass", "cows", "eat"]},
                                    [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
                                    {"foo": ["all", "cows", "eat", "grass"]}),
    "A.8 testing a value, success": ({"baz": "qux", "foo": ["a", 2, "c"]},
                                     [{"op": "test", "path": "/baz", "value": "qux"},
                                      {"op": "test", "path": "/foo/1", "value": 2}],
                                     {"baz": "qux", "foo": ["a", 2, "c"]}),
    "A.9 testing a value, error": ({"baz": "qux"}, [{"op": "test", "path": "/baz", "value": "bar"}], PatchRefused),
    "A.10 adding a nested member object": ({"foo": "bar"},
                                           [{"op": "add", "path": "/child", "value": {"grandchild": {}}}],
                                           {"foo": "bar", "child": {"grandchild": {}}}),
    "A.11 ignoring unrecognized elements": ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux", "xyz": 123}],
                                            {"foo": "bar", "baz": "qux"}),
    "A.12 adding to a nonexistent target": ({"foo": "bar"}, [{"op": "add", "path": "/baz/bat", "value": "qux"}],
                                            PatchRefused),
    "A.14 escape ordering": ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
    "A.15 comparing strings and numbers": ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": "10"}],
                                           PatchRefused),
    "A.16 adding an array value": ({"foo": ["bar"]}, [{"op": "add", "path": "/foo/-", "value": ["abc", "def"]}],
                                   {"foo": ["bar", ["abc", "def"]]}),
    "copying is not sharing": ({"a": {"b": 1}}, [{"op": "copy", "from": "/a", "path": "/c"},
                                                 {"op": "replace", "path": "/c/b", "value": 2}],
                               {"a": {"b": 1}, "c": {"b": 2}}),
    "the whole document": ([1], [{"op": "replace", "path": "", "value": {"a": 1}}], {"a": 1}),
    "a list has no such place": ({"a": [1]}, [{"op": "add", "path": "/a/2", "value": 1}], PatchRefused),
    "an index has no leading zero": ({"a": [1, 2]}, [{"op": "remove", "path": "/a/01"}], PatchRefused),
    "what is not there is not replaced": ({}, [{"op": "replace", "path": "/a", "value": 1}], PatchRefused),
    "one is not true": ({"a": 1}, [{"op": "test", "path": "/a", "value": True}], PatchRefused),
    "one is 1.0": ({"a": 1}, [{"op": "test", "path": "/a", "value": 1.0}], {"a": 1}),
    "all or none": ({"a": 1}, [{"op": "replace", "path": "/a", "value": 2}, {"op": "remove", "path": "/b"}],
                    PatchRefused),
}  # fmt: skip


@pytest.mark.parametrize("name", APPENDIX)
def test_a_patch_does_what_the_standard_says(name: str) -> None:
    document, operations, expected = APPENDIX[name]
    before = copy.deepcopy(document)
    patch = parse_patch(json.dumps(operations))

    if expected is PatchRefused:
        with pytest.raises(PatchRefused):
            apply(patch, document)
    else:
        assert expected == apply(patch, document)
    assert before == document


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense", "not JSON"),
        ("{}", "a list of operations"),
        ("[]", "at least one"),
        ('[{"op": "swap", "path": "/a"}]', "no op that is known"),
        ("[7]", "no op that is known"),
        ('[{"op": "add", "path": "/a"}]', 'no "value"'),
        ('[{"op": "move", "path": "/a"}]', 'no "from"'),
        ('[{"op": "remove", "path": "a"}]', "no JSON Pointer"),
        ('[{"op": "remove", "path": "/a~2"}]', "no JSON Pointer"),
        ('[{"op": "remove", "path": 3}]', "no JSON Pointer"),
        ('[{"op": "move", "from": "/a", "path": "/a/b"}]', "into itself"),
    ],
)
def test_what_is_no_patch_is_refused_with_the_place(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_patch(text)

    assert says in caught.value.text


def test_a_body_is_edited_and_shown() -> None:
    patch = parse_patch('[{"op": "replace", "path": "/plz", "value": "10115"}]')

    after = edited_body(patch, '{"plz": "x", "ort": "Köln"}'.encode())

    assert '{"plz":"10115","ort":"Köln"}'.encode() == after
    assert ('-  "plz": "x",', '+  "plz": "10115",') == body_diff('{"plz": "x", "ort": "Köln"}'.encode(), after)[2:4]
    for body in (b"", b"\xff", b"[" * 100_000):
        with pytest.raises(PatchRefused, match="not JSON"):
            edited_body(patch, body)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
paths = st.lists(st.text("ab/~0-", max_size=2), max_size=3).map(
    lambda parts: "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)
)


@given(values, st.lists(st.fixed_dictionaries({"op": st.sampled_from(["add", "remove", "replace", "test"]),
                                               "path": paths, "value": values}), min_size=1, max_size=4))  # fmt: skip
def test_any_patch_fits_or_is_refused_and_changes_nothing_in_place(document: Any, operations: list[Any]) -> None:
    before = copy.deepcopy(document)
    try:
        apply(parse_patch(json.dumps(operations)), document)
    except PatchRefused as refused:
        assert str(refused)  # noqa: PT017 - either way is right
    assert before == document


def test_copies_of_copies_end_before_they_fill_the_memory() -> None:
    doubling = [{"op": "add", "path": "/l", "value": [1]}, *[{"op": "copy", "from": "/l", "path": "/l/-"}] * 40]

    with pytest.raises(PatchRefused, match=r'operation \d+ \("copy"\): the copies make more than 200000 values'):
        apply(parse_patch(json.dumps(doubling)), {})


def test_a_document_that_a_patch_makes_too_deep_is_refused() -> None:
    nesting = [{"op": "add", "path": "", "value": {}}, *[{"op": "copy", "from": "", "path": "/x"}] * 999]

    with pytest.raises(PatchRefused, match="too deep"):
        edited_body(parse_patch(json.dumps(nesting)), b"{}")
