"""Dead-letter cycles (case TP-01), targets that are not there (case TP-02), at-least-once that is none (case TP-06),
and different waits in one queue (case TP-08).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from redrive.core.topology.verify import REDRIVE, Finding, Severity, verify
from tests.unit.topology.verifying import CLASSIC, definitions, queue, topology


def told(findings: tuple[Finding, ...], *codes: str) -> list[tuple[str, str, str | None]]:
    return [(each.code, str(each.severity), each.queue) for each in findings if each.code in codes]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tp01_a", [("L9", "error", "wait")]),
        ("tp01_b", [("L9", "error", "A")]),
        ("tp01_c", []),
        ("tp01_d", [("L9", "warning", "wait")]),
        ("tp01_e", [("L9", "error", "audit")]),
        ("tp01_f", [("L24", "error", "work")]),
    ],
)
def test_a_cycle_without_a_rejection_loses_and_one_without_a_wait_never_ends(
    name: str, expected: list[tuple[str, str, str]]
) -> None:
    report = verify(definitions(name), client=REDRIVE)

    assert expected == told(report.findings, "L9", "L24")
    assert all(len(each.path) > 2 for each in report.findings if each.code in ("L9", "L24"))


def test_the_path_of_a_cycle_names_every_hop() -> None:
    (found,) = [each for each in verify(definitions("tp01_e")).findings if each.code == "L9"]

    assert ("audit", "(expired)", 'exchange "fan"', "audit") == found.path


def test_who_consumes_can_be_said() -> None:
    guessed = verify(definitions("tp01_b"), client=REDRIVE)
    told_so = verify(definitions("tp01_b"), client=REDRIVE, consumers=["A"])

    assert [("L9", "error", "A")] == told(guessed.findings, "L9")
    assert [("L9", "warning", "A")] == told(told_so.findings, "L9")


def test_a_crash_loop_through_a_retry_is_a_cycle_without_a_rejection() -> None:
    limited = {**CLASSIC, "x-queue-type": "quorum", "x-delivery-limit": 5}
    work = replace(queue("work", "", "wait"), arguments={**queue("work", "", "wait").arguments, **limited})
    wait = queue("wait", "", "work", message_ttl=5_000)

    report = verify(topology(work, wait, version="3.10.8"), client=REDRIVE)

    assert [("L9", "error", "wait")] == told(report.findings, "L9")


def test_a_dead_letter_target_that_is_not_there_is_found() -> None:
    report = verify(definitions("tp02_bad"), client=REDRIVE)

    expected = [
        ("L2", "error", "q1"),
        ("L3", "error", "q2"),
        ("L3", "error", "q3"),
        ("L3", "error", "q4"),
        ("L27", "error", "q7"),
        ("L28", "warning", "q5"),
    ]
    assert expected == told(report.findings, "L2", "L3", "L27", "L28")
    assert "q6" not in {each.queue for each in report.findings}


def test_dead_letter_targets_that_are_there_are_not_found_fault_with() -> None:
    report = verify(definitions("tp02_good"), client=REDRIVE)

    assert () == report.findings


def test_at_least_once_that_silently_is_not_says_what_is_missing() -> None:
    report = verify(definitions("tp06_bad"), client=REDRIVE)

    found = {(each.queue, each.code) for each in report.at_least(Severity.WARNING)}
    assert {("q1", "L5"), ("q2", "L5"), ("q4", "L29"), ("q5", "L27"), ("q6", "L26")} <= found
    assert "q3" not in {each.queue for each in report.findings}
    (bounded,) = [each for each in report.findings if each.code == "L26"]
    assert '"q3" then stay in their queue' in bounded.story
    assert () == verify(definitions("tp06_good"), client=REDRIVE).findings


def test_different_waits_in_one_queue_are_found_from_its_settings_or_from_what_is_published() -> None:
    without_ttl = verify(definitions("l13_bad"), client=REDRIVE)
    with_ttl = verify(definitions("l13_good"), client=replace(REDRIVE, per_message_ttl=True))

    assert [("L13", "warning", "orders.delay")] == told(without_ttl.findings, "L13")
    assert [("L13", "warning", "orders.delay.1h"), ("L13", "warning", "orders.delay.5s")] == told(
        with_ttl.findings, "L13"
    )
