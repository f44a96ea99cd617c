"""The recipes, verified: what their ready-made forms cost is said, and of the safe ones nothing is said."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from redrive.core.topology.definitions import export_definitions, parse_definitions
from redrive.core.topology.fit import for_version
from redrive.core.topology.model import Binding, Exchange, Topology
from redrive.core.topology.recipes import delay_levels, fanout_bus, retry_per_queue, tiered_retry
from redrive.core.topology.verify import REDRIVE, UNKNOWN, Finding, Severity, verify
from redrive.core.topology.wiring import RejectRetry, TierRetry
from tests.unit.topology.verifying import topology

DOMAINS = ("user", "auth", "alarm", "document", "workflow", "notification", "audit")
PIPELINE = {
    "q.validator": {"domain.events": "files.uploaded.*"},
    "q.projection": {"domain.events": "#"},
    "q.upload.commands": {"domain.commands": ["commands.upload.#", "commands.file.reprocess.*"]},
}


def recipes(*, safe: bool) -> dict[str, Topology]:
    return {
        "bus": fanout_bus("wms-cincout", "wms-labels", safe=safe),
        "tiers": tiered_retry("freeflow", domains=DOMAINS, safe=safe),
        "pipeline": retry_per_queue(PIPELINE, safe=safe),
    }


def codes_by_queue(findings: tuple[Finding, ...]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for each in findings:
        found.setdefault(each.code, set()).add(each.queue or "")
    return found


@pytest.mark.parametrize("version", [None, "3.10.8", "3.12.14", "3.13.7", "4.0.5", "4.3.2"])
@pytest.mark.parametrize("name", ["bus", "tiers", "pipeline", "default shape", "with ladder"])
def test_nothing_is_found_in_the_safe_shapes(name: str, version: str | None) -> None:
    shapes = recipes(safe=True) | {
        "default shape": delay_levels("orders", "mail"),
        "with ladder": fanout_bus("wms-cincout", safe=True) + delay_levels("orders"),
    }

    report = verify(shapes[name], version=version, client=REDRIVE)

    assert () == report.findings
    assert {"lost", "stuck", "open"}.isdisjoint(str(fate.outcome) for proof in report.proofs for fate in proof.fates)


@pytest.mark.parametrize("version", ["3.10.8", "4.0.5"])
@pytest.mark.parametrize("name", ["bus", "tiers", "pipeline", "default shape"])
def test_a_file_of_a_safe_shape_is_safe_without_knowing_who_made_it(name: str, version: str) -> None:
    shape = {**recipes(safe=True), "default shape": delay_levels("orders")}[name]
    declared = replace(for_version(shape, version), version=version)

    report = verify(parse_definitions(export_definitions(declared)).topology, client=UNKNOWN)

    assert () == report.at_least(Severity.WARNING)


@pytest.mark.parametrize("name", ["bus", "pipeline"])
def test_the_ready_made_forms_say_that_their_classic_queues_dead_letter_without_a_confirm(name: str) -> None:
    shape = recipes(safe=False)[name]

    found = codes_by_queue(verify(shape, client=REDRIVE).findings)

    dying = {queue.name for queue in shape.queues if "x-dead-letter-exchange" in queue.arguments}
    assert {"L6": dying} == found


def test_tiers_that_return_through_the_exchange_of_all_are_not_isolated() -> None:
    shape = recipes(safe=False)["tiers"]

    report = verify(shape, client=REDRIVE)

    found = codes_by_queue(report.findings)
    assert {"L6", "L23"} == set(found)
    assert {f"freeflow.{domain}" for domain in DOMAINS} == found["L23"]
    assert Severity.WARNING is report.worst


def test_a_second_queue_of_a_domain_gets_the_retries_of_the_first() -> None:
    shape = recipes(safe=False)["tiers"] + tiered_retry("billing", domains=["user"], events="freeflow.events")

    findings = verify(shape, client=REDRIVE).findings

    shared = [each for each in findings if each.code == "L23" and each.severity is Severity.ERROR]
    assert {"freeflow.user", "billing.user"} == {each.queue for each in shared}
    assert all("freeflow.events" in " ".join(each.path) for each in shared)


def test_the_trap_of_the_tiers_is_seen_in_a_file_without_wirings() -> None:
    shape = replace(recipes(safe=False)["tiers"], wirings=())

    found = codes_by_queue(verify(shape, client=UNKNOWN).findings)

    assert {f"freeflow.{domain}" for domain in DOMAINS} == found["L23"]


def test_a_retry_whose_wait_differs_from_its_wiring_is_early_or_late() -> None:
    shape = fanout_bus("wms-cincout", delay="5s", safe=True)
    (wiring,) = shape.wirings

    found = verify(replace(shape, wirings=(replace(wiring, retry=RejectRetry(delay_ms=9_000)),)), client=REDRIVE)

    assert ["L12"] == [each.code for each in found.findings]
    assert "comes early" in found.findings[0].story


@pytest.mark.parametrize("gone", ["wms.queue.wms-cincout", "wms.retry-queue.wms-cincout", "wms.dlq.wms-cincout"])
def test_a_wiring_without_its_queues_has_no_way(gone: str) -> None:
    shape = fanout_bus("wms-cincout", safe=True)
    less = replace(shape, queues=tuple(queue for queue in shape.queues if queue.name != gone))

    found = verify(less, client=REDRIVE)

    assert "L32" in found.codes(Severity.ERROR)


def test_a_tier_without_a_queue_and_one_that_does_not_come_back_have_no_way() -> None:
    shape = tiered_retry("freeflow", domains=["user"], safe=True)
    (wiring,) = shape.wirings
    assert isinstance(wiring.retry, TierRetry)
    lost = tuple(replace(tier, routing_key=f"{tier.routing_key}s") for tier in wiring.retry.tiers[:1])
    unbound = replace(shape, wirings=(replace(wiring, retry=replace(wiring.retry, tiers=lost)),))
    elsewhere = replace(shape, exchanges=tuple(replace(each, arguments={}) for each in unbound.exchanges))

    found = verify(replace(elsewhere, wirings=unbound.wirings), client=REDRIVE)

    assert "L32" in found.codes(Severity.ERROR)


def test_five_hundred_queues_are_verified_within_two_seconds() -> None:
    exchanges = Exchange(name="events", type="topic")
    bound = tuple(Binding(source="events", destination=f"q{n}", routing_key=f"a.{n}.#") for n in range(170))
    shape = retry_per_queue({f"q{n}": {"events": f"b{n}.*"} for n in range(170)}) + topology(exchanges, *bound)
    assert len(shape.queues) >= 500

    # The quickest of three: what the machine's other work costs is not what is promised.
    assert min(seconds(shape) for _ in range(3)) < 2


def test_the_whole_ladder_beside_five_hundred_queues_is_verified_within_two_seconds() -> None:
    shape = delay_levels(*(f"orders.{n}" for n in range(250)))
    assert len(shape.queues) > 800

    assert min(seconds(shape) for _ in range(3)) < 2


def seconds(shape: Topology) -> float:
    begin = time.process_time()
    verify(shape)
    return time.process_time() - begin
