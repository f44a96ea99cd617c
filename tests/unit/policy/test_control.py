"""What a person changes of a queue's fairness: it holds over the consumer's word, and only as far as it says."""

from __future__ import annotations

import pytest

from redrive.core.policy.control import Control, control_from_json, control_json, controlled, merged
from redrive.core.policy.fair import Fair
from redrive.core.policy.flow import parse_rate
from redrive.errors import ConfigurationError, SchemaTooNewError

OWN = Fair(batch=3, weights={"acme": 2}, rate={"trial": "1/s", "*": "100/s"})


def test_without_a_control_the_consumers_word_holds() -> None:
    assert controlled(OWN, None) is OWN
    assert controlled(OWN, Control(queue="mail")) is OWN


def test_a_batch_limit_leaves_everything_else() -> None:
    found = controlled(OWN, Control(queue="mail", batch=7))

    assert (7, OWN.weights, OWN.rate) == (found.batch, found.weights, found.rate)


def test_a_tenants_own_rate_leaves_the_others() -> None:
    found = controlled(OWN, Control(queue="mail", rates={"acme": "10/min", "trial": "5/s"}))

    assert [parse_rate(rate) for rate in ("10/min", "5/s", "100/s")] == [
        found.rate_of(tenant) for tenant in ("acme", "trial", "somebody else")
    ]
    assert 3 == found.batch


def test_a_rate_for_a_consumer_that_has_none() -> None:
    found = controlled(Fair(), Control(queue="mail", rates={"acme": "10/min"}))

    assert (parse_rate("10/min"), None) == (found.rate_of("acme"), found.rate_of("bolt"))


def test_changes_add_up_until_they_are_taken_back() -> None:
    first = merged(Control(queue="mail"), batch=5, rates={"acme": "1/s"})

    second = merged(first, batch=None, rates={"bolt": "2/s"})

    assert (5, {"acme": "1/s", "bolt": "2/s"}) == (second.batch, second.rates)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"batch": 0}, "batch limit is 0"),
        ({"batch": 100_000}, "batch limit is 100000"),
        ({"rates": {"acme": "fast"}}, 'rate of tenant "acme"'),
        ({"rates": {f"t{n}": "1/s" for n in range(1_001)}}, "too many"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given: dict, name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Control(queue="mail", **given)


def test_a_control_is_text_and_comes_back() -> None:
    given = Control(queue="mail", batch=5, rates={"acme": "10/min"}, changed_at=7, actor="ann", note="why")

    assert given == control_from_json(control_json(given))


@pytest.mark.parametrize("text", ["", "x", "[]", "1", "{}", '{"schema": 1}', '{"schema": "1"}', b"\xff"])
def test_what_is_no_control_is_refused(text: str | bytes) -> None:
    with pytest.raises(ConfigurationError):
        control_from_json(text)


def test_a_control_of_a_newer_redrive_is_refused() -> None:
    newer = control_json(Control(queue="mail", batch=5)).replace('"schema": 1', '"schema": 2')

    with pytest.raises(SchemaTooNewError):
        control_from_json(newer)
