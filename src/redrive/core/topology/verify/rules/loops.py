"""Messages that come back: dropped as a loop, round for ever, or to consumers that had succeeded."""

from __future__ import annotations

from collections.abc import Iterator

from redrive.core.topology.verify.findings import Finding, Severity
from redrive.core.topology.verify.routing import DEFAULT, Keys, QueueId
from redrive.core.topology.verify.situation import AUTOMATIC, RETRYING, Cause, Role, Situation, words
from redrive.core.topology.verify.ways import Entry, Hop, Node, Return, Walk, cycles, is_sure, nodes, shown_cycle
from redrive.core.topology.verify.wording import named, quoted, way
from redrive.core.topology.wiring import RejectRetry, TierRetry


def found(situation: Situation) -> Iterator[Finding]:
    """Cycles without a rejection, loops at full speed, and retries that are not isolated."""
    walk = Walk(situation)
    yield from _automatic(walk)
    yield from _at_full_speed(walk)
    yield from _returns(walk)


def _edges(walk: Walk, *, automatic: bool) -> dict[Node, list[Node]]:
    """The graph of deaths: by automatic causes anywhere, or by rejection between consumed queues."""
    situation = walk.situation
    edges: dict[Node, list[Node]] = {}
    waiting = list(nodes(situation))
    while waiting:
        node = waiting.pop()
        if node in edges:
            continue
        edges[node] = []
        causes = set(situation.causes(node.queue))
        if not (causes & AUTOMATIC if automatic else Cause.REJECTED in causes):
            continue
        edges[node] = [hop.target for hop in walk.hops(node) if hop.target.queue in situation.settings]
        waiting += edges[node]
    return edges


def _automatic(walk: Walk) -> Iterator[Finding]:
    situation = walk.situation
    for cycle in cycles(_edges(walk, automatic=True)):
        causes = {node.queue: _cause(situation, node.queue) for node in cycle}
        consumed = [node.queue.name for node in cycle if situation.roles[node.queue] is Role.CONSUMED]
        by_limit = Cause.LIMIT in causes.values()
        sure = all(is_sure(situation, node) for node in cycle)
        sure = sure and not (by_limit and situation.version is None and _by_default(situation, cycle))
        severity = Severity.ERROR if sure and (by_limit or not consumed) else Severity.WARNING
        path = shown_cycle(situation, cycle, causes.__getitem__)
        confirmed = all(situation.dead_lettering[node.queue].is_confirmed for node in cycle)
        fate = "stays stuck in the queue before" if confirmed else "is dropped there"
        when = f", when it is not consumed in time from {quoted(consumed)}" if consumed and not by_limit else ""
        if by_limit:
            when = f", when it kills its consumer of {quoted(consumed)} until the delivery limit"
        yield Finding(
            code="L9",
            severity=severity,
            vhost=cycle[0].queue.vhost,
            queue=cycle[0].queue.name,
            story=f"A message that goes round {way(path)}{when} has met no rejection on its way and {fate}.",
            path=path,
        )


def _by_default(situation: Situation, cycle: list[Node]) -> bool:
    """A delivery limit nobody set, which a broker older than 4.0 does not have."""
    limits = [situation.settings[node.queue].decided_by("delivery-limit") for node in cycle]
    return any(limit is not None and limit.kind == "default" for limit in limits)


def _cause(situation: Situation, queue: QueueId) -> Cause:
    """The automatic cause by which messages leave this queue, the one no consumer can prevent first."""
    causes = [cause for cause in situation.causes(queue) if cause in AUTOMATIC]
    return Cause.LIMIT if causes[-1] is Cause.LIMIT else causes[0]


def _at_full_speed(walk: Walk) -> Iterator[Finding]:
    situation = walk.situation
    edges = {
        node: [each for each in after if situation.roles[each.queue] is Role.CONSUMED]
        for node, after in _edges(walk, automatic=False).items()
    }
    for cycle in cycles(edges):
        path = shown_cycle(situation, cycle, lambda _: str(Cause.REJECTED))
        yield Finding(
            code="L24",
            severity=Severity.ERROR,
            vhost=cycle[0].queue.vhost,
            queue=cycle[0].queue.name,
            story=f"A message its consumer rejects goes round {way(path)} at once and for ever: nothing "
            f"on the way makes "
            "it wait or ends it.",
            path=path,
        )


def _returns(walk: Walk) -> Iterator[Finding]:
    """Follow the retry of each consumed queue; then the waiting queues whose publishers nobody knows."""
    situation = walk.situation
    seen: set[QueueId] = set()
    endless: list[QueueId] = []
    whole = True
    for queue in situation.with_role(Role.CONSUMED):
        back = walk.after_waiting(_into_waiting(walk, queue))
        whole = whole and back.is_whole
        seen.update(back.waits)
        if queue in back.arrivals:
            yield from _shared(situation, queue, back)
            if not _is_wired(situation, queue):
                endless.append(queue)
    for queue in _first_waits(walk):
        if queue not in seen:
            back = walk.after_waiting([(Node(queue, keys), ()) for keys in sorted(situation.keys[queue], key=str)])
            whole = whole and back.is_whole
            seen.update(back.waits)
            yield from _unfed(situation, queue, back)
    yield from _endless(situation, endless)
    if not whole:
        yield Finding(
            code="L28",
            severity=Severity.WARNING,
            story="There are more ways through waiting queues than were walked: who gets the retries of whom is not "
            "known in full.",
        )


def _first_waits(walk: Walk) -> list[QueueId]:
    """Waiting queues, those first to which no other waiting queue leads."""
    situation = walk.situation
    waits = list(situation.with_role(Role.WAITING))
    later = {
        hop.target.queue
        for queue in waits
        for keys in situation.keys[queue]
        for hop in walk.hops(Node(queue, keys))
        if hop.target.queue != queue
    }
    return [*(queue for queue in waits if queue not in later), *(queue for queue in waits if queue in later)]


def _is_wired(situation: Situation, queue: QueueId) -> bool:
    return queue in situation.wirings or situation.client.counts is True


def _into_waiting(walk: Walk, queue: QueueId) -> list[Entry]:
    """What a retry of this queue enters first: by rejection, or published to its tiers."""
    situation = walk.situation
    begin: list[Entry] = []
    wiring = situation.wirings.get(queue)
    if wiring is None or isinstance(wiring.retry, RejectRetry):
        for keys in sorted(situation.keys[queue], key=str):
            begin += [_entered(hop, queue) for hop in walk.hops(Node(queue, keys))]
    elif isinstance(wiring.retry, TierRetry):
        retry = wiring.retry
        for tier in retry.tiers:
            keys = _key(tier.routing_key)
            route = situation.router.route(queue.vhost, retry.exchange, keys)
            path = (queue.name, "(retry)", f"{named(retry.exchange)}, key {tier.routing_key}")
            begin += [
                (Node(target, situation.arrival(target, retry.exchange, keys)), path) for target in sorted(route.queues)
            ]
    return begin


def _key(text: str) -> Keys:
    return (tuple(text.split(".")) if text else (),)


def _entered(hop: Hop, queue: QueueId) -> Entry:
    return hop.target, (queue.name, f"({Cause.REJECTED})", named(hop.exchange))


def _shared(situation: Situation, queue: QueueId, back: Return) -> Iterator[Finding]:
    """The retry of a queue that comes to others as well, or would to any queue bound like it."""
    others = sorted(each for each in back.arrivals if each != queue)
    if others:
        sure = Severity.ERROR if back.is_sure else Severity.WARNING
        yield Finding(
            code="L23",
            severity=sure,
            vhost=queue.vhost,
            queue=queue.name,
            story=f'A retry of "{queue.name}" returns through '
            f"{named(_exchange(situation, back.last[others[0]].queue))} to "
            f"{quoted([each.name for each in others])} as well: consumers that had succeeded get it again.",
            path=back.arrivals[others[0]],
        )
    elif _is_open(situation, back.last[queue], queue):
        yield _latent(situation, (queue, back.last[queue].queue), back.arrivals[queue])


def _exchange(situation: Situation, wait: QueueId) -> str:
    return situation.settings[wait].dead_letter_exchange or DEFAULT


def _latent(situation: Situation, place: tuple[QueueId, QueueId], path: tuple[str, ...]) -> Finding:
    queue, wait = place
    return Finding(
        code="L23",
        severity=Severity.WARNING,
        vhost=queue.vhost,
        queue=queue.name,
        story=f'A retry returns from "{wait.name}" to "{queue.name}" through '
        f"{named(_exchange(situation, wait))}, to which others "
        "publish and bind: every queue bound there with a matching key gets each retry again, also when it had "
        "succeeded.",
        path=path,
    )


def _is_open(situation: Situation, last: Node, queue: QueueId) -> bool:
    """The message returns through an exchange of many, by a binding made for more than its retries."""
    onward = situation.onward(last.queue, last.keys)
    exchange = _exchange(situation, last.queue)
    if onward is None or exchange == DEFAULT or situation.router.type_of(queue.vhost, exchange) == "direct":
        return False
    own = [each for each in situation.router.bound(queue.vhost, exchange) if each.destination == queue.name]
    if any(each.pattern in onward[0] for each in own if each.pattern is not None):
        return False
    only_this = all(each.destination == queue.name for each in situation.router.bound(queue.vhost, exchange))
    is_fed_elsewhere = any(
        bound.destination == queue.name
        for other in situation.topology.exchanges
        if other.name != exchange and other.vhost == queue.vhost
        for bound in situation.router.bound(queue.vhost, other.name)
    )
    return not (only_this and is_fed_elsewhere)


def _unfed(situation: Situation, wait: QueueId, back: Return) -> Iterator[Finding]:
    """A waiting queue nobody is known to publish to: what its messages come back to. Whether they are retries, and not
    messages published to arrive later, its name has to say.
    """
    arrivals = sorted(back.arrivals)
    is_retry = bool(words(wait.name) & RETRYING)
    if len(arrivals) > 1 and back.is_sure:
        yield Finding(
            code="L23",
            severity=Severity.ERROR if is_retry else Severity.INFO,
            vhost=wait.vhost,
            queue=wait.name,
            story=f'What waits in "{wait.name}" goes to {quoted([each.name for each in arrivals])}'
            f" at once: {'a' if is_retry else 'if it is a'} retry of one of "
            f"them{' ' if is_retry else ', it '}comes to all.",
            path=back.arrivals[arrivals[-1]],
        )
    elif is_retry and len(arrivals) == 1 and _is_open(situation, back.last[arrivals[0]], arrivals[0]):
        yield _latent(situation, (arrivals[0], wait), back.arrivals[arrivals[0]])


def _endless(situation: Situation, queues: list[QueueId]) -> Iterator[Finding]:
    if not queues:
        return
    is_known = situation.client.counts is False
    names = quoted([queue.name for queue in queues])
    yield Finding(
        code="L34",
        severity=Severity.ERROR if is_known else Severity.INFO,
        vhost=queues[0].vhost,
        story=f"What consumers of {names} reject comes back after a wait as often as they reject it: "
        f"{'they do not count, so it never ends' if is_known else 'only they can end it'}.",
    )
