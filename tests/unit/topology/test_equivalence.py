"""What the broker takes for the same declaration: as measured on 3.10.8 and 4.0.5."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.topology.equivalence import (
    Difference,
    exchange_differences,
    frozen,
    is_same,
    queue_differences,
    shown,
)
from redrive.core.topology.model import Exchange, Queue


def queue(**arguments: Any) -> Queue:
    return Queue(name="q", arguments={f"x-{name.replace('_', '-')}": value for name, value in arguments.items()})


@pytest.mark.parametrize(
    ("want", "have"),
    [
        (queue(), queue()),
        (queue(queue_type="classic"), queue()),
        (queue(), queue(queue_type="classic")),
        (queue(foo=1), queue(foo=2)),
        (queue(foo=1), queue()),
        (queue(consumer_timeout=1), queue()),
        (queue(dead_letter_strategy="at-least-once"), queue()),
        (queue(delivery_limit=5), queue()),
        (queue(queue_type="quorum", max_priority=5), queue(queue_type="quorum")),
        (queue(queue_type="quorum", queue_mode="lazy"), queue(queue_type="quorum")),
    ],
)
def test_these_are_the_same_to_the_broker(want: Queue, have: Queue) -> None:
    assert () == queue_differences(want, have)


@pytest.mark.parametrize(
    ("want", "have", "setting"),
    [
        (queue(message_ttl=1), queue(message_ttl=2), "x-message-ttl"),
        (queue(message_ttl=1), queue(), "x-message-ttl"),
        (queue(), queue(message_ttl=1), "x-message-ttl"),
        (queue(max_length=5), queue(max_length="5"), "x-max-length"),
        (queue(single_active_consumer=True), queue(single_active_consumer=1), "x-single-active-consumer"),
        (queue(queue_type="quorum"), queue(), "x-queue-type"),
        (queue(), queue(queue_type="quorum"), "x-queue-type"),
        (queue(dead_letter_exchange=""), queue(), "x-dead-letter-exchange"),
        (queue(max_priority=5), queue(max_priority=6), "x-max-priority"),
        (queue(queue_type="quorum", delivery_limit=-1), queue(queue_type="quorum"), "x-delivery-limit"),
        (queue(queue_type="stream", max_age="1D"), queue(queue_type="stream"), "x-max-age"),
        (Queue(name="q", durable=False), queue(), "durable"),
        (Queue(name="q", auto_delete=True), queue(), "auto_delete"),
    ],
)
def test_these_are_refused_with_406(want: Queue, have: Queue, setting: str) -> None:
    assert [setting] == [each.setting for each in queue_differences(want, have)]


def test_a_queue_without_a_type_is_of_the_virtual_hosts_default_type() -> None:
    quorum = queue(queue_type="quorum")

    assert () == queue_differences(queue(), quorum, default_type="quorum")
    assert (Difference(setting="x-queue-type", have="quorum", want="classic"),) == queue_differences(
        queue(queue_type="classic"), quorum, default_type="quorum"
    )


def test_all_differences_are_told_and_not_only_the_first() -> None:
    found = queue_differences(queue(message_ttl=1, max_length=2), queue(message_ttl=2, expires=9))

    assert ["x-expires", "x-max-length", "x-message-ttl"] == [each.setting for each in found]
    assert "x-expires: have 9, want nothing" == str(found[0])


@pytest.mark.parametrize(
    ("want", "have", "settings"),
    [
        (Exchange(name="e"), Exchange(name="e", arguments={"x-foo": 1}), []),
        (Exchange(name="e"), Exchange(name="e", type="topic"), ["type"]),
        (Exchange(name="e", internal=True), Exchange(name="e"), ["internal"]),
        (Exchange(name="e", durable=False), Exchange(name="e"), ["durable"]),
        (Exchange(name="e", arguments={"alternate-exchange": "a"}), Exchange(name="e"), ["alternate-exchange"]),
    ],
)
def test_an_exchange_is_compared_by_type_flags_and_alternate(
    want: Exchange, have: Exchange, settings: list[str]
) -> None:
    assert settings == [each.setting for each in exchange_differences(want, have)]


VALUES = st.recursive(
    st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, 1.0, 2.5]) | st.sampled_from(["", "1", "a"]) | st.none(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


@given(VALUES, VALUES)
def test_values_are_the_same_exactly_when_they_freeze_the_same(left: object, right: object) -> None:
    assert is_same(left, right) == is_same(right, left) == (frozen(left) == frozen(right))


@given(VALUES)
def test_a_value_is_the_same_as_itself_and_can_be_shown(value: object) -> None:
    assert is_same(value, value)
    assert shown(value)


def test_a_value_that_is_nested_without_an_end_is_shown_as_far_as_anybody_reads() -> None:
    deep: object = "end"
    for _ in range(5_000):
        deep = [deep]

    text = shown({"a": 1, "deep": deep})

    assert text.startswith("{a: 1, deep: [[[")
    assert "…" in text
    assert len(text) < 100
