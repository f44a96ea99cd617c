"""Names a broker takes (case NM-02)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.topology.model import Binding, Exchange, Queue, Topology
from redrive.core.topology.names import MAX_NAME_BYTES, check_names, name_bytes
from redrive.core.topology.recipes import delay_levels, fanout_bus, retry_per_queue, tiered_retry
from redrive.errors import ConfigurationError


def queues(*names: str) -> Topology:
    return Topology(queues=tuple(Queue(name=name) for name in names))


def test_suffixes_count_and_every_derived_name_is_told_with_its_bytes() -> None:
    long = "a" * 250

    with pytest.raises(ConfigurationError) as caught:
        retry_per_queue({long: {"domain.events": "#"}})

    assert "nothing was declared" in caught.value.text
    assert f"queue '{long}.retry' has 256 bytes" in caught.value.text
    assert f"exchange 'retry.{long}' has 256 bytes" in caught.value.text
    assert f"'{long}'" not in caught.value.text


@pytest.mark.parametrize(
    "make",
    [
        fanout_bus,
        lambda long: tiered_retry("f", domains=[long]),
        delay_levels,
    ],
)
def test_every_recipe_refuses_a_name_that_is_too_long_with_its_suffix(make: Callable[[str], Topology]) -> None:
    with pytest.raises(ConfigurationError, match="bytes"):
        make("a" * 251)


def test_bytes_are_counted_and_not_characters() -> None:
    check_names(queues("é" * 127 + "a"))

    with pytest.raises(ConfigurationError, match="has 256 bytes"):
        check_names(queues("é" * 128))


@pytest.mark.parametrize("name", ["", " ", "amq.foo", "a\nb", "a\x00b"])
def test_empty_names_the_brokers_own_and_control_characters_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError):
        check_names(queues("fine", name))
    with pytest.raises(ConfigurationError):
        check_names(Topology(exchanges=(Exchange(name=name),)))


def test_a_routing_key_is_a_short_string_too() -> None:
    with pytest.raises(ConfigurationError, match="routing key"):
        check_names(Topology(bindings=(Binding(source="a", destination="b", routing_key="k" * 256),)))


def test_one_name_with_two_settings_is_refused() -> None:
    twice = Topology(queues=(Queue(name="a"), Queue(name="a", arguments={"x-message-ttl": 1}), Queue(name="b")))

    with pytest.raises(ConfigurationError, match="'a' is wanted twice"):
        check_names(twice)


@given(st.text(max_size=300))
def test_any_text_is_taken_or_refused_and_never_an_accident(name: str) -> None:
    try:
        check_names(queues(name))
    except ConfigurationError:
        return
    assert 1 <= name_bytes(name) <= MAX_NAME_BYTES
