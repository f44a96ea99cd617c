"""What a user writes about fairness: checked, and named where it is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from redrive.core.policy.fair import Fair, fair_from_names, make_fair, priority_names
from redrive.core.policy.fairness import SCALE, priority
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


def test_fairness_under_the_names_of_the_system() -> None:
    assert Fair(batch=3) == fair_from_names({})
    assert Fair(batch=7) == fair_from_names({"MAX_JOBS_PER_TENANT_BATCH": "7"})
    assert fair_from_names({"ENABLE_ROUND_ROBIN": "false"}) is None
    assert priority_names({}) == {}
    names = {"ROUND_ROBIN_BASE_PRIORITY": "9", "PRIORITY_INCREMENT_PER_ROUND": "2", "MAX_ROUND_ROBIN_PRIORITY": "3"}
    assert [9, 7, 5, 3, 3] == [priority(rounds, **priority_names(names)) for rounds in range(5)]


@pytest.mark.parametrize(
    ("name", "text"),
    [("MAX_JOBS_PER_TENANT_BATCH", "0"), ("MAX_JOBS_PER_TENANT_BATCH", "x"), ("ENABLE_ROUND_ROBIN", "")],
)
def test_a_wrong_variable_is_named(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        fair_from_names({name: text})


def test_a_wrong_priority_is_named() -> None:
    with pytest.raises(ConfigurationError, match="ROUND_ROBIN_BASE_PRIORITY"):
        priority_names({"ROUND_ROBIN_BASE_PRIORITY": "high"})
