"""The verification as a whole: survey, rules, suppressions, report."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from redrive.core.topology.fit import for_version
from redrive.core.topology.model import Topology
from redrive.core.topology.verify.client import UNKNOWN, Client, Publish
from redrive.core.topology.verify.effective import parse_version
from redrive.core.topology.verify.fates import proof
from redrive.core.topology.verify.findings import Finding, Severity, Suppression, sort
from redrive.core.topology.verify.report import Report, Suppressed
from redrive.core.topology.verify.rules import changes, clients, limits, loops, presence, targets, wirings
from redrive.core.topology.verify.situation import Role, Situation, survey

_NEWEST: Final = "4.4.1"


def verify(
    topology: Topology,
    *,
    version: str | None = None,
    consumers: Collection[str] | None = None,
    client: Client = UNKNOWN,
    publishes: Collection[Publish] = (),
    suppress: Sequence[Suppression] = (),
    current: Topology | None = None,
) -> Report:
    """Find every way in which messages of this topology are lost, loop, get stuck, or come early, late or twice.

    `version` of the broker: over that of the topology; unknown, the newest is assumed where its defaults lose more.
    `consumers`: queues somebody reads, those with a wiring always among them; None: guessed from names, TTLs and
    bindings, which the report says. `client`: how publishers and consumers behave. `publishes`: what is published, if
    that is known; an exchange named in there gets nothing else. `current`: what is on the broker now, to find what the
    change itself loses.

    Pure, and never raises for what a topology holds, however odd.
    """
    told = version or topology.version
    if topology.wirings and topology.version is None:
        # Made for an app: redrive switches the delivery limit off when it declares these queues.
        topology = for_version(topology, told or _NEWEST)
    situation = _survey(topology, told, client=client, consumers=consumers, publishes=publishes)
    before = None if current is None else _survey(current, told or current.version, client=client, consumers=consumers)
    found = sort(_found(situation, before))
    kept, hidden = _suppressed(found, suppress)
    return Report(
        findings=sort((*kept, *_unused(hidden, suppress))),
        suppressed=tuple(hidden),
        proofs=tuple(proof(situation, queue) for queue in situation.queues),
        assumptions=tuple(_assumptions(situation, told)),
        version=told,
    )


def _survey(
    topology: Topology,
    version: str | None,
    *,
    client: Client,
    consumers: Collection[str] | None,
    publishes: Collection[Publish] = (),
) -> Situation:
    return survey(topology, version=parse_version(version), client=client, consumers=consumers, publishes=publishes)


def _found(situation: Situation, before: Situation | None) -> Iterator[Finding]:
    for rules in (limits, targets, loops, clients, wirings, presence):
        yield from rules.found(situation)
    yield from changes.found(situation, before)


def _suppressed(found: Sequence[Finding], suppress: Sequence[Suppression]) -> tuple[list[Finding], list[Suppressed]]:
    kept, hidden = [], []
    for finding in found:
        by = next((each for each in suppress if each.covers(finding)), None)
        if by is None:
            kept.append(finding)
        else:
            hidden.append(Suppressed(finding=finding, by=by))
    return kept, hidden


def _unused(hidden: Sequence[Suppressed], suppress: Sequence[Suppression]) -> Iterator[Finding]:
    used = [each.by for each in hidden]
    for each in suppress:
        if each not in used:
            yield Finding(code="L36", severity=Severity.INFO, story=f"Nothing is suppressed by {each}.")


def _assumptions(situation: Situation, version: str | None) -> Iterator[str]:
    if situation.version is None:
        odd = f' ("{version}" is none)' if version else ""
        yield f"the newest RabbitMQ, for no version is known{odd}."
    if situation.guessed and situation.queues:
        read = sorted(queue.name for queue in situation.with_role(Role.CONSUMED))
        few = 12
        more = f" and {len(read) - few} more" if len(read) > few else ""
        yield f"consumed are {', '.join(read[:few]) or 'none'}{more} (guessed from names, TTLs and bindings)."
