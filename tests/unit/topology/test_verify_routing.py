"""Symbolic routing against a plain model of the broker's own: what it says of all keys holds of each."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.topology.model import Binding, Exchange, Queue, Topology
from redrive.core.topology.verify import REDRIVE, Publish, verify
from redrive.core.topology.verify.effective import Policies
from redrive.core.topology.verify.patterns import first_key, literal, matches, overlap, topic
from redrive.core.topology.verify.routing import Router
from tests.unit.topology.verifying import QUORUM, SAFE, queue, topology

WORDS = ("a", "b", "", "other")
KEYS = [".".join(words) for length in range(5) for words in product(WORDS[:2] + WORDS[3:], repeat=length)]
patterns = st.lists(st.sampled_from(["a", "b", "*", "#"]), max_size=4).map(".".join)


def plain_match(pattern: list[str], words: list[str]) -> bool:
    """Topic matching as it is told in words, one case a line."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return plain_match(pattern[1:], words) or (bool(words) and plain_match(pattern, words[1:]))
    return bool(words) and pattern[0] in ("*", words[0]) and plain_match(pattern[1:], words[1:])


def words_of(key: str) -> list[str]:
    return key.split(".") if key else []


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("#", "", True),
        ("#", "a.b.c", True),
        ("*", "", False),
        ("*", "a", True),
        ("*.dead", "orders.dead", True),
        ("*.dead", "orders.eu.dead", False),
        ("#.dead", "dead", True),
        ("orders.#", "orders", True),
        ("a.*.#", "a", False),
        ("a.*.#", "a.", True),
        ("a..b", "a..b", True),
        ("a.*.b", "a..b", True),
        ("#.#", "", True),
        ("orders", "Orders", False),
    ],
)
def test_stars_and_hashes_match_as_the_broker_matches_them(pattern: str, key: str, *, expected: bool) -> None:
    assert expected is matches(topic(pattern), literal(key))


@given(pattern=patterns, key=st.lists(st.sampled_from(WORDS), max_size=5).map(".".join))
def test_matching_agrees_with_the_definition(pattern: str, key: str) -> None:
    assert plain_match(words_of(pattern), words_of(key)) is matches(topic(pattern), literal(key))


@given(left=patterns, right=patterns)
def test_overlap_means_a_key_both_have(left: str, right: str) -> None:
    common = [key for key in KEYS if all(plain_match(words_of(each), words_of(key)) for each in (left, right))]

    assert bool(common) is overlap(topic(left), topic(right))


@given(inside=patterns, outside=st.lists(patterns, max_size=3))
def test_a_key_that_no_binding_has_is_found_where_there_is_one(inside: str, outside: list[str]) -> None:
    found = first_key([topic(each) for each in (inside, *outside)], lambda has: has[0] and not any(has[1:]))

    lost = [
        key
        for key in KEYS
        if plain_match(words_of(inside), words_of(key))
        and not any(plain_match(words_of(each), words_of(key)) for each in outside)
    ]
    assert bool(lost) is (found is not None)


bindings = st.lists(
    st.builds(
        Binding,
        source=st.sampled_from(["one", "two", "three"]),
        destination=st.sampled_from(["q1", "q2"]),
        routing_key=patterns,
    )
    | st.builds(
        Binding,
        source=st.sampled_from(["one", "two", "three"]),
        destination=st.sampled_from(["one", "two", "three"]),
        destination_type=st.just("exchange"),
        routing_key=patterns,
    ),
    max_size=5,
)
kinds = st.sampled_from(["direct", "fanout", "topic"])


@st.composite
def worlds(draw: st.DrawFn) -> Topology:
    alternate = {"alternate-exchange": "three"} if draw(st.booleans()) else {}
    return Topology(
        exchanges=(
            Exchange(name="one", type=draw(kinds), arguments=alternate),
            Exchange(name="two", type=draw(kinds)),
            Exchange(name="three", type=draw(kinds)),
        ),
        queues=(Queue(name="q1"), Queue(name="q2")),
        bindings=tuple(draw(bindings)),
    )


def plain_route(world: Topology, key: str) -> set[str]:
    """Which queues get a message that is published to exchange "one" with this key."""
    kinds = {each.name: each.type for each in world.exchanges}
    waiting, seen, found = ["one"], {"one"}, set()
    while waiting:
        name = waiting.pop()
        hits = [each for each in world.bindings if each.source == name and plain_hit(kinds[name], each, key)]
        found |= {each.destination for each in hits if each.destination_type == "queue"}
        onward = [each.destination for each in hits if each.destination_type == "exchange"]
        if not hits and name == "one" and world.exchanges[0].arguments:
            onward.append("three")
        waiting += [each for each in set(onward) if each not in seen]
        seen.update(onward)
    return found


def plain_hit(kind: str, binding: Binding, key: str) -> bool:
    if kind == "direct":
        return binding.routing_key == key
    return kind == "fanout" or plain_match(words_of(binding.routing_key), words_of(key))


@given(world=worlds(), key=st.sampled_from(KEYS))
def test_one_message_is_routed_as_the_broker_routes_it(world: Topology, key: str) -> None:
    route = Router(world, Policies(world)).route("/", "one", (literal(key),))

    expected = plain_route(world, key)
    assert expected == {each.name for each in route.queues}
    assert (not expected) is (route.lost is not None)


@given(world=worlds(), pattern=patterns)
def test_what_is_said_of_a_pattern_holds_of_each_of_its_keys(world: Topology, pattern: str) -> None:
    route = Router(world, Policies(world)).route("/", "one", (topic(pattern),))

    keys = [key for key in KEYS if plain_match(words_of(pattern), words_of(key))]
    may = {queue for key in keys for queue in plain_route(world, key)}
    assert may <= {each.name for each in route.queues}
    assert any(not plain_route(world, key) for key in keys) is (route.lost is not None)


def test_the_default_exchange_routes_by_the_name_of_the_queue() -> None:
    router = Router(world := topology(queue("orders"), queue("mail")), Policies(world))

    assert {"orders"} == {each.name for each in router.route("/", "", (literal("orders"),)).queues}
    assert "order" == router.route("/", "", (literal("order"),)).lost
    assert {"orders", "mail"} == {each.name for each in router.route("/", "", (topic("*"),)).queues}


def test_queues_of_another_virtual_host_get_nothing() -> None:
    away = Queue(name="orders.dead", vhost="other")

    report = verify(topology(queue("orders", "", "orders.dead", **{"queue-type": "classic"}), away))

    assert [("L3", "orders")] == [(each.code, each.queue) for each in report.findings if each.code == "L3"]


def test_the_keys_of_a_cc_header_are_dead_lettered_too() -> None:
    things = (
        Exchange(name="events", type="topic"),
        Exchange(name="dlx"),
        Queue(name="orders", arguments={**SAFE, "x-dead-letter-exchange": "dlx"}),
        Queue(name="orders.dead", arguments=QUORUM),
        Binding(source="events", destination="orders", routing_key="orders.*"),
        Binding(source="dlx", destination="orders.dead", routing_key="copy"),
    )
    alone = Publish(exchange="events", routing_key="orders.new")
    copied = Publish(exchange="events", routing_key="orders.new", cc=("copy",))

    assert ("L3",) == verify(topology(*things), publishes=[alone], client=REDRIVE).codes()
    assert () == verify(topology(*things), publishes=[copied], client=REDRIVE).codes()


def test_an_alternate_exchange_catches_what_no_binding_matches() -> None:
    def world(**arguments: str) -> Topology:
        return topology(
            Exchange(name="dlx", arguments={name.replace("_", "-"): value for name, value in arguments.items()}),
            Exchange(name="unrouted", type="fanout"),
            Queue(
                name="orders", arguments={**SAFE, "x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "no"}
            ),
            Queue(name="orders.unrouted", arguments=QUORUM),
            Binding(source="unrouted", destination="orders.unrouted"),
            Binding(source="dlx", destination="orders.unrouted", routing_key="yes"),
        )

    assert ("L3",) == verify(world(), client=REDRIVE).codes()
    assert () == verify(world(alternate_exchange="unrouted"), client=REDRIVE).codes()


def test_a_plugin_exchange_is_undecided_unless_its_kind_is_known() -> None:
    def world(kind: str) -> Topology:
        return topology(
            Exchange(name="dlx", type=kind),
            Queue(name="orders", arguments={**SAFE, "x-dead-letter-exchange": "dlx"}),
            Queue(name="orders.dead", arguments=QUORUM),
            Binding(source="dlx", destination="orders.dead", routing_key="1"),
        )

    assert ("L28",) == verify(world("x-of-somebody"), client=REDRIVE).codes()
    assert () == verify(world("x-consistent-hash"), client=REDRIVE).codes()
