"""What becomes of an alert over time: one notification for each turn, and none for what could not be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.alerts import (
    ALERT_TRANSITIONS,
    NOTHING,
    RULES,
    AlertEvent,
    AlertState,
    Condition,
    Evaluation,
    Group,
    Is,
    Reading,
    Rule,
    Severity,
    evaluate,
    rules_of,
)

AT = 1_700_000_000_000
ALL = tuple(Group)


def rule(*, for_ms: int = 0, figure: str = "letters_open", limit: float = 10) -> Rule:
    return Rule(
        name="Test",
        group=Group.DEAD_LETTERS,
        severity=Severity.WARNING,
        when=(Condition(figure=figure, compared=Is.ABOVE, limit=limit),),
        summary="{value} of {label}",
        description="",
        action="do {word}",
        for_ms=for_ms,
    )


def told(
    rules: tuple[Rule, ...], readings: list[tuple[int, Reading]], before: Evaluation = NOTHING
) -> list[tuple[int, str, str, str]]:
    """All notifications: time, rule, label, state."""
    found = []
    for at, reading in readings:
        before = evaluate(rules, reading, before=before, now=at)
        found += [(at, n.alert.rule, n.alert.label, str(n.alert.state)) for n in before.notifications]
    return found


def one(value: float) -> Reading:
    return {"letters_open": {"": value}}


@pytest.mark.parametrize("state", AlertState, ids=str)
@pytest.mark.parametrize("event", AlertEvent, ids=str)
def test_every_pair_of_the_table_leads_where_the_picture_says(state: AlertState, event: AlertEvent) -> None:
    picture = {
        ("inactive", "met"): "pending",
        ("inactive", "held"): "firing",
        ("pending", "held"): "firing",
        ("pending", "over"): "inactive",
        ("firing", "over"): "resolved",
        ("resolved", "met"): "pending",
        ("resolved", "held"): "firing",
        ("resolved", "over"): "inactive",
    }

    assert picture.get((str(state), str(event))) == ALERT_TRANSITIONS[state].get(event)


def test_an_alert_is_told_once_when_it_begins_and_once_when_it_is_over() -> None:
    readings = [(AT + n, one(value)) for n, value in enumerate([10, 11, 50, 12, 10, 9, 10, 11])]

    assert [(AT + 1, "firing"), (AT + 4, "resolved"), (AT + 7, "firing")] == [
        (at, state) for at, _, _, state in told((rule(),), readings)
    ]


def test_a_rule_that_waits_fires_only_when_it_has_held_for_so_long() -> None:
    waiting = rule(for_ms=60_000)
    readings = [(AT + 30_000 * n, one(value)) for n, value in enumerate([11, 11, 5, 11, 11, 11, 11, 5])]

    assert [(AT + 150_000, "firing"), (AT + 210_000, "resolved")] == [
        (at, state) for at, _, _, state in told((waiting,), readings)
    ]


def test_what_cannot_be_read_changes_nothing() -> None:
    fired = evaluate((rule(),), one(11), now=AT)

    blind = evaluate((rule(),), {}, before=fired, now=AT + 1)

    assert ("Test",) == blind.unknown
    assert fired.alerts == blind.alerts
    assert () == blind.notifications
    assert () == evaluate((rule(),), one(12), before=blind, now=AT + 2).notifications


def test_every_label_is_an_alert_of_its_own() -> None:
    by_tenant = rule(figure="letters_by_tenant", limit=50)
    readings: list[tuple[int, Reading]] = [
        (AT, {"letters_by_tenant": {"acme": 51, "bolt": 50}}),
        (AT + 1, {"letters_by_tenant": {"acme": 60, "bolt": 51}}),
        (AT + 2, {"letters_by_tenant": {"bolt": 51}}),
    ]

    assert [(AT, "acme", "firing"), (AT + 1, "bolt", "firing"), (AT + 2, "acme", "resolved")] == [
        (at, label, state) for at, _, label, state in told((by_tenant,), readings)
    ]


def test_a_tenants_name_cannot_leave_its_place_in_a_command() -> None:
    by_tenant = rule(figure="letters_by_tenant", limit=50)
    hostile = "{label}'; rm -rf $HOME"

    (notification,) = evaluate((by_tenant,), {"letters_by_tenant": {hostile: 51}}, now=AT).notifications

    assert f"51 of {hostile}" == notification.summary
    assert """do '{label}'"'"'; rm -rf $HOME'""" == notification.action


@given(values=st.lists(st.one_of(st.none(), st.integers(0, 20)), max_size=60), for_steps=st.integers(0, 5))
def test_turns_alternate_and_an_alert_that_fires_has_held_long_enough(values: list[int | None], for_steps: int) -> None:
    waiting = rule(for_ms=for_steps)
    readings = [(AT + n, {} if value is None else one(value)) for n, value in enumerate(values)]

    turns = told((waiting,), readings)

    assert [state for _, _, _, state in turns] == ["firing", "resolved"] * (len(turns) // 2) + ["firing"] * (
        len(turns) % 2
    )
    for at, _, _, state in turns:
        if state == "firing":
            held = [value for when, value in zip(range(AT, at + 1), values, strict=False) if when >= at - for_steps]
            assert all(value is None or value > 10 for value in held)


def test_ma03_new_letters_and_old_ones_are_told_at_exactly_these_times() -> None:
    """Case MA-03, over figures: the same with real stores is in service/test_alerting.py."""
    minute = 60_000
    deaths = [0, *[10 * minute] * 50, 121 * minute]

    def reading(at: int) -> Reading:
        mine = [died for died in deaths if died <= at and not (at >= 120 * minute and died < 120 * minute)]
        fresh = [died for died in deaths if at - 5 * minute <= died <= at]
        age_ms = at - min(mine) if mine else 0
        return {"letters_new_5m": {"": len(fresh)}, "letter_oldest_age_seconds": {"": age_ms / 1_000}}

    turns = told(rules_of((Group.EVERY_LETTER,)), [(at, reading(at)) for at in range(0, 130 * minute, 30_000)])

    assert [
        (0, "NewDeadLetters", "firing"),
        (5.5, "NewDeadLetters", "resolved"),
        (10, "NewDeadLetters", "firing"),
        (15.5, "NewDeadLetters", "resolved"),
        (60, "DeadLettersOld", "firing"),
        (120, "DeadLettersOld", "resolved"),
        (121, "NewDeadLetters", "firing"),
        (126.5, "NewDeadLetters", "resolved"),
    ] == [(at / minute, name, state) for at, name, _, state in turns]


FIGURES_AT_THE_LIMIT: dict[str, tuple[Reading, Reading]] = {
    "DeadLettersMany": ({"letters_open": {"": 100}}, {"letters_open": {"": 101}}),
    "DeadLetterRateHigh": (
        {"dead_letter_share_1h": {"": 0.02}, "sends_1h": {"": 50}},
        {"dead_letter_share_1h": {"": 0.0201}, "sends_1h": {"": 50}},
    ),
    "TenantDeadLetters": ({"letters_by_tenant": {"acme": 50}}, {"letters_by_tenant": {"acme": 51}}),
    "DeadLettersArchived": ({"letters_archived_1h": {"": 0}}, {"letters_archived_1h": {"": 1}}),
    "ArchiveFails": ({"archive_failures_1h": {"": 0}}, {"archive_failures_1h": {"": 1}}),
    "RedisMemoryHigh": ({"redis_memory_share": {"": 0.8}}, {"redis_memory_share": {"": 0.801}}),
    "RedisMemoryCritical": ({"redis_memory_share": {"": 0.9}}, {"redis_memory_share": {"": 0.901}}),
    "RedisOutOfMemory": ({"redis_oom_errors": {"": 0}}, {"redis_oom_errors": {"": 1}}),
    "NewDeadLetters": ({"letters_new_5m": {"": 0}}, {"letters_new_5m": {"": 1}}),
    "DeadLettersOld": ({"letter_oldest_age_seconds": {"": 3_599.9}}, {"letter_oldest_age_seconds": {"": 3_600}}),
}


@pytest.mark.parametrize("wanted", RULES, ids=lambda found: found.name)
def test_each_rule_fires_beyond_its_limit_and_not_at_it(wanted: Rule) -> None:
    at_limit, beyond = FIGURES_AT_THE_LIMIT[wanted.name]

    assert () == evaluate((wanted,), at_limit, now=AT).firing
    assert [wanted.name] == [alert.rule for alert in evaluate((wanted,), beyond, now=AT).firing]


def test_a_rate_over_few_messages_says_nothing() -> None:
    few: Reading = {"dead_letter_share_1h": {"": 1.0}, "sends_1h": {"": 49}}

    assert () == evaluate(RULES, few, now=AT).firing


@pytest.mark.parametrize("wanted", RULES, ids=lambda found: found.name)
def test_every_rule_names_a_command(wanted: Rule) -> None:
    assert "redrive " in wanted.action
    assert wanted.description.endswith(".")
