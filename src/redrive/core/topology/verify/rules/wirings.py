"""Whether redrive's own ways exist: its retries come back after the time they say, its dead letters arrive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from redrive.core.topology.verify.findings import Finding, Severity
from redrive.core.topology.verify.patterns import literal
from redrive.core.topology.verify.routing import QueueId
from redrive.core.topology.verify.situation import Situation
from redrive.core.topology.verify.ways import Entry, Node, Return, Walk
from redrive.core.topology.verify.wording import named
from redrive.core.topology.wiring import RejectRetry, TierRetry, Wiring
from redrive.core.units import Millis


def found(situation: Situation) -> Iterator[Finding]:
    """Each wiring, carried out on paper."""
    walk = Walk(situation)
    for queue, wiring in situation.wirings.items():
        if queue not in situation.queues:
            yield _of(queue, f'The wiring names queue "{queue.name}", which is not declared.')
            continue
        if isinstance(wiring.retry, RejectRetry):
            yield from _by_reject(walk, queue, wiring.retry)
        elif isinstance(wiring.retry, TierRetry):
            yield from _by_tier(walk, queue, wiring.retry)
        yield from _dead_letters(situation, queue, wiring)


def _of(queue: QueueId, story: str, path: Iterable[str] = ()) -> Finding:
    return Finding(
        code="L32", severity=Severity.ERROR, vhost=queue.vhost, queue=queue.name, story=story, path=tuple(path)
    )


def _by_reject(walk: Walk, queue: QueueId, retry: RejectRetry) -> Iterator[Finding]:
    situation = walk.situation
    if situation.settings[queue].dead_letter_exchange is None:
        yield _of(queue, f'"{queue.name}" is retried by rejecting, and has no dead-letter exchange.')
        return
    begin: list[Entry] = [
        (hop.target, (queue.name, "(rejected)", named(hop.exchange)))
        for keys in sorted(situation.keys[queue], key=str)
        for hop in walk.hops(Node(queue, keys))
    ]
    back = walk.after_waiting(begin)
    if queue not in back.arrivals:
        path = (*begin[0][1], begin[0][0].queue.name) if begin else (queue.name, "(rejected)", "no queue")
        yield _of(queue, f'A retry of "{queue.name}" does not come back to it.', path)
    yield from _times(situation, queue, (back, retry.delay_ms))


def _by_tier(walk: Walk, queue: QueueId, retry: TierRetry) -> Iterator[Finding]:
    situation = walk.situation
    for tier in retry.tiers:
        keys = (literal(tier.routing_key),)
        route = situation.router.route(queue.vhost, retry.exchange, keys)
        path = (queue.name, "(retry)", f"{named(retry.exchange)}, key {tier.routing_key}")
        if not route.queues:
            yield _of(
                queue,
                f'A retry of "{queue.name}" is published to {named(retry.exchange)} with key '
                f'"{tier.routing_key}", and no queue '
                "gets it there.",
                path,
            )
            continue
        begin: list[Entry] = [
            (Node(each, situation.arrival(each, retry.exchange, keys)), path) for each in sorted(route.queues)
        ]
        back = walk.after_waiting(begin)
        if queue not in back.arrivals:
            yield _of(
                queue,
                f'A retry of "{queue.name}" with key "{tier.routing_key}" does not come back to it.',
                (*path, begin[0][0].queue.name),
            )
        yield from _times(situation, queue, (back, tier.delay_ms))


def _times(situation: Situation, queue: QueueId, expected: tuple[Return, Millis]) -> Iterator[Finding]:
    back, delay_ms = expected
    if len(back.waits) != 1:
        return
    wait = back.waits[0]
    ttl = situation.settings[wait].ttl_ms
    if ttl is not None and ttl != delay_ms:
        yield Finding(
            code="L12",
            severity=Severity.WARNING,
            vhost=queue.vhost,
            queue=wait.name,
            story=f'A retry of "{queue.name}" shall wait {delay_ms} ms, but "{wait.name}" lets it go after {ttl} ms '
            f"({situation.settings[wait].decided_by('message-ttl')}): it comes "
            f"{'early' if ttl < delay_ms else 'late'}.",
            path=(queue.name, wait.name),
        )


def _dead_letters(situation: Situation, queue: QueueId, wiring: Wiring) -> Iterator[Finding]:
    target = QueueId(queue.vhost, wiring.dead_letter_queue)
    route = wiring.dead_letter
    if not route.by_reject:
        keys = (literal(route.routing_key),)
        got = situation.router.route(queue.vhost, route.exchange, keys).queues
        path = (queue.name, "(dead letter)", f"{named(route.exchange)}, key {route.routing_key}")
        if target not in got:
            yield _of(queue, f'A dead letter of "{queue.name}" does not arrive in "{target.name}".', path)
        return
    lettering = situation.dead_lettering.get(queue)
    if lettering is None or target not in lettering.targets:
        yield _of(
            queue,
            f'A dead letter of "{queue.name}" is rejected, and its dead-letter exchange does not lead to '
            f'"{target.name}".',
            (queue.name, "(rejected)", named(lettering.exchange) if lettering else "no dead-letter exchange"),
        )
