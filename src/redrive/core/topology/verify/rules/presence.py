"""Queues that get messages and have no reader, where it was said who reads."""

from __future__ import annotations

from collections.abc import Iterator

from redrive.core.topology.verify.findings import Finding, Severity
from redrive.core.topology.verify.situation import Role, Situation


def found(situation: Situation) -> Iterator[Finding]:
    """A resting queue to which no dead letter leads, but publishers do."""
    if situation.guessed:
        return
    fed = {target for lettering in situation.dead_lettering.values() for target in lettering.targets}
    fed |= {queue for queue in situation.queues if queue.name in _dead_letter_queues(situation)}
    for queue in situation.with_role(Role.RESTING):
        if queue not in fed and _is_bound(situation, queue.vhost, queue.name):
            yield Finding(
                code="L35",
                severity=Severity.INFO,
                vhost=queue.vhost,
                queue=queue.name,
                story=f'Messages are routed to "{queue.name}", and nobody is said to consume it.',
                path=(queue.name,),
            )


def _dead_letter_queues(situation: Situation) -> set[str]:
    return {wiring.dead_letter_queue for wiring in situation.wirings.values()}


def _is_bound(situation: Situation, vhost: str, name: str) -> bool:
    return any(
        binding.destination == name and binding.vhost == vhost and binding.destination_type != "exchange"
        for binding in situation.topology.bindings
    )
