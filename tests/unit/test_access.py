"""Roles, and what they do not see: no rule of redaction leaves a hidden value in a text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.access import (
    REDACTED,
    RedactRule,
    Role,
    Veil,
    paths_below,
    redact_rule_from,
    redacted,
    secrets_of,
    veil_everywhere,
    veil_of,
)
from redrive.errors import ConfigurationError

BODY: Any = {"card": {"no": "4111-22", "a.b": [{"x/y": "deep"}], "pin": 99}, "n": 1}


def hidden(*fields: str, value: Any = BODY) -> Any:
    veil = veil_of([RedactRule(fields=fields)], None, Role.VIEWER)
    return redacted(value, paths_below(veil.paths, "payload"))


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        ("payload", REDACTED),
        ("payload.card", {**BODY, "card": REDACTED}),
        ("payload.card.pin", {**BODY, "card": {**BODY["card"], "pin": REDACTED}}),
        ("payload/card/pin", {**BODY, "card": {**BODY["card"], "pin": REDACTED}}),
        ("payload/card/a.b/0/x~1y", {**BODY, "card": {**BODY["card"], "a.b": [{"x/y": REDACTED}]}}),
        ("payload/card/a.b/*", {**BODY, "card": {**BODY["card"], "a.b": [REDACTED]}}),
        ("payload.card/pin", BODY),
        ("payload/nobody", BODY),
    ],
)
def test_a_field_is_a_path_or_a_pointer(field: str, shown: Any) -> None:
    assert shown == hidden(field)


@pytest.mark.parametrize("field", ["", "body", "payloads", "payload.", "payload..a", "errors", "error.text", "key"])
def test_a_field_that_is_none_is_refused(field: str) -> None:
    with pytest.raises(ConfigurationError):
        RedactRule(fields=(field,))


@pytest.mark.parametrize("pattern", ["(", "a*", "", "x{2000000000000}", "a" * 1_001])
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigurationError):
        RedactRule(patterns=(pattern,))


@pytest.mark.parametrize(
    "table",
    [{}, {"fields": "payload"}, {"patterns": "x"}, {"patterns": [1]}, {"fields": ["payload"], "words": []}, []],
)
def test_a_table_that_is_no_rule_is_refused(table: Any) -> None:
    with pytest.raises(ConfigurationError):
        redact_rule_from(table, source="redrive.toml")


def test_a_table_is_a_rule() -> None:
    found = redact_rule_from({"type": "pay.*", "role": "operator", "patterns": ["[0-9]{4}"]}, source="redrive.toml")

    assert RedactRule(type="pay.*", role=Role.OPERATOR, patterns=("[0-9]{4}",)) == found


def test_a_rule_holds_for_its_types_and_for_its_role_and_those_below() -> None:
    rules = [
        RedactRule(type="pay.*", role=Role.OPERATOR, fields=("payload.card",)),
        RedactRule(role=Role.VIEWER, fields=("error",), patterns=("x+",)),
    ]

    assert Veil(paths=(("payload", "card"), ("error",)), patterns=("x+",)) == veil_of(rules, "pay.done", Role.VIEWER)
    assert Veil(paths=(("payload", "card"),)) == veil_of(rules, "pay.done", Role.OPERATOR)
    assert not veil_of(rules, "pay.done", Role.ADMIN)
    assert not veil_of(rules, None, Role.OPERATOR)
    assert veil_everywhere(rules, Role.OPERATOR).paths == (("payload", "card"),)


def test_short_values_are_words_of_their_own() -> None:
    text = Veil().text("pin 99 of 1999, code=99", ["99"])

    assert f"pin {REDACTED} of 1999, code={REDACTED}" == text


JSON_VALUES: Any = st.recursive(
    st.text(min_size=1) | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(secret=JSON_VALUES, before=st.text(max_size=10), quote=st.sampled_from([str, repr, json.dumps]))
def test_no_hidden_value_stays_in_a_text(secret: Any, before: str, quote: Any) -> None:
    found = secrets_of({"card": secret, "n": 1}, [("card",)])
    leaves = _leaves(secret)

    for leaf in leaves:
        shown = Veil().text(f"{before} {quote(leaf)} end", tuple(found))
        whole = f"{before} {quote(leaf)} end"
        assert shown != whole
        if len(str(leaf)) > 10:
            assert str(leaf) not in shown.replace(REDACTED, "")


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in _leaves(each)]
    if isinstance(value, list):
        return [leaf for each in value for leaf in _leaves(each)]
    return [] if value is None or isinstance(value, bool) or not str(value).strip() else [value]


def test_what_is_not_hidden_is_no_secret() -> None:
    assert {"4111-22"} == secrets_of(BODY, [("card", "no")])
    assert {"a b"} == secrets_of({"Auth": "a b"}, [("auth",)], is_caseless=True)
    assert set() == secrets_of(BODY, [])
