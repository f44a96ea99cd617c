"""What a change of settings does to dead letters that are pending, and settings that one removed policy undoes."""

from __future__ import annotations

from collections.abc import Iterator

from redrive.core.topology.verify.findings import Finding, Severity
from redrive.core.topology.verify.situation import Situation


def found(situation: Situation, before: Situation | None) -> Iterator[Finding]:
    """`before`: what is on the broker now, where that is known."""
    for queue, lettering in situation.dead_lettering.items():
        if not lettering.is_confirmed:
            continue
        setting = situation.settings[queue]
        policies = sorted(
            {
                said[0].name
                for key in ("dead-letter-strategy", "overflow")
                if (said := setting.sources[key])
                and not any(each.kind == "argument" and each.value == said[0].value for each in said)
            }
        )
        if policies:
            yield Finding(
                code="L15",
                severity=Severity.INFO,
                vhost=queue.vhost,
                queue=queue.name,
                story=f'"{queue.name}" dead-letters at least once because policy {" and ".join(policies)} says '
                f"so. Without it, or "
                "under a stronger one, dead letters that are pending then are deleted.",
                path=(queue.name,),
            )
    if before is not None:
        yield from _switched_off(situation, before)


def _switched_off(situation: Situation, before: Situation) -> Iterator[Finding]:
    for queue, lettering in before.dead_lettering.items():
        if not lettering.is_confirmed or queue not in situation.queues:
            continue
        now = situation.dead_lettering.get(queue)
        if now is None or not now.is_confirmed:
            yield Finding(
                code="L15",
                severity=Severity.ERROR,
                vhost=queue.vhost,
                queue=queue.name,
                story=f'"{queue.name}" dead-letters at least once now and would not after this change: dead '
                f"letters pending at that "
                "moment are deleted.",
                path=(queue.name,),
            )
