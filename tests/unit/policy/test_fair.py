"""What a user writes about fairness: checked, and named where it is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from redrive.core.policy.fair import Fair, make_fair
from redrive.core.policy.fairness import SCALE
from redrive.core.policy.flow import Rate
from redrive.errors import ConfigurationError


def test_the_short_form_is_the_long_one() -> None:
    assert Fair(by="tenant", batch=3, weights={}) == make_fair("tenant", "consumer")
    assert make_fair(None, "consumer") is None
    assert Fair(batch=1) == make_fair(Fair(batch=1), "consumer")


@pytest.mark.parametrize("given", ["tenants", 3, {"by": "tenant"}])
def test_anything_else_is_refused_by_name(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="consumer: fair_by"):
        make_fair(given, "consumer")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"by": "queue"}, "fair.by"),
        ({"batch": 0}, "fair.batch"),
        ({"batch": True}, "fair.batch"),
        ({"batch": 2.5}, "fair.batch"),
        ({"weights": {"a": 0}}, 'fair.weights\\["a"\\]'),
        ({"weights": {"a": -1}}, 'fair.weights\\["a"\\]'),
        ({"weights": {"a": float("nan")}}, 'fair.weights\\["a"\\]'),
        ({"weights": {"a": 101}}, 'fair.weights\\["a"\\]'),
        ({"weights": {"a": "2"}}, 'fair.weights\\["a"\\]'),
        ({"weights": {"a": 1, " a ": 2}}, 'the tenant "a" twice'),
        ({"weights": [1, 2]}, "fair.weights"),
        ({"cost": "size"}, "fair.cost"),
        ({"rate": "often"}, "fair.rate"),
        ({"rate": {"a": "often"}}, 'fair.rate\\["a"\\]'),
        ({"concurrency": 0}, "fair.concurrency"),
        ({"concurrency": {"a": 0}}, 'fair.concurrency\\["a"\\]'),
        ({"tenant_field": ""}, "fair.tenant_field"),
        ({"tenant_field": 7}, "fair.tenant_field"),
    ],
)
def test_what_is_wrong_is_named(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError, match=field):
        Fair(**arguments)


def test_limits_hold_for_everybody_or_for_who_is_named() -> None:
    all_alike = Fair(rate="10/s", concurrency=2)
    named = Fair(rate={"acme": "1 per 10 s"}, concurrency={"acme": 1, "*": 5})

    assert Rate(count=10, per_ms=1_000) == all_alike.rate_of("anybody")
    assert 2 == all_alike.concurrency_of("anybody")
    assert Rate(count=1, per_ms=10_000) == named.rate_of("acme")
    assert named.rate_of("others") is None
    assert [1, 5] == [named.concurrency_of(tenant) for tenant in ("acme", "others")]
    assert Fair().rate_of("x") is None
    assert Fair().concurrency_of("x") is None


def test_weights_are_steps_and_everybody_else_has_one() -> None:
    fair = Fair(weights={"four": 4, "half": 0.5})

    assert [SCALE // 4, SCALE * 2, SCALE] == [fair.step_for(tenant) for tenant in ("four", "half", "any")]


def test_what_is_reported_of_a_tenant_goes_by_the_queues_own_numbers() -> None:
    fair = Fair(base_priority=9, priority_increment=2, top_priority=3)

    assert [9, 7, 5, 3, 3] == [fair.priority_after(rounds) for rounds in range(5)]
    assert [5, 4, 3, 2, 1, 1] == [Fair().priority_after(rounds) for rounds in range(6)]


@pytest.mark.parametrize("wrong", [{"base_priority": 0}, {"priority_increment": -1}, {"top_priority": True}])
def test_a_wrong_priority_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=rf"fair\.{next(iter(wrong))}"):
        Fair(**wrong)
