"""What is in force on a queue: argument, policy, operator policy, version."""

from __future__ import annotations

from typing import Any

import pytest

from redrive.core.topology.model import Policy, Queue, Topology
from redrive.core.topology.verify.effective import Effective, Policies, effective, parse_version


def policy(name: str, pattern: str = ".*", priority: int = 0, apply_to: str = "all", **definition: Any) -> Policy:
    told = {key.replace("_", "-"): value for key, value in definition.items()}
    return Policy(name=name, pattern=pattern, priority=priority, apply_to=apply_to, definition=told)


def in_force(
    arguments: dict[str, Any], *policies: Policy, operator: tuple[Policy, ...] = (), version: str | None = "4.0.5"
) -> Effective:
    queue = Queue(name="orders", arguments=arguments)
    whole = Topology(queues=(queue,), policies=policies, operator_policies=operator)
    return effective(queue, Policies(whole), parse_version(version))


QUORUM = {"x-queue-type": "quorum"}


def test_one_policy_applies_the_one_of_the_highest_priority() -> None:
    found = in_force({}, policy("low", priority=1, dead_letter_exchange="dlx"), policy("high", priority=9, expires=5))

    assert ("high", 5, None) == (found.policy, found.expires_ms, found.dead_letter_exchange)
    assert ["low"] == [each.name for each in found.shadowed]


def test_equal_priorities_are_reported_unless_they_say_the_same() -> None:
    other = in_force({}, policy("one", message_ttl=1), policy("two", message_ttl=2))
    alike = in_force({}, policy("one", message_ttl=1), policy("two", message_ttl=1))

    assert {"one", "two"} == {each.name for each in other.ties}
    assert () == alike.ties


def test_an_argument_beats_a_policy_but_of_numbers_the_smaller_counts() -> None:
    told = {"x-dead-letter-exchange": "mine", "x-message-ttl": 1_000, "x-max-length": 5}

    found = in_force(told, policy("all", dead_letter_exchange="theirs", message_ttl=50, max_length=50))

    assert ("mine", 50, 5) == (found.dead_letter_exchange, found.ttl_ms, found.max_length)


def test_an_operator_policy_lowers_what_the_others_say() -> None:
    found = in_force({"x-message-ttl": 9}, policy("p", message_ttl=7), operator=(policy("o", message_ttl=3),))

    assert 3 == found.ttl_ms
    said = found.decided_by("message-ttl")
    assert said is not None
    assert ("operator policy", 3) == (said.kind, said.value)


@pytest.mark.parametrize(("kind", "expected"), [("quorum", "drop-head"), ("classic", "reject-publish")])
def test_the_overflow_of_a_policy_wins_on_quorum_queues_only(kind: str, expected: str) -> None:
    told = {"x-queue-type": kind, "x-overflow": "reject-publish"}

    assert expected == in_force(told, policy("p", overflow="drop-head")).overflow


@pytest.mark.parametrize(
    ("argument", "by_policy", "version", "expected"),
    [
        (None, None, "3.13.7", None),
        (None, None, "4.0.5", 20),
        (None, None, None, 20),
        (5, None, "3.13.7", 5),
        (5, 3, "4.0.5", 3),
        (-1, None, "4.0.5", None),
        (-1, 7, "4.0.5", 7),
        (None, 7, "4.0.5", 7),
    ],
)
def test_the_delivery_limit_in_force(
    argument: int | None, by_policy: int | None, version: str | None, expected: int | None
) -> None:
    told = QUORUM if argument is None else {**QUORUM, "x-delivery-limit": argument}
    policies = () if by_policy is None else (policy("p", delivery_limit=by_policy),)

    assert expected == in_force(told, *policies, version=version).delivery_limit


def test_a_policy_with_a_key_the_type_does_not_know_does_not_apply_at_all() -> None:
    mixed = policy("mixed", dead_letter_exchange="dlx", delivery_limit=5)

    classic, quorum = in_force({}, mixed), in_force(QUORUM, mixed)

    assert (None, ["mixed"]) == (classic.dead_letter_exchange, [each.name for each in classic.unfit])
    assert ("dlx", 5) == (quorum.dead_letter_exchange, quorum.delivery_limit)


@pytest.mark.parametrize(
    ("apply_to", "applies"),
    [("all", True), ("queues", True), ("quorum_queues", True), ("classic_queues", False), ("exchanges", False)],
)
def test_a_policy_applies_to_what_it_says(apply_to: str, *, applies: bool) -> None:
    assert applies is (in_force(QUORUM, policy("p", apply_to=apply_to, expires=5)).expires_ms == 5)


@pytest.mark.parametrize("pattern", ["(", "(a+)+$", "(a*)*b", "x" * 2_000])
def test_a_pattern_that_is_none_or_could_take_for_ever_is_not_matched(pattern: str) -> None:
    whole = Topology(policies=(policy("odd", pattern, expires=5),))

    assert ["odd"] == [each.name for each in Policies(whole).broken]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4.0.5", (4, 0, 5)), ("v3.13", (3, 13)), ("4.1.0-rc.1", (4, 1, 0)), ("new", None), (None, None), ("", None)],
)
def test_versions(text: str | None, expected: tuple[int, ...] | None) -> None:
    assert expected == parse_version(text)
