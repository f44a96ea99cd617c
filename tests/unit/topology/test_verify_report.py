"""What a report says and to whom, what may be suppressed, and that no topology is too odd or too large."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.topology.model import Binding, Exchange, Policy, Queue, Topology
from redrive.core.topology.recipes import delay_levels, tiered_retry
from redrive.core.topology.verify import REDRIVE, Severity, Suppression, read_suppressions, render, verify
from redrive.errors import ConfigurationError
from tests.unit.topology.verifying import definitions, queue, topology


def test_a_story_names_queue_path_remedy_and_values() -> None:
    text = render(verify(definitions("l02_bad"), client=REDRIVE))

    assert 'ERROR L2 queue "orders": The dead-letter exchange does not exist' in text
    assert 'Path: orders → exchange "orders.dxl" → nothing' in text
    assert "Do: Declare the exchange, or correct the name." in text
    assert "As it is, messages can be lost" in text


def test_the_proof_tells_every_fate_where_nothing_is_found() -> None:
    text = render(verify(definitions("l01_good"), client=REDRIVE))

    assert '"orders" (quorum, consumed)' in text
    for cause in ("ack:", "reject:", "requeue:", "crash:", "restart:", "never: delivery limit, expiry, overflow"):
        assert cause in text
    assert "2 queues: 0 errors, 0 warnings. So, nothing is lost." in text


def test_a_wired_queue_tells_the_ways_of_redrive_in_its_proof() -> None:
    text = render(verify(delay_levels("orders"), client=REDRIVE))

    assert "retry: " in text
    assert "dead letter: " in text


def test_no_proof_is_given_beside_a_loss_unless_asked_for() -> None:
    report = verify(definitions("l02_bad"), client=REDRIVE)

    assert "What becomes of a message" not in render(report)
    assert "What becomes of a message" in render(report, with_proof=True)


def test_milder_findings_can_be_left_out_of_the_text() -> None:
    report = verify(definitions("l06_bad"))

    assert "INFO" in render(report)
    assert "INFO" not in render(report, severity=Severity.WARNING)


def test_the_document_is_plain_and_whole() -> None:
    report = verify(definitions("tp02_bad"))

    document = json.loads(json.dumps(report.document()))

    assert {"format", "version", "safe", "counts", "findings", "suppressed", "assumptions", "queues"} == set(document)
    assert {"code", "severity", "title", "vhost", "queue", "story", "path", "remedy", "source"} == set(
        document["findings"][0]
    )
    assert (False, "4.0.5", len(report.proofs)) == (document["safe"], document["version"], len(document["queues"]))
    assert sum(document["counts"].values()) == len(document["findings"])


def test_the_worst_stands_first() -> None:
    ranks = [each.severity.rank for each in verify(definitions("tp02_bad")).findings]

    assert sorted(ranks) == ranks


def test_what_is_guessed_is_said() -> None:
    guessed, told = verify(definitions("l06_bad")), verify(definitions("l06_bad"), consumers=["orders"])

    assert ["consumed are orders (guessed from names, TTLs and bindings)."] == list(guessed.assumptions)
    assert () == told.assumptions


def test_a_suppressed_finding_keeps_its_reason_and_no_longer_counts() -> None:
    shape = tiered_retry("freeflow", domains=["user"])
    decided = [
        Suppression(code="L6", queue="freeflow.*", reason="The broker is never killed."),
        Suppression(code="L23", reason="Handlers are idempotent."),
    ]

    report = verify(shape, client=REDRIVE, suppress=decided)

    assert report.is_safe
    assert {"L6", "L23"} == {each.finding.code for each in report.suppressed}
    assert "suppressed L23" in render(report)
    assert "Handlers are idempotent." in {each["reason"] for each in report.document()["suppressed"]}


def test_a_suppression_of_nothing_is_told() -> None:
    stale = Suppression(code="L7", queue="gone", reason="It was full once.")

    report = verify(definitions("l01_good"), client=REDRIVE, suppress=[stale])

    assert [("L36", Severity.INFO)] == [(each.code, each.severity) for each in report.findings]


@pytest.mark.parametrize(
    "text",
    [
        '[[suppress]]\ncode = "L6"\nqueue = "orders.*"\nreason = "Known."\n',
        '[{"code": "L6", "queue": "orders.*", "reason": "Known."}]',
        '{"suppress": [{"code": "L6", "queue": "orders.*", "reason": "Known."}]}',
    ],
)
def test_suppressions_are_read_from_toml_and_json(text: str) -> None:
    assert (Suppression(code="L6", queue="orders.*", reason="Known."),) == read_suppressions(text)


@pytest.mark.parametrize(
    "text",
    [
        '[[suppress]]\ncode = "L6"\n',
        '[[suppress]]\ncode = "L6"\nreason = " "\n',
        '[[suppress]]\ncode = "L99"\nreason = "No such code."\n',
        '[[suppress]]\ncode = "L6"\nreason = "Fine."\nwhy = "No such field."\n',
        '[{"code": 6, "reason": "A number."}]',
        "[[suppress",
        '{"suppress": 5}',
        "[" * 10_000,
    ],
)
def test_a_suppression_without_a_reason_or_of_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        read_suppressions(text)


ODD = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3) | st.floats() | st.just([]) | st.just({})
NAMES = st.sampled_from(["a", "b", "wait", "a.dead", ""])
ARGUMENTS = st.dictionaries(
    st.sampled_from(
        [
            "x-queue-type",
            "x-message-ttl",
            "x-dead-letter-exchange",
            "x-dead-letter-routing-key",
            "x-max-length",
            "x-overflow",
            "x-delivery-limit",
            "x-expires",
            "x-dead-letter-strategy",
            "alternate-exchange",
            "x-match",
        ]
    ),
    ODD | NAMES | st.sampled_from(["quorum", "classic", "stream", "reject-publish", "at-least-once"]),
    max_size=6,
)


@st.composite
def odd_topologies(draw: st.DrawFn) -> Topology:
    kinds = st.sampled_from(["direct", "fanout", "topic", "headers", "x-odd", ""])
    keys = st.sampled_from(["", "#", "*", "a.#", "a.b", "#.#.*"])
    policies = st.builds(
        Policy,
        name=NAMES,
        pattern=st.sampled_from(["", "a", "(", ".*", "(a+)+"]),
        definition=st.dictionaries(
            st.sampled_from(["message-ttl", "dead-letter-exchange", "overflow", "alternate-exchange", "queue-mode"]),
            ODD,
        ),
        apply_to=st.sampled_from(["all", "queues", "exchanges", "nothing"]),
        priority=st.integers(-1, 1),
    )
    return Topology(
        exchanges=tuple(draw(st.lists(st.builds(Exchange, name=NAMES, type=kinds, arguments=ARGUMENTS), max_size=4))),
        queues=tuple(
            draw(st.lists(st.builds(Queue, name=NAMES, arguments=ARGUMENTS, durable=st.booleans()), max_size=5))
        ),
        bindings=tuple(
            draw(
                st.lists(
                    st.builds(
                        Binding,
                        source=NAMES,
                        destination=NAMES,
                        routing_key=keys,
                        destination_type=st.sampled_from(["queue", "exchange"]),
                        arguments=ARGUMENTS,
                    ),
                    max_size=6,
                )
            )
        ),
        policies=tuple(draw(st.lists(policies, max_size=3))),
        operator_policies=tuple(draw(st.lists(policies, max_size=2))),
        version=draw(st.sampled_from([None, "3.10.8", "4.0.5", "4.3", "odd"])),
    )


@given(shape=odd_topologies(), per_message=st.booleans())
def test_no_topology_is_too_odd_to_be_verified_and_told(shape: Topology, *, per_message: bool) -> None:
    report = verify(shape, client=replace(REDRIVE, per_message_ttl=per_message))

    json.dumps(report.document())
    assert render(report, with_proof=True).endswith("\n")


def test_a_chain_of_thousands_and_a_graph_where_all_lead_to_all_are_walked() -> None:
    chain = [queue(f"wait.{n}", "", f"wait.{n + 1}", message_ttl=1) for n in range(3_000)]
    dense = [queue(f"q{n}", "fan", message_ttl=1) for n in range(150)]
    bound = [Binding(source="fan", destination=f"q{n}") for n in range(150)]
    begin = time.process_time()

    long = verify(topology(*chain, queue("wait.3000", "", "wait.0", message_ttl=1)))
    wide = verify(topology(Exchange(name="fan", type="fanout"), *dense, *bound))

    assert "L9" in long.codes(Severity.ERROR)
    assert "L9" in wide.codes(Severity.ERROR)
    assert time.process_time() - begin < 20


def test_keys_of_many_words_and_many_bindings_end_in_time() -> None:
    bindings = [Binding(source="dlx", destination="dead", routing_key=f"*.{'#.' * 6}w{n}.*") for n in range(60)]
    fed = Binding(source="events", destination="orders", routing_key="#.a.#.b.#")
    begin = time.process_time()

    report = verify(
        topology(
            Exchange(name="events", type="topic"),
            Exchange(name="dlx", type="topic"),
            queue("orders", "dlx"),
            queue("dead"),
            fed,
            *bindings,
        )
    )

    assert {"L3", "L28"} & set(report.codes(Severity.WARNING))
    assert time.process_time() - begin < 20
