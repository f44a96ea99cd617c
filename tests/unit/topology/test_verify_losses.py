"""Each way to lose a message stands in a fixture made for it and is found there; in the repaired twin nothing is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from redrive.core.topology.verify import CATALOGUE, REDRIVE, UNKNOWN, Client, Severity, verify
from tests.unit.topology.verifying import definitions

KNOWN = replace(REDRIVE, prefetch=10)


@dataclass(frozen=True, kw_only=True)
class Case:
    """`bad` and `good` differ in the file, in the client, or in both."""

    code: str
    severity: Severity
    queue: str | None
    bad: str
    good: str
    bad_client: Client = KNOWN
    more: dict[str, Any] = field(default_factory=dict)


def case(code: str, severity: str, queue: str | None, **fields: Any) -> Case:
    name = f"l{int(code[1:]):02}"
    fields = {"bad": f"{name}_bad", "good": f"{name}_good", **fields}
    return Case(code=code, severity=Severity(severity), queue=queue, **fields)


def client_case(code: str, severity: str, **bad: bool | None) -> Case:
    return case(code, severity, None, bad="l14", good="l14", bad_client=replace(KNOWN, **bad))


CASES = (
    case("L1", "error", "orders"),
    case("L2", "error", "orders"),
    case("L3", "warning", "orders"),
    case("L4", "warning", "orders"),
    case("L5", "warning", "orders"),
    case("L6", "warning", "orders.retry"),
    case("L7", "error", "orders.dead"),
    case("L8", "error", "orders.dead"),
    case("L9", "error", "wait.long"),
    case("L10", "error", None, bad_client=replace(KNOWN, strips_deaths=False)),
    case("L11", "error", "orders"),
    case("L12", "warning", "orders.wait"),
    case("L13", "warning", "orders.delay"),
    client_case("L14", "error", persistent=False),
    case("L15", "error", "orders", more={"current": definitions("l15_current")}),
    case("L16", "warning", "orders"),
    client_case("L17", "error", confirms=False),
    client_case("L17", "error", mandatory=False),
    client_case("L18", "warning", bounded_headers=False),
    case("L19", "error", "orders", bad_client=replace(KNOWN, counts=False)),
    case("L20", "error", "orders.wait"),
    case("L21", "warning", "orders"),
    case("L22", "warning", "orders"),
    case("L23", "error", "billing"),
    case("L24", "error", "left"),
    case("L25", "warning", "orders"),
    case("L26", "warning", "orders.dead"),
    case("L27", "error", "orders"),
    case("L28", "warning", "orders"),
    case("L29", "error", "orders"),
    case("L30", "warning", "orders"),
    case("L31", "warning", "order"),
    case("L33", "error", None),
    case("L34", "error", None, bad="l06_good", good="l06_good", bad_client=replace(KNOWN, counts=False)),
    case("L35", "info", "orders", bad="l35", good="l35", more={"consumers": ()}),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code}-{case.severity}")
def test_each_loss_is_found_in_a_fixture_made_for_it(case: Case) -> None:
    report = verify(definitions(case.bad), client=case.bad_client, **case.more)

    found = [(each.severity, each.queue) for each in report.findings if each.code == case.code]
    assert (case.severity, case.queue) in found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code}-{case.severity}")
def test_nothing_is_found_in_the_repaired_twin(case: Case) -> None:
    more = {name: value for name, value in case.more.items() if name != "consumers"}

    report = verify(definitions(case.good), client=KNOWN, **more)

    assert () == report.findings
    assert report.is_safe


def test_every_kind_of_finding_has_a_fixture() -> None:
    elsewhere = {"L32", "L36"}  # wirings and suppressions are not in a definitions file

    assert set(CATALOGUE) == {case.code for case in CASES} | elsewhere


@pytest.mark.parametrize("code", ["L14", "L17", "L18"])
def test_what_depends_on_clients_nobody_knows_is_information(code: str) -> None:
    report = verify(definitions("l14"), client=UNKNOWN)

    assert [Severity.INFO] == [each.severity for each in report.findings if each.code == code]
    assert report.is_safe


@pytest.mark.parametrize(("code", "name"), [("L10", "l10_bad"), ("L16", "l16_bad"), ("L19", "l19_bad")])
def test_a_topology_that_a_client_could_lose_by_says_so(code: str, name: str) -> None:
    report = verify(definitions(name), client=UNKNOWN)

    assert code in report.codes()
