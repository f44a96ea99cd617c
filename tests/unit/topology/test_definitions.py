"""definitions.json: written the same way every time, and read from whatever a broker exported (case TP-05)."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.topology.definitions import (
    Permission,
    export_definitions,
    parse_definitions,
    read_definitions,
)
from redrive.core.topology.model import EMPTY, Binding, Exchange, Policy, Queue, QueueType, Topology
from redrive.core.topology.recipes import delay_levels, tiered_retry
from redrive.errors import ConfigurationError

EXPORTS = Path(__file__).resolve().parent / "exports"
CONDITIONS = {"x-match": "all", "tenant": "t1", "n": 5, "flag": True}

ROUND_TRIP = Topology(
    exchanges=(Exchange(name="by-header", type="headers"), Exchange(name="events", type="topic", vhost="t/1")),
    queues=(
        Queue(
            name="naïve-Ω",
            arguments={
                "x-queue-type": "quorum",
                "x-delivery-limit": 7,
                "x-dead-letter-exchange": "",
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
            },
        ),
        Queue(name="plain", vhost="t/1"),
    ),
    bindings=(
        Binding(source="by-header", destination="naïve-Ω", arguments=CONDITIONS),
        Binding(source="events", destination="plain", routing_key="#", vhost="t/1"),
    ),
    policies=(Policy(name="p", pattern="^n", definition={"max-length": 10}, priority=0),),
    operator_policies=(Policy(name="o", pattern=".*", definition={"expires": 1_000}, apply_to="queues", vhost="t/1"),),
)


def nothing_missing(value: Any) -> bool:
    if isinstance(value, dict):
        return all(nothing_missing(each) for each in value.values())
    if isinstance(value, list):
        return all(map(nothing_missing, value))
    return value is not None and value != "undefined"


def shuffled(topology: Topology) -> Topology:
    return Topology(
        exchanges=topology.exchanges[::-1],
        queues=topology.queues[::-1],
        bindings=topology.bindings[::-1],
        policies=topology.policies[::-1],
        operator_policies=topology.operator_policies[::-1],
    )


def test_two_exports_are_the_same_bytes_in_whatever_order_the_topology_was_built() -> None:
    first = export_definitions(ROUND_TRIP)

    again = export_definitions(parse_definitions(first).topology)

    assert first == again == export_definitions(shuffled(ROUND_TRIP))


def test_nothing_is_null_undefined_or_without_a_virtual_host() -> None:
    document = json.loads(export_definitions(ROUND_TRIP))

    assert nothing_missing(document)
    assert [{"name": "/"}, {"name": "t/1"}] == document["vhosts"]
    entries = [entry for section in ("exchanges", "queues", "bindings", "policies") for entry in document[section]]
    assert all(entry["vhost"] in ("/", "t/1") for entry in entries)


def test_conditions_of_a_headers_binding_keep_their_kinds_and_a_priority_of_zero_stays() -> None:
    document = json.loads(export_definitions(ROUND_TRIP))

    kept = document["bindings"][0]["arguments"]
    assert CONDITIONS == kept
    assert kept["flag"] is True
    assert type(kept["n"]) is int
    assert 0 == document["policies"][0]["priority"]
    assert "naïve-Ω" == document["queues"][0]["name"]
    assert "naïve-Ω" in export_definitions(ROUND_TRIP)


def test_what_was_written_is_read_as_it_was() -> None:
    read = parse_definitions(export_definitions(ROUND_TRIP))

    assert ROUND_TRIP == read.topology
    assert ("/", "t/1") == read.vhosts


def test_users_and_permissions_are_in_the_file_only_when_handed_in() -> None:
    user = {
        "name": "app",
        "password_hash": "aGFzaA==",
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": [],
    }
    permission = Permission(user="app", vhost="/")

    without = export_definitions(ROUND_TRIP)
    told = export_definitions(ROUND_TRIP, users=[user], permissions=[permission])

    assert "password" not in without
    assert "users" not in json.loads(without)
    assert "permissions" not in json.loads(without)
    assert [user] == json.loads(told)["users"]
    read = parse_definitions(told)
    assert (user,) == read.users
    assert (permission,) == read.permissions
    assert "aGFzaA" not in repr(read)


def test_built_in_exchanges_and_bindings_of_the_default_exchange_are_left_out() -> None:
    made = Topology(
        exchanges=(Exchange(name=""), Exchange(name="amq.topic", type="topic"), Exchange(name="mine")),
        bindings=(Binding(source="", destination="q", routing_key="q"), Binding(source="amq.topic", destination="q")),
    )

    document = json.loads(export_definitions(made))

    assert ["mine"] == [each["name"] for each in document["exchanges"]]
    assert ["amq.topic"] == [each["source"] for each in document["bindings"]]


def test_the_version_of_the_broker_is_kept_and_none_is_made_up() -> None:
    assert "rabbit_version" not in json.loads(export_definitions(ROUND_TRIP))
    read = parse_definitions('{"rabbit_version": "3.10.8", "queues": []}')

    assert "3.10.8" == read.topology.version
    assert "3.10.8" == json.loads(export_definitions(read.topology))["rabbit_version"]


def test_a_file_for_one_virtual_host_names_none_and_goes_into_any() -> None:
    made = tiered_retry("freeflow", domains=["user"])

    text = export_definitions(made, names_vhost=False)

    assert "vhost" not in text
    assert {"prod"} == {each.vhost for each in parse_definitions(text, vhost="prod").topology.queues}
    with pytest.raises(ConfigurationError, match=r"several virtual hosts \(/, t/1\)"):
        export_definitions(ROUND_TRIP, names_vhost=False)


@pytest.mark.parametrize("value", [None, b"x", math.nan, math.inf, [None], {"a": None}, object()])
def test_what_json_cannot_hold_is_refused_by_name(value: object) -> None:
    made = Topology(bindings=(Binding(source="by-header", destination="q", arguments={"tenant": value}),))

    with pytest.raises(ConfigurationError, match=r'binding from "by-header" to "q", tenant'):
        export_definitions(made)


@pytest.mark.parametrize("version", ["3_10", "4_0"])
@pytest.mark.parametrize("kind", ["api", "ctl"])
def test_exports_of_a_whole_broker_are_read(kind: str, version: str) -> None:
    read = parse_definitions((EXPORTS / f"{kind}_{version}.json").read_bytes(), vhost="elsewhere")

    assert version.replace("_", ".") == ".".join((read.topology.version or "").split(".")[:2])
    assert {"/", "prod"} == set(read.vhosts)
    assert {"prod"} == {queue.vhost for queue in read.topology.queues}
    assert {"naïve-Ω", "hq", "q-none", "qq"} <= {queue.name for queue in read.topology.queues}
    assert (Policy(name="p0", pattern="^q", definition={"max-length": 10}, apply_to="queues", vhost="prod"),) == (
        read.topology.policies
    )


@pytest.mark.parametrize("version", ["3_10", "4_0"])
def test_the_export_of_one_virtual_host_belongs_where_it_is_read_for(version: str) -> None:
    read = parse_definitions((EXPORTS / f"vhost_{version}.json").read_bytes(), vhost="here")

    entities = (*read.topology.policies, *read.topology.operator_policies)
    assert {"here"} == {each.vhost for each in read.topology.queues} | {each.vhost for each in entities}
    assert ("here",) == read.vhosts


def test_policies_without_any_queue_keep_the_virtual_host_they_name() -> None:
    read = read_definitions({"policies": [{"name": "a", "pattern": "x", "vhost": "prod"}], "queues": []})

    assert "prod" == read.topology.policies[0].vhost


@pytest.mark.parametrize("name", ["ctl_3_10", "ctl_4_0", "vhost_3_10", "vhost_4_0"])
def test_operator_policies_are_read_from_the_parameters_in_both_of_their_forms(name: str) -> None:
    read = parse_definitions((EXPORTS / f"{name}.json").read_text("utf-8"), vhost="prod")

    expected = Policy(name="op0", pattern="^q", definition={"max-length": 100}, apply_to="queues", vhost="prod")
    assert (expected,) == read.topology.operator_policies


@pytest.mark.parametrize("name", ["api_3_10", "ctl_4_0"])
def test_a_condition_without_a_value_is_read_as_one_and_not_as_the_text_the_broker_writes(name: str) -> None:
    read = parse_definitions((EXPORTS / f"{name}.json").read_text("utf-8"))

    arguments = read.topology.bindings[0].arguments
    assert {"flag": True, "l": [1, "a"], "n": 5, "none": None, "tenant": "t1", "x-match": "all"} == arguments


def test_the_default_type_of_a_virtual_host_is_read_where_it_is_said() -> None:
    whole = read_definitions({"vhosts": [{"name": "a", "default_queue_type": "quorum"}, {"name": "b"}]})
    nested = read_definitions({"vhosts": [{"name": "a", "metadata": {"default_queue_type": "quorum"}}]})
    single = read_definitions({"metadata": {"default_queue_type": "quorum"}, "queues": []}, vhost="v")

    assert {"a": QueueType.QUORUM} == whole.default_types == nested.default_types
    assert {"v": QueueType.QUORUM} == single.default_types


def test_a_type_that_stands_beside_the_arguments_counts() -> None:
    read = read_definitions({"queues": [{"name": "q", "type": "quorum"}, {"name": "r", "type": "rabbit_mqtt_qos0"}]})

    assert {"x-queue-type": "quorum"} == read.topology.queues[0].arguments
    assert {} == read.topology.queues[1].arguments


def test_an_empty_file_is_an_empty_topology() -> None:
    assert EMPTY == parse_definitions("{}").topology
    assert EMPTY == parse_definitions(b"\xef\xbb\xbf{}").topology


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "line 1"), ("{,}", "line 1, column 2"), ("[]", r"\$ in the"), ("null", r"\$ in the"),
        ('{"queues": {}}', r"\$\.queues in"), ('{"queues": [3]}', r"\$\.queues\[0\] in"),
        ('{"queues": [{"name": "a"}, {}]}', r"\$\.queues\[1\]\.name"),
        ('{"queues": [{"name": "a", "arguments": ["x"]}]}', r"\$\.queues\[0\]\.arguments"),
        ('{"queues": [{"name": "a", "durable": "true"}]}', r"\$\.queues\[0\]\.durable"),
        ('{"queues": [{"name": "a", "vhost": ""}]}', r"\$\.queues\[0\]\.vhost"),
        ('{"queues": [{"name": "a", "vhost": 1}]}', r"\$\.queues\[0\]\.vhost"),
        ('{"queues": [{"name": "a"}, {"name": "a"}]}', r'\$\.queues\[1\].*second "a"'),
        ('{"exchanges": [{"name": "a", "type": 1}]}', r"\$\.exchanges\[0\]\.type"),
        ('{"bindings": [{"source": "a", "destination": "b", "destination_type": "topic"}]}', "destination_type"),
        ('{"bindings": [{"source": "a"}]}', r"\$\.bindings\[0\]\.destination"),
        ('{"policies": [{"name": "a", "pattern": "x", "priority": "1"}]}', r"\$\.policies\[0\]\.priority"),
        ('{"policies": [{"name": "a"}]}', r"\$\.policies\[0\]\.pattern"),
        ('{"parameters": [{"component": "operator_policy", "name": "a", "value": 3}]}', r"\$\.parameters\[0\]\.value"),
        ('{"vhosts": [{}]}', r"\$\.vhosts\[0\]\.name"), ('{"rabbit_version": 3}', r"\$\.rabbit_version"),
        ('{"permissions": [{"user": "a", "vhost": "/"}]}', r"\$\.permissions\[0\]\.configure"),
        ('{"n": NaN}', "no broker writes"), ('{"n": ' + "9" * 6_000 + "}", "no broker writes"),
        ('{"a":' * 100_000, "no broker writes"),
    ],
)  # fmt: skip
def test_what_is_no_definitions_file_is_refused_with_the_place_named(text: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        parse_definitions(text)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        parse_definitions(b"\xff\xfe{\x00}\x00")


def test_a_value_of_any_length_is_cut_in_the_error() -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_definitions({"queues": "x" * 10_000})

    assert len(str(caught.value)) < 300


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    [
        "name",
        "vhost",
        "source",
        "destination",
        "arguments",
        "type",
        "value",
        "component",
        "pattern",
        "definition",
        "user",
    ]
)
SECTIONS = st.sampled_from(
    ["queues", "exchanges", "bindings", "policies", "parameters", "vhosts", "permissions", "users", "rabbit_version"]
)


@given(st.dictionaries(SECTIONS, JSON | st.lists(st.dictionaries(FIELDS, JSON, max_size=6), max_size=3)))
def test_any_json_is_read_or_refused_and_never_an_accident(document: dict[str, Any]) -> None:
    with contextlib.suppress(ConfigurationError):
        parse_definitions(json.dumps(document))


NAMES = st.text(min_size=1, max_size=12).filter(lambda name: not name.startswith("amq.") and name != "undefined")
VALUES = st.booleans() | st.integers(-(2**31), 2**31) | NAMES
ARGUMENTS = st.dictionaries(NAMES, VALUES | st.lists(VALUES, max_size=2), max_size=3)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    vhosts = st.sampled_from(["/", "t/1"])
    exchanges = draw(st.dictionaries(st.tuples(vhosts, NAMES), ARGUMENTS, max_size=3))
    queues = draw(st.dictionaries(st.tuples(vhosts, NAMES), ARGUMENTS, max_size=3))
    bindings = draw(st.lists(st.tuples(vhosts, NAMES, NAMES, st.text(max_size=5), ARGUMENTS), max_size=3))
    return Topology(
        exchanges=tuple(Exchange(name=name, vhost=host, arguments=each) for (host, name), each in exchanges.items()),
        queues=tuple(Queue(name=name, vhost=host, arguments=each) for (host, name), each in queues.items()),
        bindings=tuple(
            Binding(vhost=host, source=source, destination=target, routing_key=key, arguments=arguments)
            for host, source, target, key, arguments in bindings
        ),
    )


@given(topologies())
def test_any_topology_comes_back_as_it_was_and_is_written_the_same_again(made: Topology) -> None:
    text = export_definitions(made)

    read = parse_definitions(text).topology

    assert text == export_definitions(read)
    assert {(each.vhost, each.name): dict(each.arguments) for each in made.queues} == {
        (each.vhost, each.name): dict(each.arguments) for each in read.queues
    }
    assert len(made.bindings) == len(read.bindings)


def test_the_ladder_is_written_and_read_whole() -> None:
    made = delay_levels("orders")

    read = parse_definitions(export_definitions(made)).topology

    assert {queue.name for queue in made.queues} == {queue.name for queue in read.queues}
